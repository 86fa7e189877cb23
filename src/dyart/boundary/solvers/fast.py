"""The fast boundary search: one gradient evaluation per step and no other pass.

A step linearises the margin function at the current point, projects both the point and the input onto the
hyperplane inside the box, and moves to a mixture of the two projections; a point found across the boundary is kept
if it is the closest so far, and the search goes on from its projection into a smaller ball around the input. The
next step's evaluation tests the new point, so that no pass is spent on testing alone. Where a linearisation sees no
boundary on the way to the input, as on the flat sides of a saturated network, the step goes half of the way between the
latest point inside and the best one, for p = inf and 2.

For p = 1 the projections are corners of a ball: they jump from coordinate to coordinate, and a mixture of two of them
is no longer sparse. There a step goes along the gradient and shrinks all coordinates by a threshold instead, so far
that it reaches the hyperplane. The threshold falls over the search, and faster where steps do not get across; where the
function turns out to be straight it grows, up to the step to the corner. The search settles where the slopes of all
coordinates that have moved are equal. In many coordinates it does so with steps beyond several linearisations at once
(cuts.py).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.kernels import compiled
from dyart.boundary.norms import Norm, positive
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.projections import into_ball
from dyart.boundary.retiring import Retiring
from dyart.boundary.solvers.cuts import Cuts, first_cut, mixed, with_cut
from dyart.boundary.solvers.schedules import (
    BRIEF,
    FEW,
    NEAR,
    SETTLE,
    WARM,
    Pace,
    Schedule,
    Setting,
    cutting_setting,
    first_cutting,
    pace_of,
    setting_of,
)
from dyart.boundary.solvers.shrinking import CURVED, TRUSTED, curved, share_short, shrunk, trust_after, unit_of

# The way along which the averaged normal must fall as fast as the gradient: |normal| ** this. For p = 1 few count.
WAY: dict[Norm, float] = {"linf": 0.0, "l2": 1.0, "l1": 9.0}
# Of the way between two points with the boundary in between.
HALF = 0.5
# How far the length of the averaged normal may be from the gradient's.
SCALES = (0.5, 2.0)
# In the end, points that can be drawn back by more than this share of their distance are; by how much of that.
DEEP, DRAW_BACK = 0.01, 0.9


class Walk(NamedTuple):
    """A search under way, between two evaluations. Tensors have a row per example."""

    x: Tensor
    """Where the next evaluation is."""
    target: Tensor | None
    """The class to aim at."""
    aim: Tensor
    """Who does aim at it."""
    warm: bool | Tensor
    """Who began nearly right."""
    best: Best
    inner: Tensor
    """The latest point on the input's side of the boundary, or the input; for p = 1 always the input."""
    trust: Tensor
    """Factors on the threshold, for p = 1."""
    normal: Tensor | None = None
    """Averaged over the steps so far."""
    before: tuple[Tensor, Evaluation] | None = None
    """The last evaluation, for p = 1."""
    cuts: Cuts | None = None
    """The latest linearisations, once steps cut."""


class Bracket(NamedTuple):
    """Two points with the boundary in between."""

    best: Best
    inner: Tensor


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
        warm: ``start`` is nearly right: settle near it.
    """
    return fast_search_from(problem, start, steps, target, tick, known, warm, near=NEAR)[0]


def fast_search_from(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    warm: bool | Tensor = False,
    retiring: Retiring | None = None,
    near: Schedule = WARM,
    brief: Schedule = BRIEF,
) -> tuple[Best, Evaluation]:
    """Search as ``fast_search`` does, and also return the evaluation at the start.

    Args:
        problem: the batch.
        start: ``[N, D]``, inside the box.
        steps: gradient evaluations.
        target: a class to aim at.
        tick: called after every step.
        known: the evaluation at ``start``.
        warm: ``start`` is nearly right, for all examples or for some of them, ``[N]``.
        retiring: of the same problem: examples leave when it says so. Host synchronisation.
        near: schedule of the examples whose start is nearly right.
        brief: schedule of all other examples, in a short search (of more than ``FEW`` evaluations).
    """
    pace = pace_of(problem, steps + (known is not None), brief)._replace(near=near)
    walk = set_out(problem, start, target, warm)
    first = known
    for step in range(pace.evaluations):
        now = known if step == 0 else None
        if now is None:
            now = problem.evaluate(walk.x, walk.target, walk.aim)
            tick()
        first = first or now
        looked_at = walk.x
        walk = move(problem, walk, now, step, pace)
        if retiring is not None and step + 1 < pace.evaluations:
            problem, walk = retiring(looked_at, now, walk.best, walk)
            if len(walk.x) == 0:
                break
    assert first is not None
    return (walk.best if retiring is None else retiring.all(walk.best)), first


def set_out(problem: Problem, start: Tensor, target: Tensor | None = None, warm: bool | Tensor = False) -> Walk:
    """Return a search that begins at ``start``; for the arguments see ``fast_search_from``."""
    aim = torch.ones_like(problem.labels, dtype=torch.bool)
    trust = torch.ones_like(problem.origin[:, 0])
    trust = torch.where(warm, TRUSTED, trust) if isinstance(warm, Tensor) else trust * (TRUSTED if warm else 1.0)
    return Walk(start, target, aim, warm, problem.nothing(), problem.origin, trust)


def move(problem: Problem, walk: Walk, now: Evaluation, step: int, pace: Pace) -> Walk:
    """Return a search after evaluation number ``step``, counted from 0, which is ``now``."""
    if step + 1 == pace.evaluations:
        return walk._replace(best=walk.best.closer(problem.candidate(walk.x, now)))
    if step >= (first := first_cutting(problem, walk.warm, pace)):
        return _cut(problem, walk, now, cutting_setting(step, first, pace))
    setting = setting_of(problem, walk.warm, pace, step)
    ending = step + 2 == pace.evaluations > FEW  # the evaluation after this one is spent in a special way
    if problem.norm == "l1":
        if ending and walk.before is not None:
            setting = setting._replace(settle=SETTLE + CURVED * curved(problem, *walk.before, walk.x, now))
        trust = walk.trust if walk.before is None else trust_after(walk.trust, *walk.before, walk.x, now, walk.aim)
        setting = setting._replace(threshold=setting.threshold * trust)
        walk = walk._replace(trust=trust, before=(walk.x, now))
    take_step = compiled(_step) if problem.compiled and problem.norm != "l1" else _step
    walk = walk if walk.normal is not None else walk._replace(normal=now.gradient)
    x, normal, best, inner = take_step(problem, walk, now, setting, ending)
    return walk._replace(x=x, normal=normal, best=best, inner=inner, aim=now.aimed)


def _cut(problem: Problem, walk: Walk, now: Evaluation, setting: Setting) -> Walk:
    """Return a search after a step beyond the latest linearisations at once, for p = 1."""
    assert walk.before is not None
    origin, way, (start, then) = problem.origin, walk.x - problem.origin, walk.before
    cuts = first_cut(start - origin, then.followed, then.gradient) if walk.cuts is None else walk.cuts
    # Without an aim, another rival is another function.
    same = _same(problem, now, walk.aim) & (now.aimed | (now.rival == then.rival))
    short = share_short(now.followed, cuts.at(way).amax(dim=1), cuts.offsets[:, -1])
    overshoot = setting.overshoot + CURVED * torch.where(same, short, 0.0)
    trust = trust_after(walk.trust, start, then, walk.x, now, walk.aim)
    cuts = with_cut(cuts, way, now.followed, now.gradient, same)
    found = problem.candidate(walk.x, now)
    base = into_ball(way, setting.pull_back * found.distance, problem.norm)
    threshold = setting.threshold * trust * unit_of(way, cuts.offsets[:, -1], now.gradient)
    offset, normal = mixed(problem, cuts._replace(offsets=overshoot[:, None] * cuts.offsets), base, threshold)
    moved = _usable(problem, origin + problem.shrink(base, normal, offset, threshold), now)
    best = walk.best.closer(found)
    return walk._replace(x=moved, best=best, aim=now.aimed, trust=trust, before=(walk.x, now), cuts=cuts)


def _step(
    problem: Problem, walk: Walk, now: Evaluation, setting: Setting, ending: bool
) -> tuple[Tensor, Tensor, Best, Tensor]:
    """Return the next point, the normal of the hyperplane it was found with, and the best and inner points so far.

    Tensor work alone, without a pass of the model: what a GPU runs as a few kernels when it is compiled.
    """
    x, found = walk.x, problem.candidate(walk.x, now)
    assert walk.normal is not None
    normal = _average(walk.normal, now.gradient, _same(problem, now, walk.aim), setting.memory)
    inner = walk.inner if problem.norm == "l1" else torch.where((now.value < 0)[:, None], walk.inner, x)
    ends = Bracket(walk.best.closer(found), inner)
    radius = setting.pull_back * found.distance  # infinite where nothing was crossed
    moved = _advance(problem, x, now, _as_steep(normal, now.gradient, WAY[problem.norm]), setting, radius, ends)
    return (_last(problem, moved, ends.best, setting) if ending else moved), normal, *ends


def _same(problem: Problem, now: Evaluation, aim: Tensor) -> Tensor:
    """Return where the function followed is the one of the step before: no aim was given up.

    Examples outside their class head for a corner between rivals: their past gradients are of other pieces.
    """
    same = now.aimed == aim
    return torch.zeros_like(same) if problem.outside else same


def _average(past: Tensor, gradient: Tensor, same: Tensor, memory: float | Tensor) -> Tensor:
    """Return the running average where the function followed is the ``same``; gradients that overflowed are left."""
    keep = (memory * (same & _finite(past)))[:, None]
    return torch.lerp(gradient, torch.nan_to_num(past, nan=0.0, posinf=0.0, neginf=0.0), keep.to(gradient.dtype))


def _as_steep(normal: Tensor, gradient: Tensor, power: float) -> Tensor:
    """Return the averaged normal, scaled to fall as fast as the gradient does on the shortest way across."""
    way = normal.sign()
    if power:
        largest = normal.abs().amax(dim=1, keepdim=True)
        way = way * (normal.abs() / positive(largest)) ** power
    own, true = (normal * way).sum(dim=1, keepdim=True), (gradient * way).sum(dim=1, keepdim=True)
    return normal * torch.where(own > 0, true / positive(own), 1.0).clamp(*SCALES)


def _advance(
    problem: Problem, x: Tensor, now: Evaluation, normal: Tensor, setting: Setting, radius: Tensor, ends: Bracket
) -> Tensor:
    origin = problem.origin
    base = origin + into_ball(x - origin, radius, problem.norm)
    if problem.norm == "l1":
        moved = origin + shrunk(problem, base, x, now, normal, setting)
    else:
        # Both projections onto, and a little beyond, the boundary as linearised at x, at once.
        starts = torch.stack([base, origin])
        offset = now.followed + (starts - x).mul_(normal).sum(dim=-1)
        ways = problem.project(starts, normal, setting.overshoot * offset)
        near, far = (norm_of(way, problem.norm) for way in ways)
        share = (near / positive(near + far))[:, None]
        from_base, from_origin = ways.add_(starts)
        flat = ends.best.distance.isfinite() & (now.gradient.abs().amax(dim=1) == 0)
        blind = torch.where(now.value < 0, offset[1] <= 0, flat)[:, None]
        moved = torch.where(blind, _between(problem, setting, ends), torch.lerp(from_base, from_origin, share))
    return _usable(problem, moved, now)


def _between(problem: Problem, setting: Setting, ends: Bracket) -> Tensor:
    """Return points between the ends, for where a linearisation shows no boundary there.

    Where a network saturates it is nearly flat on either side of its boundary: from across, the input seems to be
    across as well, and from inside there may be no slope at all. Halving the way again and again finds the boundary.
    """
    best, inner = ends
    reach = problem.distance(inner)
    begun = (reach > 0) & (reach < best.distance)
    inner = torch.where(begun[:, None], inner, problem.origin)
    # Until a point inside is known, a search looks close to the input.
    share = torch.where(begun, HALF, (setting.pull_back * torch.ones_like(reach)).clamp(max=HALF))
    return torch.lerp(inner, best.points, share[:, None])


def _usable(problem: Problem, moved: Tensor, now: Evaluation) -> Tensor:
    """Return points in the box; a gradient that overflowed says nothing: start again from the input."""
    usable = _finite(moved) & _finite(now.gradient)
    return problem.into_box(torch.where(usable[:, None], moved, problem.origin))


def _last(problem: Problem, x: Tensor, best: Best, setting: Setting) -> Tensor:
    """Return where the last evaluation is spent: at ``x``, or where the best point is improved more surely.

    A best point well across the boundary is drawn back towards the input. For p = 1, where that would take coordinates
    off their bounds, the best point makes one more step, as little across the boundary as its curvature allows.
    """
    origin = problem.origin
    way = best.points - origin
    found = best.distance.isfinite()  # torch 2.6 cannot compile best.found, a property
    fall = -(best.gradient * way).sum(dim=1)
    if problem.norm == "l1":
        offset, threshold = setting.settle * (best.value + fall), setting.threshold * way.abs().amax(dim=1)
        way = problem.shrink(way, best.gradient, offset, threshold)
        usable = found & _finite(way)
        return problem.into_box(torch.where(usable[:, None], origin + way, x))
    back = DRAW_BACK * -best.value / positive(fall)
    deep = found & (fall > 0) & (back > DEEP) & (back < 1)
    return problem.into_box(torch.where(deep[:, None], origin + (1 - back[:, None]) * way, x))


def _finite(rows: Tensor) -> Tensor:
    """Return which rows have finite entries only, ``[N]``: by their sums, 40 times as fast as entry by entry."""
    return rows.sum(dim=1).isfinite()
