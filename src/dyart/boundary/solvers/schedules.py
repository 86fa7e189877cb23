"""How the steps of a fast search change from its first evaluation to its last."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.problem import Problem

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
    """For p = 1: the overshoot of the last step, which ``move`` sets."""


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
# Searches of this many steps are too short to end in any special way.
FEW = 4
# For p = 1 the overshoot of steps that settle, where the function is straight; for more, see shrinking.py.
SETTLE = 1.001
# For p = 1 in many coordinates, after CUT_AFTER of the evaluations, all steps settle, and cut: they go beyond several
# linearisations at once (cuts.py). From the start they would be no better: the way to the right place is not convex.
# Found with 43 steps on 64 images of a natural ResNet-18. On 485 others margins become 2.6 % shorter, on 432 of a
# robust network they stay as they are.
CUT_AFTER = 0.43
CUT = Schedule(overshoot=(SETTLE, SETTLE), pull_back=(0.8, 0.97), threshold=(0.5, 0.2), memory=0.0)


class Pace(NamedTuple):
    """How many evaluations a search has in all, and the schedules of its steps."""

    evaluations: int
    cold: Schedule
    near: Schedule = WARM
    """Of the examples whose start is nearly right."""


def pace_of(problem: Problem, count: int, brief: Schedule = BRIEF) -> Pace:
    """Return the pace of ``count`` evaluations: with few of them there is no time to settle."""
    schedule = _cold(problem) if count >= SHORT else brief if count > FEW else BRIEF
    first, last = schedule.pull_back
    return Pace(count, schedule._replace(pull_back=(first, min(max(1 - 2 / count, first), last))))


def _cold(problem: Problem) -> Schedule:
    """Return the schedule of a search with time to settle."""
    return COLD_L1_MANY if problem.norm == "l1" and problem.origin.shape[1] >= MANY else COLD


def setting_of(problem: Problem, warm: bool | Tensor, pace: Pace, step: int) -> Setting:
    """Return the settings of the step after evaluation number ``step``; ``warm``: who began nearly right."""
    number = partial(problem.origin.new_full, ())
    if isinstance(warm, Tensor):
        pairs = zip(
            _numbers(pace.near, step, pace.evaluations), _numbers(pace.cold, step, pace.evaluations), strict=True
        )
        return Setting(*(torch.where(warm, number(near), number(far)) for near, far in pairs))
    numbers = _numbers(pace.near if warm else pace.cold, step, pace.evaluations)
    return Setting(*(map(number, numbers) if problem.compiled else numbers))


def first_cutting(problem: Problem, warm: bool | Tensor, pace: Pace) -> int:
    """Return the number of the first evaluation after which a step cuts: none does in a short or a warm search."""
    many = _cold(problem) is COLD_L1_MANY and pace.evaluations >= SHORT and warm is False
    return max(round(CUT_AFTER * pace.evaluations), 1) if many else pace.evaluations


def cutting_setting(step: int, first: int, pace: Pace) -> Setting:
    """Return the settings of the step after evaluation number ``step``; steps cut from number ``first`` on."""
    return Setting(*_numbers(CUT, step - first, pace.evaluations - first))


def _numbers(schedule: Schedule, step: int, count: int) -> tuple[float, float, float, float]:
    share = step / max(count - 2, 1)
    overshoot, pull_back = (begin + (end - begin) * share for begin, end in schedule[:2])
    begin, end = schedule.threshold
    return schedule.memory * (1 - step / count), overshoot, pull_back, begin * (end / begin) ** share
