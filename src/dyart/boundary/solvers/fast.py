"""The fast boundary search: one gradient evaluation per step and no other pass.

A step linearises the margin function at the current point, projects both the point and the input onto the
hyperplane inside the box, and moves to a mixture of the two projections; a point found across the boundary is kept
if it is the closest so far, and the search goes on from its projection into a smaller ball around the input. The
next step's evaluation tests the new point, so that no pass is spent on testing alone.

For p = 1 the projections are corners of a ball: they jump from coordinate to coordinate, and a mixture of two of them
is no longer sparse. There a step goes along the gradient and shrinks all coordinates by a threshold instead, so far
that it reaches the hyperplane. The threshold falls over the search, and faster where steps do not get across; where the
function turns out to be straight it grows, up to the step to the corner. The search settles where the slopes of all
coordinates that have moved are equal. In many coordinates it does so with steps beyond several linearisations at once
(cuts.py).
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.kernels import compiled
from dyart.boundary.norms import Norm
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.projections import into_ball
from dyart.boundary.retiring import Retiring
from dyart.boundary.solvers.cuts import Cuts, first_cut, mixed, with_cut

Ends = tuple[float, float]


class Schedule(NamedTuple):
    """Settings of the steps, each changing from the first step to the last."""

    overshoot: Ends
    """Factor on the way to the hyperplane, above 1 to land across it."""
    pull_back: Ends
    """Radius of the ball after a crossing, in distances: small to look for a closer place, large to settle."""
    threshold: Ends
    """For p = 1: by how much a step shrinks every coordinate, in the largest displacement; falls geometrically."""
    memory: float
    """Share of the past in the normal of the hyperplane, falling to 0: gradients of a network differ from point to
    point, and their average is the better direction until the search settles."""


class Setting(NamedTuple):
    """The settings of one step: of all examples, or one each, ``[N]``.

    Tensors where the step is compiled, so that one compilation serves all.
    """

    memory: float | Tensor
    overshoot: float | Tensor
    pull_back: float | Tensor
    threshold: float | Tensor
    settle: float | Tensor = 1.0
    """For p = 1: the overshoot of the last steps, which ``move`` sets."""


COLD = Schedule(overshoot=(1.2, 1.005), pull_back=(0.4, 0.97), threshold=(0.3, 0.06), memory=0.6)
# For p = 1 in many coordinates a search looks farther: across the boundary, closer to the input, with sparser steps.
# Found with 28 evaluations on 384 pictures of 32 x 32 of a natural ResNet-18 and of a robust one, where margins become
# 2 to 3 % shorter. On small networks of fewer coordinates they would become longer, by up to 4 %.
COLD_L1_MANY = Schedule(overshoot=(1.4, 1.004), pull_back=(0.1, 0.97), threshold=(0.6, 0.06), memory=0.6)
MANY = 2000
# Searches of fewer evaluations than SHORT have no time to come back from far across the boundary.
SHORT = 15
BRIEF = Schedule(overshoot=(1.1, 1.005), pull_back=(0.3, 0.97), threshold=(0.3, 0.06), memory=0.4)
# For points that are trained on: steps land farther across, since in half precision values are a little off. Chosen on
# 3 x 160 images of a natural ResNet-18 with 8 steps; not for p = 1, where fewer points would be good.
CRAFTED = BRIEF._replace(overshoot=(1.06, 1.02))
# For a start that was right some steps of training ago: the search is not there to look far.
WARM = Schedule(overshoot=(1.03, 1.003), pull_back=(0.8, 0.95), threshold=(0.1, 0.06), memory=0.4)
# For a start that is right, all but the last per cent: it settles. Found on 59 images of a natural ResNet-18.
NEAR = Schedule(overshoot=(1.03, 1.001), pull_back=(0.9, 0.99), threshold=(0.1, 0.06), memory=0.6)
# The way along which the averaged normal must fall as fast as the gradient: |normal| ** this. For p = 1 few count.
WAY: dict[Norm, float] = {"linf": 0.0, "l2": 1.0, "l1": 9.0}
# How far the length of the averaged normal may be from the gradient's.
SCALES = (0.5, 2.0)
# In the end, points that can be drawn back by more than this share of their distance are; by how much of that.
DEEP, DRAW_BACK = 0.01, 0.9
# For p = 1, factors on the threshold. Where the linearisation was off by less than STRAIGHT of a step's change, it
# grows by GROWTH, up to MOST, with which a step goes to the closest point of the hyperplane. With every step that does
# not get across, it falls by FALL, down to LEAST: shrinking must not eat up the way gained.
STRAIGHT, GROWTH, MOST, FALL, LEAST = 0.02, 4.0, 1000.0, 0.5, 0.03
# The factor to begin with near a point that was found before, which few steps can follow only if they are sparse.
TRUSTED = 16.0
# For p = 1 the last step starts from the best point. Its overshoot: SETTLE and, where the function is curved, CURVED of
# the share of the whole fall by which the linearisation of the step before was too low, at most MOST_CURVED.
SETTLE, CURVED, MOST_CURVED = 1.001, 0.7, 0.5
# In many coordinates, after CUT_AFTER of the evaluations, all steps have an overshoot like that and cut: they go beyond
# several linearisations at once. From the start they would be no better: the way to the right place is not convex.
# Found with 43 steps on 64 images of a natural ResNet-18. On 64 others margins become 2 % shorter, on 48 of a robust
# network they stay as they are.
CUT_AFTER = 0.43
CUT = Schedule(overshoot=(SETTLE, SETTLE), pull_back=(0.8, 0.97), threshold=(0.5, 0.2), memory=0.0)
# Less than this share is rounding: the function is straight.
ROUNDING = 1e-5
# Searches of this many steps are too short to end in any special way.
FEW = 4


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
    trust: Tensor
    """Factors on the threshold, for p = 1."""
    normal: Tensor | None = None
    """Averaged over the steps so far."""
    before: tuple[Tensor, Evaluation] | None = None
    """The last evaluation, for p = 1."""
    cuts: Cuts | None = None
    """The latest linearisations, once steps cut."""


class Pace(NamedTuple):
    """How many evaluations a search has in all, and the schedules of its steps."""

    evaluations: int
    cold: Schedule
    near: Schedule = WARM
    """Of the examples whose start is nearly right."""


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
    return fast_search_from(problem, start, steps, target, tick, known, warm, schedule=NEAR)[0]


def fast_search_from(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    warm: bool | Tensor = False,
    retiring: Retiring | None = None,
    schedule: Schedule = WARM,
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
        schedule: of the examples whose start is nearly right.
        brief: of the others, in a short search (that is not too short for anything special).
    """
    pace = pace_of(problem, steps + (known is not None), brief)._replace(near=schedule)
    walk = set_out(problem, start, target, warm)
    first = known
    for step in range(pace.evaluations):
        now = known if step == 0 else None
        if now is None:
            now = problem.evaluate(walk.x, target, walk.aim)
            tick()
        first = first or now
        looked_at = walk.x
        walk = move(problem, walk, now, step, pace)
        if retiring is not None and step + 1 < pace.evaluations:
            problem, _, walk = retiring(looked_at, now, walk.best, walk)
            target = walk.target
            if len(walk.x) == 0:
                break
    assert first is not None
    return (walk.best if retiring is None else retiring.all(walk.best)), first


def set_out(problem: Problem, start: Tensor, target: Tensor | None = None, warm: bool | Tensor = False) -> Walk:
    """Return a search that begins at ``start``; for the arguments see ``fast_search_from``."""
    aim = torch.ones_like(problem.labels, dtype=torch.bool)
    trust = torch.ones_like(problem.origin[:, 0])
    trust = torch.where(warm, TRUSTED, trust) if isinstance(warm, Tensor) else trust * (TRUSTED if warm else 1.0)
    return Walk(start, target, aim, warm, problem.nothing(), trust)


def pace_of(problem: Problem, count: int, brief: Schedule = BRIEF) -> Pace:
    """Return the pace of ``count`` evaluations: with few of them there is no time to settle."""
    schedule = _cold(problem) if count >= SHORT else brief if count > FEW else BRIEF
    first, last = schedule.pull_back
    return Pace(count, schedule._replace(pull_back=(first, min(max(1 - 2 / count, first), last))))


def _cold(problem: Problem) -> Schedule:
    """Return the schedule of a search with time to settle."""
    return COLD_L1_MANY if problem.norm == "l1" and problem.origin.shape[1] >= MANY else COLD


def move(problem: Problem, walk: Walk, now: Evaluation, step: int, pace: Pace) -> Walk:
    """Return a search after evaluation number ``step``, counted from 0, which is ``now``."""
    if step + 1 == pace.evaluations:
        return walk._replace(best=walk.best.closer(problem.candidate(walk.x, now)))
    if (number := step - _first_cutting(problem, walk, pace)) >= 0:
        return _cut(problem, walk, now, Setting(*_numbers(CUT, number, pace.evaluations - step + number)))
    setting = _setting(problem, walk.warm, pace, step)
    ending = step + 2 == pace.evaluations > FEW  # the evaluation after this one is spent in a special way
    if problem.norm == "l1":
        if ending and walk.before is not None:
            setting = setting._replace(settle=SETTLE + CURVED * _curved(problem, *walk.before, walk.x, now))
        trust = walk.trust if walk.before is None else _trust(walk.trust, *walk.before, walk.x, now, walk.aim)
        setting = setting._replace(threshold=setting.threshold * trust)
        walk = walk._replace(trust=trust, before=(walk.x, now))
    take_step = compiled(_step) if problem.compiled and problem.norm != "l1" else _step
    past = now.gradient if walk.normal is None else walk.normal
    x, normal, best = take_step(problem, walk.x, now, past, walk.aim, walk.best, setting, ending)
    return walk._replace(x=x, normal=normal, best=best, aim=now.aimed)


def _first_cutting(problem: Problem, walk: Walk, pace: Pace) -> int:
    """Return the number of the first evaluation after which a step cuts: none does in a short or a warm search."""
    many = _cold(problem) is COLD_L1_MANY and pace.evaluations >= SHORT and walk.warm is False
    return max(round(CUT_AFTER * pace.evaluations), 1) if many else pace.evaluations


def _cut(problem: Problem, walk: Walk, now: Evaluation, setting: Setting) -> Walk:
    """Return a search after a step beyond the latest linearisations at once, for p = 1."""
    assert walk.before is not None
    origin, way, (start, then) = problem.origin, walk.x - problem.origin, walk.before
    cuts = first_cut(start - origin, then.followed, then.gradient) if walk.cuts is None else walk.cuts
    # Without an aim, another rival is another function.
    same = _same(problem, now, walk.aim) & (now.aimed | (now.rival == then.rival))
    short = _share_short(now.followed, cuts.at(way).amax(dim=1), cuts.offsets[:, -1])
    overshoot = setting.overshoot + CURVED * torch.where(same, short, 0.0)
    trust = _trust(walk.trust, start, then, walk.x, now, walk.aim)
    cuts = with_cut(cuts, way, now.followed, now.gradient, same)
    found = problem.candidate(walk.x, now)
    base = into_ball(way, setting.pull_back * found.distance, problem.norm)
    threshold = setting.threshold * trust * _unit(way, cuts.offsets[:, -1], now.gradient)
    offset, normal = mixed(problem, cuts._replace(offsets=overshoot[:, None] * cuts.offsets), base, threshold)
    moved = _usable(problem, origin + problem.shrink(base, normal, offset, threshold), now)
    best = walk.best.closer(found)
    return walk._replace(x=moved, best=best, aim=now.aimed, trust=trust, before=(walk.x, now), cuts=cuts)


def _setting(problem: Problem, warm: bool | Tensor, pace: Pace, step: int) -> Setting:
    number = partial(problem.origin.new_full, ())
    if isinstance(warm, Tensor):
        pairs = zip(
            _numbers(pace.near, step, pace.evaluations), _numbers(pace.cold, step, pace.evaluations), strict=True
        )
        return Setting(*(torch.where(warm, number(near), number(far)) for near, far in pairs))
    numbers = _numbers(pace.near if warm else pace.cold, step, pace.evaluations)
    return Setting(*(map(number, numbers) if problem.compiled else numbers))


def _numbers(schedule: Schedule, step: int, count: int) -> tuple[float, float, float, float]:
    share = step / max(count - 2, 1)
    overshoot, pull_back = (begin + (end - begin) * share for begin, end in schedule[:2])
    begin, end = schedule.threshold
    return schedule.memory * (1 - step / count), overshoot, pull_back, begin * (end / begin) ** share


def _step(
    problem: Problem, x: Tensor, now: Evaluation, past: Tensor, aim: Tensor, best: Best, setting: Setting, ending: bool
) -> tuple[Tensor, Tensor, Best]:
    """Return the next point, the normal of the hyperplane it was found with, and the best point so far.

    Tensor work alone, without a pass of the model: what a GPU runs as a few kernels when it is compiled.
    """
    found = problem.candidate(x, now)
    best = best.closer(found)
    normal = _average(past, now.gradient, _same(problem, now, aim), setting.memory)
    radius = setting.pull_back * found.distance  # infinite where nothing was crossed
    x = _advance(problem, x, now, _as_steep(normal, now.gradient, WAY[problem.norm]), setting, radius)
    return (_last(problem, x, best, setting) if ending else x), normal, best


def _same(problem: Problem, now: Evaluation, aim: Tensor) -> Tensor:
    """Return where the function followed is the one of the step before: no aim was given up.

    Examples outside their class head for a corner between rivals: their past gradients are of other pieces.
    """
    same = now.aimed == aim
    return same if problem.orientation is None else same & (problem.orientation > 0)


def _average(past: Tensor, gradient: Tensor, same: Tensor, memory: float | Tensor) -> Tensor:
    """Return the running average where the function followed is the ``same``; gradients that overflowed are left."""
    keep = (memory * (same & _finite(past)))[:, None]
    return torch.lerp(gradient, torch.nan_to_num(past, nan=0.0, posinf=0.0, neginf=0.0), keep.to(gradient.dtype))


def _as_steep(normal: Tensor, gradient: Tensor, power: float) -> Tensor:
    """Return the averaged normal, scaled to fall as fast as the gradient does on the shortest way across."""
    way = normal.sign()
    if power:
        largest = normal.abs().amax(dim=1, keepdim=True)
        way = way * (normal.abs() / torch.where(largest > 0, largest, 1.0)) ** power
    own, true = (normal * way).sum(dim=1, keepdim=True), (gradient * way).sum(dim=1, keepdim=True)
    return normal * torch.where(own > 0, true / torch.where(own > 0, own, 1.0), 1.0).clamp(*SCALES)


def _advance(problem: Problem, x: Tensor, now: Evaluation, normal: Tensor, setting: Setting, radius: Tensor) -> Tensor:
    origin = problem.origin
    base = origin + into_ball(x - origin, radius, problem.norm)
    if problem.norm == "l1":
        moved = origin + _shrunk(problem, base, x, now, normal, setting)
    else:
        # Both projections onto, and a little beyond, the boundary as linearised at x, at once.
        starts = torch.stack([base, origin])
        offset = now.followed + (starts - x).mul_(normal).sum(dim=-1)
        ways = problem.project(starts, normal, setting.overshoot * offset)
        near, far = (norm_of(way, problem.norm) for way in ways)
        share = (near / torch.where(near + far > 0, near + far, 1.0))[:, None]
        from_base, from_origin = ways.add_(starts)
        moved = torch.lerp(from_base, from_origin, share)
    return _usable(problem, moved, now)


def _usable(problem: Problem, moved: Tensor, now: Evaluation) -> Tensor:
    """Return points in the box; a gradient that overflowed says nothing: start again from the input."""
    usable = _finite(moved) & _finite(now.gradient)
    return problem.into_box(torch.where(usable[:, None], moved, problem.origin))


def _shrunk(problem: Problem, base: Tensor, x: Tensor, now: Evaluation, normal: Tensor, setting: Setting) -> Tensor:
    """Return a displacement near that of ``base`` across the boundary as linearised at ``x``, for p = 1."""
    way = x - problem.origin
    offset = now.followed - (normal * way).sum(dim=1)
    threshold = setting.threshold * _unit(way, offset, normal)
    return problem.shrink(base - problem.origin, normal, setting.overshoot * offset, threshold)


def _unit(way: Tensor, offset: Tensor, normal: Tensor) -> Tensor:
    """Return how far single coordinates go, ``[N]``; at the input, as far as the steepest alone would have to."""
    longest, steepest = way.abs().amax(dim=1), normal.abs().amax(dim=1)
    return torch.where(longest > 0, longest, offset.abs() / torch.where(steepest > 0, steepest, 1.0))


def _trust(trust: Tensor, start: Tensor, then: Evaluation, x: Tensor, now: Evaluation, aim: Tensor) -> Tensor:
    """Return the factor on the threshold, ``[N]``, after the step from ``start`` to ``x``."""
    change = then.gradient * (x - start)
    error = (now.followed - then.followed - change.sum(dim=1)).abs()
    straight = (error < STRAIGHT * change.abs().sum(dim=1)) & (now.aimed == aim)
    fallen = (FALL * trust.clamp(max=1)).clamp(min=LEAST)
    return torch.where(straight, (GROWTH * trust).clamp(max=MOST), torch.where(now.value < 0, 1.0, fallen))


def _curved(problem: Problem, start: Tensor, then: Evaluation, x: Tensor, now: Evaluation) -> Tensor:
    """Return by how much the linearisation at ``start`` was too low at ``x``, in the fall from the input, ``[N]``."""
    predicted = then.followed + (then.gradient * (x - start)).sum(dim=1)
    whole = then.followed - (then.gradient * (start - problem.origin)).sum(dim=1)
    return _share_short(now.followed, predicted, whole)


def _share_short(value: Tensor, predicted: Tensor, whole: Tensor) -> Tensor:
    """Return by how much of the ``whole`` fall a value is above the predicted one, ``[N]``: at most MOST_CURVED."""
    short = (value - predicted) / torch.where(whole == 0, 1.0, whole.abs())
    return torch.where(short > ROUNDING, short.clamp(max=MOST_CURVED), 0.0)


def _last(problem: Problem, x: Tensor, best: Best, setting: Setting) -> Tensor:
    """Return where one of the last evaluations is spent: at ``x``, or where the best point is improved more surely.

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
    back = DRAW_BACK * -best.value / torch.where(fall > 0, fall, 1.0)
    deep = found & (fall > 0) & (back > DEEP) & (back < 1)
    return problem.into_box(torch.where(deep[:, None], origin + (1 - back[:, None]) * way, x))


def _finite(rows: Tensor) -> Tensor:
    """Return which rows have finite entries only, ``[N]``: by their sums, 40 times as fast as entry by entry."""
    return rows.sum(dim=1).isfinite()
