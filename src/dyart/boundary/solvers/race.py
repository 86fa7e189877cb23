"""Several searches, each towards a rival of its own; lap by lap, those that have come closest go on.

Which rival's part of the boundary is the closest shows after some steps, long before a search has settled.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.solvers.fast import Walk, move, set_out
from dyart.boundary.solvers.schedules import Pace, pace_of


class Entrant(NamedTuple):
    """A search that takes part."""

    start: Tensor
    """``[N, D]``, inside the box."""
    target: Tensor
    """The class to aim at, ``[N]``."""
    aiming: bool = True
    """Without an aim it follows the largest rival, whichever that is."""
    known: Evaluation | None = None
    """The evaluation at ``start``, if it is known: of all entrants or of none."""


class Lap(NamedTuple):
    """Some steps of the searches that are left."""

    runners: int
    """How many are left, example by example."""
    steps: int
    """Of each of them."""


def race(problem: Problem, entrants: Sequence[Entrant], steps: int, laps: Sequence[Lap], tick: Tick = no_tick) -> Best:
    """Return the closest points that any of them found.

    Cost: ``steps`` forward and backward passes: those of the laps for every runner, the rest for the closest one,
    example by example. No host synchronisation if ``problem.rounds`` is a number.

    Args:
        problem: the batch.
        entrants: as many as the first lap has runners.
        steps: gradient evaluations, more than those of the laps.
        laps: none with more runners than the one before.
        tick: called after every step.
    """
    at = int(entrants[0].known is not None)
    pace = pace_of(problem, steps + at - sum((lap.runners - 1) * lap.steps for lap in laps))
    walks: Iterable[Walk] = (_set_out(problem, entrant, pace) for entrant in entrants)
    for lap, left in zip(laps, [*(lap.runners for lap in laps[1:]), 1], strict=True):
        ahead: list[Walk] = []
        for walk in walks:
            walked = _walked(problem, walk, range(at, at + lap.steps), pace, tick)
            ahead = _closest([*ahead, walked], left)  # one by one: those that are out need no memory
        walks, at = ahead, at + lap.steps
    (winner,) = walks
    return _walked(problem, winner, range(at, pace.evaluations), pace, tick).best


def _set_out(problem: Problem, entrant: Entrant, pace: Pace) -> Walk:
    walk = set_out(problem, entrant.start, entrant.target)
    walk = walk if entrant.aiming else walk._replace(aim=torch.zeros_like(walk.aim))
    return walk if entrant.known is None else move(problem, walk, entrant.known, 0, pace)


def _walked(problem: Problem, walk: Walk, steps: range, pace: Pace, tick: Tick) -> Walk:
    for step in steps:
        now = problem.evaluate(walk.x, walk.target, walk.aim)
        tick()
        walk = move(problem, walk, now, step, pace)
    return walk


def _closest(walks: Sequence[Walk], count: int) -> list[Walk]:
    """Return ``count`` walks: one of the rows that have come closest, example by example, one of the next, and on."""
    if len(walks) <= count:
        return list(walks)
    order = torch.stack([walk.best.distance for walk in walks]).argsort(dim=0, stable=True)
    rows = torch.arange(order.shape[1], device=order.device)

    def pick(*parts: Any) -> list[Any]:  # noqa: ANN401
        return list(torch.stack(parts)[order[:count], rows]) if isinstance(parts[0], Tensor) else [parts[0]] * count

    leaves, form = zip(*map(tree_flatten, walks), strict=True)
    return [tree_unflatten(part, form[0]) for part in zip(*map(pick, *leaves), strict=True)]
