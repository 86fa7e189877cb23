"""All searches of one batch: which class each aims at, where it starts, and how many steps it gets."""

from typing import NamedTuple

from torch import Tensor

from dyart.boundary.norms import Norm
from dyart.boundary.problem import Best, Problem, Tick
from dyart.boundary.restarts import (
    Rivals,
    distance_from_input,
    nearest_rivals,
    plausible,
    random_start,
    seen_from_start,
)
from dyart.boundary.solvers import Solver
from dyart.boundary.solvers.fast import fast_search
from dyart.boundary.solvers.own import searching
from dyart.boundary.solvers.race import Entrant, Lap, race
from dyart.boundary.validation import Start

# A fast search of this many steps and more is a race of these laps towards the first rivals.
# Those of 28 and 36 were found on 252 images of a robust and of a natural network for p = 2, and on 144 others of each
# for p = inf: the same are the best.
_RACES: dict[int, tuple[Lap, ...]] = {
    18: (Lap(2, 4),),
    28: (Lap(3, 2), Lap(2, 4)),
    36: (Lap(4, 2), Lap(3, 3), Lap(2, 3)),
    72: (Lap(4, 4), Lap(3, 6), Lap(2, 6)),
    150: (Lap(6, 6), Lap(4, 9), Lap(2, 18)),
}
# For p = 1 it takes longer until distances say anything: found on 32 and 384 of each. Those of 72 steps and more were
# tuned for no norm.
RACES: dict[Norm, dict[int, tuple[Lap, ...]]] = {
    "linf": _RACES,
    "l2": _RACES,
    "l1": {
        22: (Lap(2, 4),),
        36: (Lap(3, 5), Lap(2, 6)),
        72: (Lap(4, 8), Lap(2, 10)),
        150: (Lap(6, 10), Lap(3, 15)),
    },
}
# One that cannot be held up is several, towards these rivals in turn, with these shares of the steps.
SHARES: dict[Norm, dict[int, tuple[float, ...]]] = {
    "linf": {24: (0.6, 0.4), 72: (0.5, 0.25, 0.25)},
    "l2": {24: (0.6, 0.4), 36: (0.5, 0.3, 0.2), 72: (0.4, 0.25, 0.15, 0.1, 0.1)},
    "l1": {40: (0.6, 0.4), 76: (0.5, 0.25, 0.25)},
}


# Among at most so many features a search is easily led to a farther piece of the boundary, and takes few steps to get
# near one: random restarts of at least LONG steps are more of BRIEF there, and a share of the steps to settle. Found on
# tables of 2, 13, 30 and 64 features. Not for p = 1, where settling takes longer, nor on images.
FEW_FEATURES, LONG, BRIEF, SETTLING = 64, 40, 11, 0.15
# A brief search must lead to a point as much closer, since it has not settled.
CLEARLY = 0.99


class Effort(NamedTuple):
    """What is spent on a batch."""

    solver: str | Solver
    steps: int
    restarts: int
    rivals: int
    seed: int


def solve(problem: Problem, logits: Tensor, index: Tensor, effort: Effort, start: Start, tick: Tick) -> Best:
    """Run all searches of a batch and return the closest points.

    Args:
        problem: the batch.
        logits: of its inputs.
        index: of its examples, for their random draws.
        effort: how much to search, and how.
        start: points to start from, ``[N, D]``, inside the box; ``"random"``; or None.
        tick: called after every step.
    """
    (search, aims), best, restarts = searching(effort.solver), problem.nothing(), effort.restarts
    if isinstance(start, Tensor):
        best, restarts = search(problem, start, effort.steps, tick=tick, warm=True), restarts - 1
        if restarts == 0:
            return best
    # From outside its class an example looks at all rivals at once: nothing to aim at.
    comparing = aims and not problem.outside
    racing = comparing and effort.solver == "fast" and not isinstance(start, str)
    rivals = nearest_rivals(problem, logits, effort.rivals if comparing else 1)
    compared, others = rivals.values is not None, rivals.classes.shape[1]
    number = 0
    for restart in range(restarts):
        if number >= (others if compared else 1):
            if effort.solver == "fast" and _are_few(problem) and effort.steps >= LONG:
                return _briefly(problem, best, index, effort, range(restart, restarts), tick)
            begin = random_start(problem, best.distance, index, effort.seed, restart)
            best = best.closer(search(problem, begin, effort.steps, tick=tick))
            continue
        if laps := _race(problem.norm, effort.steps, others - number) if racing else ():
            entrants = [_entrant(problem, rivals, number + place) for place in range(laps[0].runners)]
            best = best.closer(race(problem, entrants, effort.steps, laps, tick))
            number += len(entrants)
            continue
        for steps in _parts(problem.norm, effort.steps, others - number) if comparing else (effort.steps,):
            begin, target, aiming, known = _entrant(problem, rivals, number)
            if start == "random" and number == 0:
                distance = rivals.distance if compared else distance_from_input(problem)
                begin, known = random_start(problem, plausible(problem, distance), index, effort.seed, restart), None
            aim = target if aiming else None
            best = best.closer(search(problem, begin, steps, target=aim, tick=tick, known=known))
            number += 1
    # Of the exact boundary, a search of ours that aims keeps the gradient against its target.
    aimed = (compared or number > 1) and isinstance(effort.solver, str)
    return problem.renew(best) if aimed and problem.boundary == "exact" else best


def _are_few(problem: Problem) -> bool:
    return problem.origin.shape[1] <= FEW_FEATURES and problem.norm != "l1" and not problem.outside


def _briefly(problem: Problem, best: Best, index: Tensor, effort: Effort, restarts: range, tick: Tick) -> Best:
    """Return the closest points after many brief searches from random points, instead of a few ``restarts``.

    Each looks nearer than the best point so far. The last steps begin at that one, and settle: they follow the largest
    rival, so that the gradients in the end are those of the margin function itself.
    """
    left = effort.steps * len(restarts)
    count = int((1 - SETTLING) * left) // BRIEF
    for restart in range(restarts.start, restarts.start + count):
        begin = random_start(problem, best.distance, index, effort.seed, restart)
        found = fast_search(problem, begin, BRIEF, tick=tick)
        best = found.where(found.distance < CLEARLY * best.distance, best)
    now = problem.evaluate(best.points)
    tick()
    best = problem.renewed(best, now)
    settling = left - BRIEF * count - 1
    return best.closer(fast_search(problem, best.points, settling, tick=tick, known=now, warm=True))


def _entrant(problem: Problem, rivals: Rivals, number: int) -> Entrant:
    """Return a search towards a rival; without a comparison the first follows the largest, whichever that is."""
    aiming = rivals.values is not None or number > 0
    return Entrant(rivals.start, rivals.classes[:, number], aiming, seen_from_start(problem, rivals, number))


def _race(norm: Norm, steps: int, rivals: int) -> tuple[Lap, ...]:
    """Return the laps of a search, with at most one runner for each rival that is left; none if it runs alone."""
    laps = next((laps for least, laps in reversed(RACES[norm].items()) if least <= steps), ())
    fitting = [lap._replace(runners=min(lap.runners, rivals)) for lap in laps]
    return tuple(lap for lap in fitting if lap.runners > 1)


def _parts(norm: Norm, steps: int, rivals: int) -> tuple[int, ...]:
    """Return the steps of each search that one restart is, at most one for each rival that is left."""
    fitting = [shares for least, shares in SHARES[norm].items() if least <= steps and len(shares) <= rivals]
    if not fitting:
        return (steps,)
    later = [round(share * steps) for share in fitting[-1][1:]]
    return steps - sum(later), *later
