"""How far along a direction the boundary is: bisection on the soft logit margin at temperature 1.

The margin is z_y - logsumexp_{k != y} z_k, positive where the label's probability is above one half. Every halving is
one forward pass; examples differ by masks, so that shapes are static and nothing waits for the device.
"""

import torch
from torch import Tensor

from dyart.attacks.pgd import clipped
from dyart.boundary.margins import at_least_float32, soft_logit_margin
from dyart.boundary.model import Model, logits_of
from dyart.boundary.norms import per_row
from dyart.boundary.validation import Bounds, check_count, check_positive


def half_probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the soft logit margin at temperature 1, positive where p_y > 1/2, ``[N]``."""
    return soft_logit_margin(logits, labels, 1.0)


def margin_bisection(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    directions: Tensor,
    cap: float,
    steps: int = 10,
    *,
    first: Tensor | None = None,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    """Return e in [0, cap] where the margin of ``inputs + e * directions`` changes its sign, ``[N]``.

    With one change of sign, from positive to negative, e is within ``cap / 2**steps`` of it. Where the margin is
    positive up to the cap, e is that close to the cap; where it is negative everywhere, that close to 0.

    Args:
        model: from inputs to logits, in eval mode; called ``steps`` times, without gradients.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        directions: like the inputs, of any length.
        cap: the largest e.
        steps: halvings.
        first: the e to try first, ``[N]``, at most the cap; None: half the cap.
        bounds: the box that every point is clipped to.

    Raises:
        ValueError: the cap is not positive, or there is no step.
    """
    check_positive("cap", cap)
    check_count("steps", steps, 1)
    inputs, directions = inputs.detach(), directions.detach()
    low = torch.zeros(len(inputs), dtype=at_least_float32(inputs).dtype, device=inputs.device)
    high = torch.full_like(low, cap)
    e = high / 2 if first is None else first.to(low.dtype)
    for _ in range(steps):
        inside = _margin(model, along(inputs, directions, e, bounds), labels) > 0
        low, high = torch.where(inside, e, low), torch.where(inside, high, e)
        e = (low + high) / 2
    return e


def along(inputs: Tensor, directions: Tensor, e: Tensor, bounds: Bounds = (0.0, 1.0)) -> Tensor:
    """Return ``inputs + e * directions`` with one e per example, clipped to the bounds."""
    points = inputs + per_row(e.to(inputs.dtype), inputs) * directions
    return clipped(points, bounds)


def inside(model: Model, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return which inputs have a positive margin: one forward pass, without gradients."""
    return _margin(model, inputs.detach(), labels) > 0


def _margin(model: Model, points: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return half_probability_margin(logits_of(model(points)), labels)
