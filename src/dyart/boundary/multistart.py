"""All searches of one batch: which class each aims at, where it starts, and how many steps it gets."""

from typing import NamedTuple

from torch import Tensor

from dyart.boundary.norms import Norm
from dyart.boundary.problem import Best, Problem, Tick
from dyart.boundary.restarts import distance_from_input, nearest_rivals, plausible, random_start, seen_from_input
from dyart.boundary.solvers import AIMING, SOLVERS
from dyart.boundary.validation import Start

# A search of this many steps and more is several, towards the nearest rivals in turn, with these shares of the steps:
# more steps towards the first would gain less. Found on 32 images of a robust ResNet-18 and 32 of a natural one. For
# p = 1 a search needs more steps of its own; for p = 2 more rivals are about equally far.
SHARES: dict[Norm, dict[int, tuple[float, ...]]] = {
    "linf": {24: (0.6, 0.4), 72: (0.5, 0.25, 0.25)},
    "l2": {24: (0.6, 0.4), 36: (0.5, 0.3, 0.2), 72: (0.4, 0.25, 0.15, 0.1, 0.1)},
    "l1": {40: (0.6, 0.4), 76: (0.5, 0.25, 0.25)},
}


class Effort(NamedTuple):
    """What is spent on a batch."""

    solver: str
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
    search, best, restarts = SOLVERS[effort.solver], problem.nothing(), effort.restarts
    if isinstance(start, Tensor):
        best, restarts = search(problem, start, effort.steps, tick=tick, warm=True), restarts - 1
        if restarts == 0:
            return best
    aiming = effort.solver in AIMING
    rivals = nearest_rivals(problem, logits, effort.rivals if aiming else 1)
    compared, others = rivals.values is not None, rivals.classes.shape[1]
    number = 0
    for restart in range(restarts):
        if number >= (others if compared else 1):
            begin = random_start(problem, best.distance, index, effort.seed, restart)
            best = best.closer(search(problem, begin, effort.steps, tick=tick))
            continue
        for steps in _parts(problem, effort.steps, others - number) if aiming else (effort.steps,):
            # Without a comparison the first search follows the largest rival, whichever that is.
            target = rivals.classes[:, number] if compared or number else None
            begin, known = problem.origin, seen_from_input(problem, logits, rivals, number)
            if start == "random" and number == 0:
                distance = rivals.distance if compared else distance_from_input(problem)
                begin, known = random_start(problem, plausible(problem, distance), index, effort.seed, restart), None
            best = best.closer(search(problem, begin, steps, target=target, tick=tick, known=known))
            number += 1
    # Of the exact boundary, a search that aims keeps the gradient against its target.
    aimed = compared or number > 1
    return problem.renew(best) if aimed and problem.boundary == "exact" else best


def _parts(problem: Problem, steps: int, rivals: int) -> tuple[int, ...]:
    """Return the steps of each search that one restart is, at most one for each rival that is left."""
    # From outside its class an example looks at all rivals at once: nothing to aim at.
    by_steps = SHARES[problem.norm].items()
    fitting = [shares for least, shares in by_steps if least <= steps and len(shares) <= rivals]
    if not fitting or problem.orientation is not None:
        return (steps,)
    later = [round(share * steps) for share in fitting[-1][1:]]
    return steps - sum(later), *later
