"""The fast boundary search: one gradient evaluation per step and no other pass.

A step linearises the margin function at the current point, projects both the point and the input onto the
hyperplane inside the box, and moves to a mixture of the two projections; a point found across the boundary is kept
if it is the closest so far, and the search goes on from its projection into a smaller ball around the input. The
next step's evaluation tests the new point, so that no pass is spent on testing alone.
"""

import torch
from torch import Tensor

from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.projections import into_ball

# Each setting changes linearly from the first step to the last.
# Factor on the way to the hyperplane, above 1 to land across it.
OVERSHOOT = (1.1, 1.005)
# Radius of the ball after a crossing, in distances: small at first, to look for a closer place; large in the end, to
# settle, and the larger the more steps there are (1 - 2 / steps).
PULL_BACK = (0.3, 0.95)
# For p = 1 the shortest step moves few coordinates, each to its bound, where the linearisation holds no more. Its
# steps are shortest for p = 1 + 1 / power instead; the ball, which cuts off short moves, makes the result sparse.
POWER = (1.0, 9.0)
# Where in these schedules a search begins that starts away from the input: it is not there to look far.
WARM = 0.7


def fast_search(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
) -> Best:
    """Search from ``start`` and return the closest point across the boundary.

    Cost: ``steps`` forward and backward passes. No host synchronisation if ``problem.rounds`` is a number.

    Args:
        problem: the batch.
        start: ``[N, D]``, inside the box.
        steps: gradient evaluations, at least 2: the first is spent on ``start``.
        target: aim at this class until another one is crossed to, ``[N]``. The gradients kept are of the margin
            against it then.
        tick: called after every step.
        known: the evaluation at ``start``, if it is known already: it is not counted as a step.
    """
    return fast_search_from(problem, start, steps, target, tick, known)[0]


def fast_search_from(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    begin: float = 0.0,
) -> tuple[Best, Evaluation]:
    """Search as ``fast_search`` does, and also return the evaluation at the start.

    ``begin`` says where in the schedule the search begins: ``WARM`` for a start that is nearly right.
    """
    count = steps + (known is not None)
    pull_back = (PULL_BACK[0], min(max(1 - 2 / count, PULL_BACK[0]), PULL_BACK[1]))
    x, best = start, problem.nothing()
    aim = torch.ones_like(problem.labels, dtype=torch.bool)
    first = known
    for step in range(count):
        if step == 0 and known is not None:
            now = known
        else:
            now = problem.evaluate(x, target, aim)
            tick()
        first = first or now
        best = best.closer(problem.candidate(x, now))
        aim = now.aimed
        if step + 1 < count:
            share = begin + (1 - begin) * step / max(count - 2, 1)
            settings = (_between(ends, share) for ends in (OVERSHOOT, pull_back, POWER))
            x = _advance(problem, x, now, *settings)
            if problem.norm == "l1" and step + 2 == count:
                x = torch.where(best.found[:, None], _sparse(problem, best), x)
    assert first is not None
    return best, first


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share


def _advance(problem: Problem, x: Tensor, now: Evaluation, overshoot: float, pull_back: float, power: float) -> Tensor:
    origin = problem.origin
    closer = origin + into_ball(x - origin, pull_back * problem.distance(x), problem.norm)
    base = torch.where((now.value < 0)[:, None], closer, x)
    if problem.norm == "l1":
        # The projections of base and input move different coordinates: a mixture would undo both.
        moved = base + _onto_boundary(problem, base, x, now, overshoot, power)
    else:
        from_base = _onto_boundary(problem, base, x, now, overshoot)
        from_origin = _onto_boundary(problem, origin, x, now, overshoot)
        near, far = norm_of(from_base, problem.norm), norm_of(from_origin, problem.norm)
        share = (near / torch.where(near + far > 0, near + far, 1.0))[:, None]
        moved = (1 - share) * (base + from_base) + share * (origin + from_origin)
    # A gradient that overflowed says nothing: start again from the input.
    usable = moved.isfinite().all(dim=1) & now.gradient.isfinite().all(dim=1)
    return problem.into_box(torch.where(usable[:, None], moved, origin))


def _onto_boundary(
    problem: Problem, origin: Tensor, x: Tensor, now: Evaluation, overshoot: float, power: float | None = None
) -> Tensor:
    """Return the displacement from ``origin`` onto, and a little beyond, the boundary as linearised at ``x``."""
    offset = now.followed + (now.gradient * (origin - x)).sum(dim=1)
    return problem.project(origin, now.gradient, overshoot * offset, power)


def _sparse(problem: Problem, best: Best) -> Tensor:
    """Return the input's shortest way, for p = 1, to the boundary as linearised at the best point."""
    offset = best.value - (best.gradient * (best.points - problem.origin)).sum(dim=1)
    moved = problem.origin + problem.project(problem.origin, best.gradient, OVERSHOOT[1] * offset)
    return problem.into_box(torch.where(moved.isfinite().all(dim=1, keepdim=True), moved, problem.origin))
