"""Several searches of a few steps, each towards a rival of its own; the one that has come closest goes on.

Which rival's part of the boundary is the closest shows after some steps, long before a search has settled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.solvers.fast import Pace, Walk, move, pace_of, set_out


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


def race(problem: Problem, entrants: Sequence[Entrant], steps: int, lap: int, tick: Tick = no_tick) -> Best:
    """Return the closest points that any of them found.

    Cost: ``steps`` forward and backward passes, ``lap`` for each entrant and the rest for the closest one, example by
    example. No host synchronisation if ``problem.rounds`` is a number.
    """
    free = int(entrants[0].known is not None)
    pace = pace_of(steps - lap * (len(entrants) - 1) + free)
    ahead: Walk | None = None
    for entrant in entrants:
        walk = set_out(problem, entrant.start, entrant.target)
        if not entrant.aiming:
            walk = walk._replace(aim=torch.zeros_like(walk.aim))
        walk = _walked(problem, walk, range(lap + free), pace, tick, entrant.known)
        ahead = walk if ahead is None else ahead.overtaken(walk)
    assert ahead is not None
    return _walked(problem, ahead, range(lap + free, pace.evaluations), pace, tick).best


def _walked(
    problem: Problem, walk: Walk, steps: range, pace: Pace, tick: Tick, known: Evaluation | None = None
) -> Walk:
    for step in steps:
        now, known = known, None
        if now is None:
            now = problem.evaluate(walk.x, walk.target, walk.aim)
            tick()
        walk = move(problem, walk, now, step, pace)
    return walk
