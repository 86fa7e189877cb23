"""Variants of DyART that give margins other weights (see ideas.py, by which they are named)."""

import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dyart import DyART
from dyart.boundary.gradient import margin_weights
from dyart.boundary.model import Model
from dyart.boundary.norms import per_row
from dyart.boundary.points import BoundaryPoints
from dyart.data.loader import Batch
from dyart.data.ranks import gathered
from dyart.methods.base import Metrics

# Of a weight beside the mean of its batch.
LEAST_FACTOR = 0.01
# Settings of DyART with a state, which a variant with a state of its own does not keep beside it.
KEPT = ("warm_start", "adaptive_steps")


def refuse(variant: DyART, settings: Mapping[str, Any], *names: str) -> None:
    """Raise where settings of DyART are switched on that a variant does without."""
    if given := [name for name in names if settings.get(name)]:
        raise ValueError(f"{type(variant).__name__} does not go with {' and '.join(given)}: leave it out")


class Balanced(DyART):
    """DyART whose margins push a boundary between two classes from both sides alike.

    A class with many examples near its boundary to another pushes it into that one, which has fewer examples left
    inside to push back. Here the weights of both sides of each pair of classes add up to the same, that of a running
    average over the steps. No further pass.

    Args:
        limit: the largest factor on a weight, and one over the least.
        memory: share of the past in the average, at every step.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        limit: float = 4.0,
        memory: float = 0.98,
        lam: float = 250.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        refuse(self, settings, *KEPT)
        super().__init__(lam=lam, steps=steps, **settings)
        self.limit, self.memory = limit, memory
        self.pushes: Tensor | None = None
        self.classes = 0

    @property
    def couples(self) -> bool:
        """Weights are relative to those of the batch, and of those before it."""
        return True

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average of the weights, by class and rival."""
        return {} if self.pushes is None else {"pushes": self.pushes}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it back, in place: what is captured reads it where it is."""
        if not state:
            return
        if self.pushes is None:
            self.pushes = torch.zeros_like(state["pushes"], device=self.device)
        self.pushes.copy_(state["pushes"])

    def _logits(self, model: Model, points: BoundaryPoints, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        logits = super()._logits(model, points, inputs)
        self.classes = logits[1].shape[1]
        return logits

    def loss(self, model: Model, batch: Batch, crafted: BoundaryPoints) -> tuple[Tensor, Metrics]:
        """Return DyART's loss with weights balanced; logs the mean ``factor`` of the used points."""
        used = self.kept(crafted) & (crafted.margin < self.r0)
        weights, used = margin_weights(crafted, self.cost, used, crafted.multiplier(self.box_aware))
        sides, rivals = batch.labels.long(), crafted.rival.clamp(min=0)
        factor = torch.ones_like(weights)
        if self.pushes is not None:
            even = (self.pushes + self.pushes.T) / 2
            # Where one side has not pushed yet, there is nothing to balance.
            both = (self.pushes > 0) & (self.pushes.T > 0)
            factors = torch.where(both, even / torch.where(both, self.pushes, 1.0), 1.0)
            factor = factors.clamp(1 / self.limit, self.limit)[sides, rivals].to(weights)
        steeper = crafted.gradient / per_row(factor, crafted.gradient)  # a margin weighs one over the slope there
        loss, metrics = super().loss(model, batch, dataclasses.replace(crafted, gradient=steeper))
        # Every process has the same average.
        taken = [gathered(tensor, batch.shard) for tensor in (weights.abs() * used, sides, rivals)]
        now = weights.new_zeros((self.classes, self.classes)).index_put_(tuple(taken[1:]), taken[0], accumulate=True)
        if self.pushes is None:
            self.pushes = now
        else:
            self.pushes.lerp_(now, 1 - self.memory)
        return loss, metrics | {"factor": (factor * used).sum() / used.sum().clamp(min=1)}


class Bump:
    """A cost whose slope is a bell: margins at its centre are raised first, small ones least. Not convex."""

    def __init__(self, centre: float, width: float) -> None:
        self.centre, self.width = centre, width

    def __call__(self, margin: Tensor) -> Tensor:
        """Return h(R), the integral of the bell from R on."""
        return math.sqrt(math.pi) / 2 * self.width * torch.erfc((margin - self.centre) / self.width)

    def derivative(self, margin: Tensor) -> Tensor:
        """Return h'(R)."""
        return -torch.exp(-(((margin - self.centre) / self.width) ** 2))


class MiddleFirst(DyART):
    """DyART with weights that favour margins near one size, against the paper's condition that small ones come first.

    Args:
        centre: that size.
        width: of the bell around it; at this distance weights have fallen to 37 %.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART; its alpha has no effect.
    """

    def __init__(
        self,
        centre: float = 10 / 255,
        width: float = 5 / 255,
        lam: float = 350.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the cost is not convex")
            super().__init__(lam=lam, steps=steps, cost=Bump(centre, width), **settings)


class Sloped(DyART):
    """DyART whose margins weigh more the steeper the network is at their boundary point.

    The margin gradient divides by that slope, so that flat examples, often those that no network gets right, move the
    weights most; cross-entropy at an adversarial image does not divide. Here weights are multiplied by a power of the
    slope, over its mean in the batch: with 1 nothing is left of the division but its mean.

    Args:
        power: of the slope; 0: DyART.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        power: float = 1.0,
        lam: float = 250.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(lam=lam, steps=steps, **settings)
        self.power = power

    @property
    def couples(self) -> bool:
        """Weights are relative to those of the batch."""
        return True

    def loss(self, model: Model, batch: Batch, crafted: BoundaryPoints) -> tuple[Tensor, Metrics]:
        """Return DyART's loss with other weights."""
        used = self.kept(crafted) & (crafted.margin < self.r0)
        slope = torch.where(used, crafted.multiplier(self.box_aware), 0.0)
        total, count = (gathered(rows, batch.shard).sum() for rows in (slope.pow(self.power) * used, used.to(slope)))
        mean = total / count.clamp(min=1)
        factor = torch.where(used, slope.pow(self.power), mean) / torch.where(mean > 0, mean, 1.0)
        steeper = crafted.gradient / per_row(factor.clamp(min=LEAST_FACTOR), crafted.gradient)  # weights are 1 / slope
        return super().loss(model, batch, dataclasses.replace(crafted, gradient=steeper))
