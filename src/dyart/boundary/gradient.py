"""The margin gradient (the paper's equation 6) as a loss that autograd differentiates correctly.

    grad_theta h(R) = h'(R) / lambda * grad_theta phi(x_hat, theta)

with x_hat the closest boundary point and lambda the multiplier of the distance problem: ||grad_x phi||_q without
a box.
"""

from typing import Literal

import torch
from torch import Tensor

from dyart.boundary.cost import Cost, cost_derivative, costs_of
from dyart.boundary.margins import boundary_value
from dyart.boundary.model import Model, logits_of
from dyart.boundary.points import BoundaryPoints

Reduction = Literal["mean", "sum", "none"]


def margin_loss(
    model: Model,
    found: BoundaryPoints,
    cost: Cost,
    reduction: Reduction = "mean",
    box_aware: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the cost of the margins, with the margin gradient as its gradient in the model's parameters.

    The value is (1/N) sum h(R), N all rows, also those without a point: they add nothing. The points are constants;
    only the model's value at them is differentiated.

    Cost: one forward pass at the points, in whatever mode the model is (BatchNorm included), and its backward pass
    when the loss is differentiated. Margins and weights are float32 or better.

    Args:
        model: the model that the points belong to.
        found: from ``closest_boundary_points``.
        cost: h, e.g. ``ExponentialCost``, or any callable (see ``Cost``).
        reduction: ``"mean"`` over all rows, ``"sum"``, or ``"none"`` for one value per row.
        box_aware: divide by the multiplier that leaves out coordinates pinned at a bound; False: the paper's
            ||grad_x phi||_q.
        mask: rows to use, ``[N]`` boolean, e.g. ``found.optimal``; the others count as rows without a point.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != found.found.shape):
        raise ValueError(
            f"mask must be boolean with one entry for each of the {len(found)} rows, as found.optimal is; got "
            f"{str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}"
        )
    logits = logits_of(model(found.points)) if len(found) else found.margin.new_zeros((0, 2), requires_grad=True)
    costs = margin_costs(logits, found, cost, mask, multiplier=found.multiplier(box_aware))
    if reduction == "none":
        return costs
    total = costs.sum()
    return total / max(len(found), 1) if reduction == "mean" else total


def margin_costs(
    logits: Tensor, found: BoundaryPoints, cost: Cost, mask: Tensor | None, multiplier: Tensor | None
) -> Tensor:
    """Return h(R) per row, ``[N]``, carrying the margin gradient through ``logits``, the output at the points."""
    weight, used = margin_weights(found, cost, mask, multiplier)
    # Not the result is masked but the logits: what is NaN or infinite in a row without a point has no gradient then.
    value = boundary_value(torch.where(used[:, None], logits, 0.0), found.labels, found.boundary, found.beta)
    height = torch.where(used, costs_of(cost, torch.where(used, found.margin, 0.0)), 0.0)
    return height.detach() + weight * (value - value.detach())  # zero in value, grad phi in gradient


def margin_weights(
    found: BoundaryPoints, cost: Cost, mask: Tensor | None = None, multiplier: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return h'(R) / lambda per row, ``[N]``, detached, and which rows have one; 0 for the others.

    ``multiplier`` is lambda; None: ``found.multiplier()``.
    """
    slope = found.multiplier() if multiplier is None else multiplier
    used = found.found & (slope > 0)
    if mask is not None:
        used = used & mask
    derivative = cost_derivative(cost, torch.where(used, found.margin, 0.0))
    return torch.where(used, derivative / torch.where(used, slope, 1.0), 0.0).detach(), used
