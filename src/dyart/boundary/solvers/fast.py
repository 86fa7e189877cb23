"""The fast boundary search: one gradient evaluation per step and no other pass.

A step linearises the margin function at the current point, projects both the point and the input onto the
hyperplane inside the box, and moves to a mixture of the two projections; a point found across the boundary is kept
if it is the closest so far, and the search goes on from its projection into a smaller ball around the input. The
next step's evaluation tests the new point, so that no pass is spent on testing alone.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dyart.boundary.norms import Norm
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.projections import into_ball

Ends = tuple[float, float]


class Schedule(NamedTuple):
    """Settings of the steps, each changing linearly from the first step to the last."""

    overshoot: Ends
    """Factor on the way to the hyperplane, above 1 to land across it."""
    pull_back: Ends
    """Radius of the ball after a crossing, in distances: small to look for a closer place, large to settle."""
    power: Ends
    """For p = 1 the shortest step moves few coordinates, each to its bound, where the linearisation holds no more.
    Its steps are shortest for p = 1 + 1 / power instead; the ball, which cuts off short moves, makes them sparse."""
    memory: float
    """Share of the past in the normal of the hyperplane, falling to 0: gradients of a network differ from point to
    point, and their average is the better direction until the search settles."""


class Setting(NamedTuple):
    """The settings of one step; tensors where the step is compiled, so that one compilation serves all."""

    memory: float | Tensor
    overshoot: float | Tensor
    pull_back: float | Tensor
    power: float


COLD = Schedule(overshoot=(1.2, 1.005), pull_back=(0.4, 0.97), power=(0.0, 0.0), memory=0.6)
# Searches of fewer evaluations than SHORT have no time to come back from far across the boundary.
SHORT = 15
BRIEF = Schedule(overshoot=(1.1, 1.005), pull_back=(0.15, 0.97), power=(0.0, 0.0), memory=0.4)
SPARSE = Schedule(overshoot=(1.1, 1.005), pull_back=(0.15, 0.97), power=(1.0, 9.0), memory=0.7)  # for p = 1
# For a start that is nearly right: the search is not there to look far.
WARM = Schedule(overshoot=(1.03, 1.003), pull_back=(0.8, 0.95), power=(9.0, 9.0), memory=0.4)
# How far the length of the averaged normal may be from the gradient's.
SCALES = (0.5, 2.0)
# In the end, points that can be drawn back by more than this share of their distance are; by how much of that.
DEEP, DRAW_BACK = 0.01, 0.9
# Searches of this many steps are too short to end in any special way.
FEW = 4


def fast_search(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    warm: bool = False,
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
        warm: ``start`` is nearly right: stay near it.
    """
    return fast_search_from(problem, start, steps, target, tick, known, warm)[0]


def fast_search_from(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    warm: bool = False,
) -> tuple[Best, Evaluation]:
    """Search as ``fast_search`` does, and also return the evaluation at the start."""
    count = steps + (known is not None)
    schedule = WARM if warm else _schedule(problem.norm, count)
    take_step = _compiled(_step) if problem.compiled and problem.norm != "l1" else _step
    x, best = start, problem.nothing()
    normal: Tensor | None = None
    aim = torch.ones_like(problem.labels, dtype=torch.bool)
    first = known
    for step in range(count):
        if step == 0 and known is not None:
            now = known
        else:
            now = problem.evaluate(x, target, aim)
            tick()
        first = first or now
        if step + 1 == count:
            best = best.closer(problem.candidate(x, now))
            break
        past = now.gradient if normal is None else normal
        setting = _setting(problem, schedule, step, count)
        ending = step + 2 == count and count > FEW
        x, normal, best = take_step(problem, x, now, past, aim, best, setting, ending)
        aim = now.aimed
    assert first is not None
    return best, first


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True)


def _setting(problem: Problem, schedule: Schedule, step: int, count: int) -> Setting:
    share = step / max(count - 2, 1)
    overshoot, pull_back, power = (begin + (end - begin) * share for begin, end in schedule[:3])
    power = {"linf": 0.0, "l2": 1.0, "l1": power}[problem.norm]
    memory = schedule.memory * (1 - step / count)
    if not problem.compiled:
        return Setting(memory, overshoot, pull_back, power)
    full = problem.origin.new_full
    return Setting(full((), memory), full((), overshoot), full((), pull_back), power)


def _step(
    problem: Problem, x: Tensor, now: Evaluation, past: Tensor, aim: Tensor, best: Best, setting: Setting, ending: bool
) -> tuple[Tensor, Tensor, Best]:
    """Return the next point, the normal of the hyperplane it was found with, and the best point so far.

    Tensor work alone, without a pass of the model: what a GPU runs as a few kernels when it is compiled.
    """
    best = best.closer(problem.candidate(x, now))
    normal = _average(past, now.gradient, _same(problem, now, aim), setting.memory)
    x = _advance(problem, x, now, _as_steep(normal, now.gradient, setting.power), setting)
    return (_last(problem, x, best) if ending else x), normal, best


def _schedule(norm: Norm, count: int) -> Schedule:
    """Return the schedule for ``count`` evaluations: with few of them there is no time to settle."""
    schedule = SPARSE if norm == "l1" else BRIEF if count < SHORT else COLD
    first, last = schedule.pull_back
    return schedule._replace(pull_back=(first, min(max(1 - 2 / count, first), last)))


def _same(problem: Problem, now: Evaluation, aim: Tensor) -> Tensor:
    """Return where the function followed is the one of the step before: no aim was given up.

    Examples outside their class head for a corner between rivals: their past gradients are of other pieces.
    """
    same = now.aimed == aim
    return same if problem.orientation is None else same & (problem.orientation > 0)


def _average(past: Tensor, gradient: Tensor, same: Tensor, memory: float | Tensor) -> Tensor:
    """Return the running average where the function followed is the ``same``; gradients that overflowed are left."""
    keep = memory * (same & _finite(past))[:, None]
    return gradient + keep * (torch.nan_to_num(past, nan=0.0, posinf=0.0, neginf=0.0) - gradient)


def _as_steep(normal: Tensor, gradient: Tensor, power: float) -> Tensor:
    """Return the averaged normal, scaled to fall as fast as the gradient does on the shortest way across."""
    way = normal.sign()
    if power:
        largest = normal.abs().amax(dim=1, keepdim=True)
        way = way * (normal.abs() / torch.where(largest > 0, largest, 1.0)) ** power
    own, true = (normal * way).sum(dim=1, keepdim=True), (gradient * way).sum(dim=1, keepdim=True)
    return normal * torch.where(own > 0, true / torch.where(own > 0, own, 1.0), 1.0).clamp(*SCALES)


def _advance(problem: Problem, x: Tensor, now: Evaluation, normal: Tensor, setting: Setting) -> Tensor:
    origin, overshoot = problem.origin, setting.overshoot
    radius = torch.where(now.value < 0, setting.pull_back * problem.distance(x), torch.inf)
    base = origin + into_ball(x - origin, radius, problem.norm)
    if problem.norm == "l1":
        # The projections of base and input move different coordinates: a mixture would undo both.
        moved = base + _onto_boundary(problem, base, x, now, normal, overshoot, setting.power)
    else:
        from_base = _onto_boundary(problem, base, x, now, normal, overshoot)
        from_origin = _onto_boundary(problem, origin, x, now, normal, overshoot)
        near, far = norm_of(from_base, problem.norm), norm_of(from_origin, problem.norm)
        share = (near / torch.where(near + far > 0, near + far, 1.0))[:, None]
        moved = (1 - share) * (base + from_base) + share * (origin + from_origin)
    # A gradient that overflowed says nothing: start again from the input.
    usable = _finite(moved) & _finite(now.gradient)
    return problem.into_box(torch.where(usable[:, None], moved, origin))


def _onto_boundary(
    problem: Problem,
    origin: Tensor,
    x: Tensor,
    now: Evaluation,
    normal: Tensor,
    overshoot: float | Tensor,
    power: float | None = None,
) -> Tensor:
    """Return the displacement from ``origin`` onto, and a little beyond, the boundary as linearised at ``x``."""
    offset = now.followed + (normal * (origin - x)).sum(dim=1)
    return problem.project(origin, normal, overshoot * offset, power)


def _last(problem: Problem, x: Tensor, best: Best) -> Tensor:
    """Return where the last evaluation is spent: at ``x``, or where the best point is improved more surely.

    A best point well across the boundary is drawn back towards the input. For p = 1 the others give way to the
    input's shortest way to the boundary as linearised at the best point, which is sparse.
    """
    origin = problem.origin
    way = best.points - origin
    fall = -(best.gradient * way).sum(dim=1)
    back = DRAW_BACK * -best.value / torch.where(fall > 0, fall, 1.0)
    deep = best.found & (fall > 0) & (back > DEEP) & (back < 1)
    if problem.norm == "l1":
        sparse = problem.project(origin, best.gradient, COLD.overshoot[1] * (best.value + fall))
        usable = best.found & sparse.isfinite().all(dim=1)
        x = torch.where(usable[:, None], origin + torch.where(usable[:, None], sparse, 0.0), x)
    return problem.into_box(torch.where(deep[:, None], origin + (1 - back[:, None]) * way, x))


def _finite(rows: Tensor) -> Tensor:
    """Return which rows have finite entries only, ``[N]``: by their sums, 40 times as fast as entry by entry."""
    return rows.sum(dim=1).isfinite()
