"""Steps for p = 1: along the gradient, then every coordinate back by a threshold; how long, and how far across."""

import torch
from torch import Tensor

from dyart.boundary.norms import positive
from dyart.boundary.problem import Evaluation, Problem
from dyart.boundary.solvers.schedules import Setting

# Factors on the threshold. Where the linearisation was off by less than STRAIGHT of a step's change, it grows by
# GROWTH, up to MOST, with which a step goes to the closest point of the hyperplane. With every step that does not get
# across, it falls by FALL, down to LEAST: shrinking must not eat up the way gained.
STRAIGHT, GROWTH, MOST, FALL, LEAST = 0.02, 4.0, 1000.0, 0.5, 0.03
# The factor to begin with near a point that was found before, which few steps can follow only if they are sparse.
TRUSTED = 16.0
# The overshoot of steps that settle: a little (schedules.py) and, where the function is curved, CURVED of the share of
# the whole fall by which the linearisation of the step before was too low, at most MOST_CURVED.
CURVED, MOST_CURVED = 0.7, 0.5
# Less than this share is rounding: the function is straight.
ROUNDING = 1e-5


def shrunk(problem: Problem, base: Tensor, x: Tensor, now: Evaluation, normal: Tensor, setting: Setting) -> Tensor:
    """Return a displacement near that of ``base`` across the boundary as linearised at ``x``."""
    way = x - problem.origin
    offset = now.followed - (normal * way).sum(dim=1)
    threshold = setting.threshold * unit_of(way, offset, normal)
    return problem.shrink(base - problem.origin, normal, setting.overshoot * offset, threshold)


def unit_of(way: Tensor, offset: Tensor, normal: Tensor) -> Tensor:
    """Return how far single coordinates go, ``[N]``; at the input, as far as the steepest alone would have to."""
    longest, steepest = way.abs().amax(dim=1), normal.abs().amax(dim=1)
    return torch.where(longest > 0, longest, offset.abs() / positive(steepest))


def trust_after(trust: Tensor, start: Tensor, then: Evaluation, x: Tensor, now: Evaluation, aim: Tensor) -> Tensor:
    """Return the factor on the threshold, ``[N]``, after the step from ``start`` to ``x``."""
    change = then.gradient * (x - start)
    error = (now.followed - then.followed - change.sum(dim=1)).abs()
    straight = (error < STRAIGHT * change.abs().sum(dim=1)) & (now.aimed == aim)
    fallen = (FALL * trust.clamp(max=1)).clamp(min=LEAST)
    return torch.where(straight, (GROWTH * trust).clamp(max=MOST), torch.where(now.value < 0, 1.0, fallen))


def curved(problem: Problem, start: Tensor, then: Evaluation, x: Tensor, now: Evaluation) -> Tensor:
    """Return by how much the linearisation at ``start`` was too low at ``x``, in the fall from the input, ``[N]``."""
    predicted = then.followed + (then.gradient * (x - start)).sum(dim=1)
    whole = then.followed - (then.gradient * (start - problem.origin)).sum(dim=1)
    return share_short(now.followed, predicted, whole)


def share_short(value: Tensor, predicted: Tensor, whole: Tensor) -> Tensor:
    """Return by how much of the ``whole`` fall a value is above the predicted one, ``[N]``: at most MOST_CURVED."""
    short = (value - predicted) / torch.where(whole == 0, 1.0, whole.abs())
    return torch.where(short > ROUNDING, short.clamp(max=MOST_CURVED), 0.0)
