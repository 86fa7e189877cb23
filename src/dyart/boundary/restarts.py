"""Which class a search aims at, and where it begins."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.margins import boundary_value, closest_rival, rivals_by_logit
from dyart.boundary.norms import Norm, dual_norm, positive
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Evaluation, Problem

# Share of the margin function that may be left where a straight way to the boundary ends.
LEFT = 0.1
# So many rivals come first by their distance, the next by their logits, which find the right ones more often from there
# on. Found with the laps of races (multistart.py).
BY_DISTANCE: dict[Norm, int] = {"linf": 2, "l2": 2, "l1": 1}
# For p = 1 a search begins this far beside the input in every coordinate, in widths of the box: what the gradient at
# the input itself shows of single coordinates changes on the first step. Found with the schedule for p = 1.
BESIDE = 0.007
# A box that is more times as wide as an example's own values lie apart says nothing about them. Without one that does,
# no coordinate is taken to reach farther than that many times its value: features may have units of their own.
GENEROUS = 10.0


class Rivals(NamedTuple):
    """The classes to aim at, in order, and the boundary against each of them as seen from where searches begin."""

    classes: Tensor
    """``[N, M]``."""
    start: Tensor
    """``[N, D]``: the inputs, or points beside them where rivals were compared for p = 1."""
    logits: Tensor
    """``[N, K]``: there."""
    values: Tensor | None
    """``[M, N]``: margin against each there; None where nothing was compared."""
    gradients: Tensor | None
    """``[M, N, D]``."""
    distance: Tensor
    """``[N]``: of the input to the nearest, linearised; inf where nothing was compared."""


def nearest_rivals(problem: Problem, logits: Tensor, most: int) -> Rivals:
    """Return the ``most`` likeliest other classes, the two nearest by linearised distance first (for p = 1 one).

    With ``most`` = 1: the two likeliest, not compared.

    Cost: one forward and M backward passes, M = min(most, K - 1), and for p = 1 another forward pass; none for M = 1.

    Args:
        problem: the batch.
        logits: of its inputs.
        most: how many are compared.
    """
    rivals = rivals_by_logit(logits, problem.labels)[:, : max(most, 2)]
    if most == 1 or rivals.shape[1] == 1:
        far = torch.full_like(problem.origin[:, 0], torch.inf)
        return Rivals(rivals, problem.origin, logits, None, None, far)
    start = _beside(problem) if problem.norm == "l1" else problem.origin
    values, gradients, there = problem.linearise(start, rivals)
    margins = torch.stack([problem.against(logits, rival) for rival in rivals.unbind(dim=1)]).to(values.dtype)
    distance = _linearised(problem, margins, gradients)
    nearness = _nearness_l1(problem, margins, gradients, distance) if problem.norm == "l1" else distance
    order = nearness.argsort(dim=0, stable=True)
    first, others = order.split([count := BY_DISTANCE[problem.norm], len(order) - count])
    order = torch.cat([first, others.sort(dim=0).values])
    gradients = gradients.gather(0, order[:, :, None].expand_as(gradients))
    return Rivals(rivals.gather(1, order.T), start, there, values.gather(0, order), gradients, distance.amin(dim=0))


def seen_from_start(problem: Problem, rivals: Rivals, number: int) -> Evaluation | None:
    """Return what evaluating the start with the aim ``number`` would give, if it is known from the comparison.

    A start beside the input that is across already goes on aiming here; an evaluation would let it follow the class
    that it has crossed to.
    """
    if rivals.values is None or rivals.gradients is None:
        return None
    logits = rivals.logits
    value = boundary_value(logits, problem.labels, problem.boundary, problem.beta).to(problem.origin.dtype)
    correct = logits.argmax(dim=1) == problem.labels
    rival, aimed = closest_rival(logits, problem.labels), torch.ones_like(correct)
    return Evaluation(value, rivals.values[number], rivals.gradients[number], rival, correct, aimed)


def _beside(problem: Problem) -> Tensor:
    """Return points beside the inputs, ``[N, D]``, all moved alike: up here and down there, as if by chance."""
    origin = problem.origin
    bits = torch.arange(origin.shape[1], device=origin.device)
    for factor in (747796405, 277803737):  # multiplied and folded twice; whole numbers are the same on every device
        bits = (bits + 1) * factor % 2**32
        bits = bits ^ (bits >> 15)
    signs = torch.where(bits % 2 == 0, -1.0, 1.0).to(origin.dtype)
    span = _span(problem)
    width = torch.where(span.isfinite(), span, torch.minimum(_spread(problem), GENEROUS * origin.abs()))
    return problem.into_box(origin + BESIDE * width * signs)


def distance_from_input(problem: Problem) -> Tensor:
    """Return the linearised distance to the boundary, ``[N]``: one forward and one backward pass."""
    now = problem.evaluate(problem.origin)
    return _linearised(problem, now.followed[None], now.gradient[None])[0]


def _linearised(problem: Problem, values: Tensor, gradients: Tensor) -> Tensor:
    """Return how far the inputs are from pieces of the boundary as linearised, ``[M, N]``: inside the box.

    Where the box ends before a piece, the distance is extrapolated: the way's length times the whole value over the
    part of it that the way covers. Where there is no way, the piece is infinitely far.
    """
    rows = []
    for value, gradient in zip(values, gradients, strict=True):
        way, needed = problem.project(problem.origin, gradient, value), value.abs()
        fall = (way * gradient).sum(dim=1).abs()
        far = norm_of(way, problem.norm) * (needed / fall).clamp(min=1)
        rows.append(torch.where((fall > 0) & needed.isfinite(), far, torch.where(needed > 0, torch.inf, 0.0)))
    return torch.stack(rows)


def _without_box(values: Tensor, gradients: Tensor, norm: Norm) -> Tensor:
    slopes = dual_norm(gradients.flatten(0, 1), norm).reshape(values.shape)
    return values.abs() / slopes.clamp(min=torch.finfo(slopes.dtype).tiny)


def _nearness_l1(problem: Problem, values: Tensor, gradients: Tensor, distance: Tensor) -> Tensor:
    """Return numbers that are least for the nearest rival for p = 1, ``[M, N]``: one forward pass.

    The distance for p = 1 hangs on the slope of one coordinate, which on networks changes on the way. It counts where
    the shortest way to the nearest rival does lead to the boundary; elsewhere the distance for p = 2 says more.
    """
    rows, nearest = torch.arange(values.shape[1], device=values.device), distance.argmin(dim=0)
    step = problem.project(problem.origin, gradients[nearest, rows], values[nearest, rows])
    usable = step.isfinite().all(dim=1, keepdim=True)
    left = problem.value(problem.into_box(problem.origin + torch.where(usable, step, 0.0)))
    straight = left <= LEFT * values.amin(dim=0)
    return torch.where(straight, distance, _without_box(values, gradients, "l2"))


def random_start(problem: Problem, distance: Tensor, index: Tensor, seed: int, restart: int) -> Tensor:
    """Return a random point in the box, half of ``distance``, ``[N]``, away from the input, ``[N, D]``.

    Where the distance is infinite, the point lies up to a quarter of the box away; in every second restart, and without
    a box, of the spread of the input's own values, where these lie much closer together. The draw is a function of
    (seed, restart, index) for every example, on any device and in any chunk.
    """
    origin = problem.origin
    draws = [_draw(seed, restart, int(i), origin.shape[1]) for i in index.tolist()]
    noise = torch.stack(draws).to(origin)
    half_way = noise * (distance / 2 / norm_of(noise, problem.norm))[:, None]
    far = noise * (_extent(problem, math.inf if restart % 2 else GENEROUS)) / 4
    return problem.into_box(origin + torch.where(distance.isfinite()[:, None], half_way, far))


def plausible(problem: Problem, distance: Tensor) -> Tensor:
    """Return linearised distances, inf where they are larger than the box: nearly flat there, they say nothing."""
    extent = norm_of(_extent(problem).expand_as(problem.origin), problem.norm)
    return torch.where(distance < extent, distance, torch.inf)


def _draw(seed: int, restart: int, index: int, size: int) -> Tensor:
    # One stream per (seed, restart, example). The hash of a tuple mixes its numbers, which are not negative.
    mixed = hash((seed, restart, index)) & (2**63 - 1)
    generator = torch.Generator().manual_seed(mixed)
    return torch.rand(size, generator=generator) * 2 - 1


def _extent(problem: Problem, generous: float = GENEROUS) -> Tensor:
    """Return the width to think in, of every coordinate: that of the box, or the spread of an example's own values."""
    span = _span(problem, generous)
    return torch.where(span.isfinite(), span, _spread(problem))


def _spread(problem: Problem) -> Tensor:
    """Return how far the values of an example lie apart, ``[N, 1]``; of equal ones their size, 1 of zeros."""
    origin = problem.origin
    spread, size = origin.amax(dim=1) - origin.amin(dim=1), origin.abs().amax(dim=1)
    return torch.where(spread > 0, spread, positive(size))[:, None]


def _span(problem: Problem, generous: float = GENEROUS) -> Tensor:
    """Return the widths of the box, inf where it says nothing about the data: there is none, or a generous one."""
    if problem.low is None or problem.high is None:
        return torch.full_like(problem.origin[:, :1], torch.inf)
    span = problem.high - problem.low
    return torch.where(span <= generous * _spread(problem), span, torch.inf)
