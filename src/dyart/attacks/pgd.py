"""Projected gradient ascent within a ball (Madry et al. 2018): the inner loop of adversarial training.

The model is called as it is given: in eval mode for attacks with running statistics, in which case the caller sets it.
Every step is one forward and one backward pass to the inputs; static shapes, no host synchronisation.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart.boundary import norms
from dyart.boundary.kernels import compiled
from dyart.boundary.margins import at_least_float32, logit_margin
from dyart.boundary.model import Model, logits_of
from dyart.boundary.norms import Norm, per_row
from dyart.boundary.validation import Bounds, as_bounds, check_choice, check_count, check_positive
from dyart.data import draws

Start = Literal["uniform", "normal", "input"]
AttackNorm = Literal["linf", "l2"]
Objective = Callable[[Tensor, Tensor], Tensor]
Watch = Callable[[Tensor, Tensor], Tensor | None]


class BallSettings(TypedDict, total=False):
    """Arguments that ``pgd`` and its relatives take by name; ``pgd`` says what they mean."""

    norm: Norm
    key: int | Tensor
    index: Tensor | None
    bounds: Bounds
    noise: float
    compile: bool


class PGDSettings(BallSettings, total=False):
    """``BallSettings``, and what an attack on the KL divergence chooses for itself."""

    objective: Objective
    start: Start


STARTS: tuple[Start, ...] = ("uniform", "normal", "input")
ATTACK_NORMS: tuple[AttackNorm, ...] = ("linf", "l2")
NORMAL_START = 0.001


def check_pgd(
    radius: float, steps: int, step_size: float, norm: str, start: str, starts: Sequence[str] = STARTS
) -> None:
    """Raise unless these are settings of PGD that a method can train with."""
    check_positive("radius", radius)
    check_positive("step_size", step_size)
    check_count("steps", steps, 1)
    check_choice("norm", norm, ATTACK_NORMS)
    check_choice("start", start, starts)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of every example, ``[N]``."""
    return F.cross_entropy(logits, labels.long(), reduction="none")


def negative_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return minus the logit margin where the margin is positive, and 0 elsewhere, ``[N]``.

    So an example that is fooled stays where it is.
    """
    return -logit_margin(logits, labels).clamp(min=0)


def pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float | Tensor,
    steps: int = 10,
    step_size: float | Tensor | None = None,
    *,
    norm: Norm = "linf",
    objective: Objective = cross_entropy,
    start: Start = "uniform",
    key: int | Tensor = 0,
    index: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
    noise: float = 0.0,
    watch: Watch | None = None,
    compile: bool = False,
) -> Tensor:
    """Return points within ``radius`` of the inputs that raise the objective.

    Cost: ``steps`` forward and backward passes. The model runs in the mode it is in. The objective gets logits in
    float32 or better; points have the inputs' dtype.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        radius: one, or one per example ``[N]``.
        steps: passes; 0 returns the start.
        step_size: of a step, in the norm; None: 2.5 radii over the steps.
        norm: ``"linf"`` (steps along the gradient's sign) or ``"l2"`` (along the gradient).
        objective: from logits and labels to what every example raises.
        start: ``"uniform"`` in the ball, ``"normal"`` with deviation 0.001, or the ``"input"`` itself.
        key: of the draws of start and noise (see ``dyart.data.draws``).
        index: the examples' names in those draws; None: their place in the batch.
        bounds: the box: numbers, or tensors that broadcast to one example; None: no box.
        noise: deviation of what is added to every step, before it is brought back into ball and box.
        watch: is shown logits and labels at every point that a step begins from (not at the last one), and returns
            which examples take the step, ``[N]``; None: all. The others stay exactly where they are.
        compile: compile the steps' own tensor work: for a GPU.

    Raises:
        ValueError: unknown norm or start, negative steps, radius or noise.
    """
    check_choice("norm", norm, ATTACK_NORMS)
    check_choice("start", start, STARTS)
    check_count("steps", steps, 0)
    if not isinstance(radius, Tensor) and not 0 <= radius < math.inf:
        raise ValueError(f"radius must be finite and at least 0, got {radius}")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be finite and at least 0, got {noise}")
    inputs = inputs.detach()
    ball = _per_example(radius, inputs)
    stride = _per_example(2.5 * radius / max(steps, 1) if step_size is None else step_size, inputs)
    index = torch.arange(len(inputs), device=inputs.device) if index is None else index
    points = _into(inputs + _offset(inputs, ball, norm, start, key, index), inputs, ball, norm, bounds)
    climb = compiled(_climb) if compile else _climb
    usable: Tensor | None = None
    for step in range(steps):
        gradient, logits = _gradient_and_logits(model, points, labels, objective)
        usable = torch.zeros_like(gradient) if usable is None else usable  # as it lies in memory
        extra = noise * _step_noise(inputs, key, index, step) if noise else None
        moved, usable = climb(points, gradient, usable, inputs, ball, stride, norm, bounds, extra)
        moving = None if watch is None else watch(logits, labels)
        points = moved if moving is None else torch.where(per_row(moving, points), moved, points)
    return points


def _climb(
    points: Tensor,
    gradient: Tensor,
    usable: Tensor,
    inputs: Tensor,
    ball: Tensor,
    stride: Tensor,
    norm: Norm,
    bounds: Bounds,
    extra: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the points after one step, and its gradient: tensor work alone, without a pass of the model.

    Where the gradient is NaN, the last ``usable`` one is followed. For L2 also where it is infinite: such a gradient
    still has signs, which L-inf needs, but no direction.
    """
    lost = gradient.isnan() if norm == "linf" else ~gradient.isfinite()
    gradient = torch.where(lost, usable, gradient)
    moved = points + stride * steepest(gradient, norm)
    return _into(moved if extra is None else moved + extra, inputs, ball, norm, bounds), gradient


def _gradient_and_logits(model: Model, points: Tensor, labels: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        logits = at_least_float32(logits_of(model(points)))
        (gradient,) = torch.autograd.grad(objective(logits, labels).sum(), points)
    return gradient, logits.detach()


def _per_example(value: float | Tensor, inputs: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        # full, not tensor: no copy from the host, which a captured graph could not hold
        return torch.full((), float(value), dtype=inputs.dtype, device=inputs.device)
    return per_row(value.to(inputs.dtype), inputs)


def _offset(inputs: Tensor, ball: Tensor, norm: Norm, start: Start, key: int | Tensor, index: Tensor) -> Tensor:
    shape = tuple(inputs.shape[1:])
    if start == "input":
        return torch.zeros_like(inputs)
    if start == "normal":
        return NORMAL_START * draws.normal(key, index, shape).to(inputs.dtype)
    if norm == "linf":
        return ball * (2 * draws.uniform(key, index, shape) - 1).to(inputs.dtype)
    # Uniform in the ball: a direction, and the D-th root of a uniform draw for the length.
    direction = steepest(draws.normal(key, index, shape), norm)
    length = draws.uniform(key ^ 1, index).pow(1 / math.prod(shape))
    return ball * (_per_example(length, direction) * direction).to(inputs.dtype)


def _step_noise(inputs: Tensor, key: int | Tensor, index: Tensor, step: int) -> Tensor:
    stream = key ^ draws.key(0, "step noise", step)
    return draws.normal(stream, index, tuple(inputs.shape[1:])).to(inputs.dtype)


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """Return the direction of length 1, in L-inf or L2, along which a function rises fastest; 0 where it is flat."""
    if norm == "linf":
        return gradient.sign()
    length = norms.norm(gradient, "l2")
    return gradient / _per_example(length.clamp(min=torch.finfo(length.dtype).tiny), gradient)


def _into(points: Tensor, inputs: Tensor, ball: Tensor, norm: Norm, bounds: Bounds) -> Tensor:
    away = points - inputs
    if norm == "linf":
        away = torch.maximum(torch.minimum(away, ball), -ball)
    else:
        length = _per_example(norms.norm(away, "l2"), inputs)
        away = away * (ball / torch.maximum(length, ball))
        away = torch.where(ball > 0, away, 0.0)
    return clipped(inputs + away, bounds)


def clipped(points: Tensor, bounds: Bounds) -> Tensor:
    """Return points clipped to the bounds; no host synchronisation."""
    if bounds is None:
        return points
    low, high = bounds
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):  # torch 2.6 compiles no `int | float`
        return points.clamp(low, high)
    return points.clamp(*as_bounds(bounds, points, check=False))
