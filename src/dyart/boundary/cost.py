"""Cost functions h of the margin, and the check of what the paper asks of them (section 5.1)."""

import math
import warnings
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dyart.boundary.model import ordinary


@runtime_checkable
class Cost(Protocol):
    """A cost h(R) of a margin R, elementwise.

    Any callable will do. One with a method ``derivative(margin)`` gives h' itself; for the others
    h' is computed by autograd.
    """

    def __call__(self, margin: Tensor) -> Tensor:
        """Return h(R), same shape as ``margin``."""
        ...


@dataclass(frozen=True)
class ExponentialCost:
    """The paper's cost: h(R) = exp(-alpha R) / alpha below the threshold r0, and 0 beyond.

    ``alpha = 0`` is the linear limit h(R) = r0 - R: all margins below r0 count the same.

    Args:
        alpha: how strongly small margins come first, at least 0.
        r0: margins from here on cost nothing, positive.
    """

    alpha: float = 3.0
    r0: float = 16 / 255

    def __post_init__(self) -> None:
        """Reject values for which h is not a cost."""
        if not (self.alpha >= 0 and math.isfinite(self.alpha)):
            raise ValueError(f"alpha must be finite and at least 0, got {self.alpha}")
        if not self.r0 > 0:
            raise ValueError(f"r0 must be positive, got {self.r0}")
        if self.alpha == 0 and math.isinf(self.r0):
            raise ValueError("alpha = 0 needs a finite r0: the linear cost is r0 - R")

    def __call__(self, margin: Tensor) -> Tensor:
        """Return h(R)."""
        cost = torch.exp(-self.alpha * margin) / self.alpha if self.alpha > 0 else self.r0 - margin
        return torch.where(margin < self.r0, cost, 0.0)

    def derivative(self, margin: Tensor) -> Tensor:
        """Return h'(R) = -exp(-alpha R) below r0, 0 beyond."""
        return torch.where(margin < self.r0, -torch.exp(-self.alpha * margin), 0.0)


def costs_of(cost: Cost, margin: Tensor) -> Tensor:
    """Return h(R), one for every margin.

    Raises:
        ValueError: the cost returns something else, e.g. their mean, whose derivative would be N times too small.
    """
    return _elementwise("the cost", cost(margin), margin)


def cost_derivative(cost: Cost, margin: Tensor) -> Tensor:
    """Return h'(R): the cost's own ``derivative`` if it has one, else by autograd."""
    own = getattr(cost, "derivative", None)
    if own is not None:
        return _elementwise("the cost's derivative", own(margin), margin)
    with torch.inference_mode(False), torch.enable_grad():
        margin = ordinary(margin).requires_grad_()
        total = costs_of(cost, margin).sum()
        if not total.requires_grad:
            return torch.zeros_like(margin)
        (gradient,) = torch.autograd.grad(total, margin, allow_unused=True)
    return torch.zeros_like(margin) if gradient is None else gradient


def _elementwise(name: str, values: Tensor, margin: Tensor) -> Tensor:
    if values.ndim == 0 and not values.requires_grad:
        return values.expand_as(margin)  # a constant
    if values.shape != margin.shape:
        raise ValueError(
            f"{name} is of every single margin: for margins of shape {tuple(margin.shape)} it returned "
            f"{tuple(values.shape)}. Leave out .mean() or .sum(): the loss takes the mean itself"
        )
    return values


def check_cost(cost: Cost, r0: float, samples: int = 256) -> bool:
    """Warn unless h' <= 0, somewhere less, and h' is non-decreasing on (0, r0); return whether all hold.

    The paper asks for it: a decreasing h makes small margins costly, and a convex h makes the boundary
    move away from the smallest margins first.
    """
    if not callable(cost):
        raise TypeError(f"a cost is a function of margins, e.g. dyart.ExponentialCost(3, r0), got {cost!r}")
    if not (r0 > 0 and math.isfinite(r0)):
        raise ValueError(f"r0 must be positive and finite, got {r0}: it ends the interval that is checked")
    margin = torch.linspace(0, r0, samples + 2, dtype=torch.float64)[1:-1]
    slope = cost_derivative(cost, margin)
    slack = 1e-9 * float(slope.abs().max())
    decreasing = bool((slope <= slack).all())
    convex = bool((slope.diff() >= -slack).all())
    flat = not bool(slope.any())
    if flat:
        warnings.warn(
            f"the cost does not change on (0, {r0:g}), or not by operations that autograd sees: no margin would be "
            "trained (h' must be negative)",
            stacklevel=2,
        )
    if not decreasing:
        warnings.warn(
            f"the cost increases with the margin somewhere on (0, {r0:g}): minimising it pulls the decision "
            "boundary towards those examples (h' must be negative)",
            stacklevel=2,
        )
    if not convex:
        warnings.warn(
            f"the cost is not convex on (0, {r0:g}): small margins are no longer raised first, so that the "
            "boundary may move towards vulnerable examples while the cost falls (conflicting dynamics)",
            stacklevel=2,
        )
    return decreasing and convex and not flat
