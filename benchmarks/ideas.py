"""Variants of DyART that were tried or are to be (docs/results/trials.md), and are no part of the package.

Methods of one's own as any other: `--method.name ideas:Aside`, where this folder can be imported from.
"""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart import DyART
from dyart.boundary.margins import boundary_value
from dyart.boundary.model import Model
from dyart.boundary.norms import dual_norm, flat, per_row
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.problem import Problem
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.data.ranks import gathered
from dyart.methods.base import Metrics, start_key
from ideas_weights import KEPT, Balanced, MiddleFirst, Sloped, refuse

__all__ = [
    "Aside",
    "Balanced",
    "Ensembled",
    "Friendly",
    "MiddleFirst",
    "ScaleFree",
    "Scattered",
    "Signed",
    "Sloped",
]

# Of the margin function at the input, in eval mode: where the way to a point falls by less, the fall is left as it is.
LEAST_FALL = 0.1
# Of a label's probability, where a margin is divided by it.
LEAST_BELIEF = 0.01


class Aside(DyART):
    """DyART with its two terms taken elsewhere, on the way to an example's boundary point or beyond it.

    Args:
        clean_radius: the cross-entropy is that of images this far away, as in AT, instead of clean ones.
        reach: boundary points that are nearer than this are moved out to it before the margin term raises them.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        clean_radius: float | None = None,
        reach: float | None = None,
        lam: float = 250.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        refuse(self, settings, "warm_start")  # the gradient at the input is needed
        super().__init__(lam=lam, steps=steps, **settings)
        self.clean_radius, self.reach = clean_radius, reach

    @property
    def _sloped(self) -> bool:
        return self.clean_radius is not None

    def _logits(self, model: Model, points: BoundaryPoints, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.clean_radius is not None:
            inputs = self._aside(points, self.clean_radius)
        if self.reach is not None:
            near = per_row(points.found & (points.margin < self.reach), inputs)
            moved = torch.where(near, self._aside(points, self.reach), points.points)
            points = dataclasses.replace(points, points=moved)
        return super()._logits(model, points, inputs)


class Friendly(DyART):
    """DyART whose divergence is taken just beyond the boundary, as FAT-TRADES does, instead of at one distance for all.

    Its place is on the way to the boundary point, ``beyond`` further than that or ``kl_radius`` away, whichever is
    nearer; of examples without a point, ``beyond`` down the slope.

    Args:
        kl: weight of the divergence.
        kl_radius: its largest distance.
        beyond: how far past the boundary.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        kl: float = 6.0,
        kl_radius: float = 8 / 255,
        beyond: float = 2 / 255,
        lam: float = 0.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(lam=lam, steps=steps, kl=kl, kl_radius=kl_radius, **settings)
        self.beyond = beyond

    def _aside(self, points: BoundaryPoints, radius: float | Tensor) -> Tensor:
        far = torch.where(points.found, points.margin, 0.0) + self.beyond
        return super()._aside(points, per_row(far.clamp(max=radius), points.inputs))


class Signed(DyART):
    """DyART whose margins go on below zero: an example outside its class is pulled back by the margin term, too.

    DyART gives such examples their cross-entropy alone, so that a boundary that moves into a class meets less
    resistance the further it comes. Here each has the signed margin Phi(x) / ||grad Phi(x)||, linear at the input,
    where the search evaluates both anyway: no further pass.

    Args:
        outside: weight of these examples beside those inside.
        depth: examples that are farther outside take no part, as those inside beyond r0 do not.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        outside: float = 0.25,
        depth: float = 16 / 255,
        lam: float = 250.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        refuse(self, settings, "warm_start")  # the gradient at the input is needed
        super().__init__(lam=lam, steps=steps, **settings)
        self.outside, self.depth = outside, depth
        self.at_inputs: Tensor | None = None

    @property
    def _sloped(self) -> bool:
        return True

    def _logits(self, model: Model, points: BoundaryPoints, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        logits = super()._logits(model, points, inputs)
        self.at_inputs = logits[1]
        return logits

    def loss(self, model: Model, batch: Batch, crafted: BoundaryPoints) -> tuple[Tensor, Metrics]:
        """Return DyART's loss and the term of the examples outside; logs their share, ``lost``."""
        loss, metrics = super().loss(model, batch, crafted)
        assert self.at_inputs is not None
        value = boundary_value(self.at_inputs, crafted.labels, self.boundary, self.beta)
        self.at_inputs = None
        slope = dual_norm(flat(crafted.gradient), self.norm)
        lost = ~crafted.inside & (slope > 0)
        slope = torch.where(lost, slope, 1.0)
        lost &= -crafted.input_value < self.depth * slope
        term = torch.where(lost, -value / slope, 0.0).sum() / len(batch)
        return loss + self.lam * self.outside * term, metrics | {"lost": lost.float().mean()}


class Ensembled(DyART):
    """DyART that believes a label as far as the network's own outputs over the epochs do (temporal ensembling).

    Of every training example the average of its output probabilities, at the clean image as it was augmented, is kept
    by its index: one number a class, and no further pass. In the engine, which knows examples by their index.

    Args:
        trust: share of that average in the targets of the cross-entropy; the label has the rest.
        confident: a margin weighs as much as the average gives its label.
        memory: share of the past in the average, at every epoch.
        begin: fraction of the training from which on all this counts.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        trust: float = 0.5,
        confident: bool = False,
        memory: float = 0.8,
        begin: float = 0.25,
        lam: float = 250.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        refuse(self, settings, *KEPT)
        super().__init__(lam=lam, steps=steps, **settings)
        self.trust, self.confident, self.memory, self.begin = trust, confident, memory, begin
        self.past: Tensor | None = None
        self.outputs: Tensor | None = None

    def prepare(self, examples: int, device: torch.device) -> None:
        """Make room for whether it has begun: on the device, so that no step is captured anew."""
        super().prepare(examples, device)
        self.begun = torch.zeros((), device=device)

    def check_settings(self) -> None:
        """Raise: outputs are kept by example."""
        raise ValueError(
            "Ensembled keeps the outputs of every example, and the engine alone tells a method which examples these "
            "are: dyart train RECIPE --method.name ideas:Ensembled"
        )

    def advance(self, fraction: float) -> None:
        """Begin when it is time."""
        super().advance(fraction)
        self.begun.fill_(float(fraction >= self.begin))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages."""
        return {} if self.past is None else {"past": self.past}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take them back, in place: what is captured reads them where they are."""
        if state:
            self._make_room(state["past"].shape[1])
            assert self.past is not None
            self.past.copy_(state["past"])

    def _make_room(self, classes: int) -> None:
        if self.past is None:
            self.past = torch.zeros((self.examples, classes), device=self.device)

    def _logits(self, model: Model, points: BoundaryPoints, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        logits = super()._logits(model, points, inputs)
        self.outputs = logits[1].detach()
        return logits

    def loss(self, model: Model, batch: Batch, crafted: BoundaryPoints) -> tuple[Tensor, Metrics]:
        """Return DyART's loss with softer targets; logs what the averages give the labels, ``believed``."""
        if batch.targets is not None:
            raise ValueError("Ensembled makes targets of its own: leave cutmix and label smoothing out")
        believed = torch.ones_like(crafted.margin)
        if self.past is not None:
            past, labels = self.past[batch.index], batch.labels.long()
            known = self.begun * (past.sum(dim=1) > 0)  # an example that was not met yet has none
            believed = torch.lerp(believed, past.gather(1, labels[:, None])[:, 0].to(believed), known.to(believed))
            targets = torch.lerp(F.one_hot(labels, past.shape[1]).to(past), past, self.trust * known[:, None])
            batch = dataclasses.replace(batch, targets=targets)
            if self.confident:  # a margin weighs one over the slope there
                steeper = crafted.gradient / per_row(believed.clamp(min=LEAST_BELIEF), crafted.gradient)
                crafted = dataclasses.replace(crafted, gradient=steeper)
        loss, metrics = super().loss(model, batch, crafted)
        self._keep(batch)
        return loss, metrics | {"believed": believed.mean()}

    def _keep(self, batch: Batch) -> None:
        assert self.outputs is not None
        self._make_room(self.outputs.shape[1])
        assert self.past is not None
        # Every process keeps them all: the next epoch's batches are divided otherwise.
        now, index = gathered(self.outputs.float().softmax(dim=1), batch.shard), gathered(batch.index, batch.shard)
        self.outputs, past = None, self.past[index]
        met = past.sum(dim=1, keepdim=True) > 0
        self.past[index] = torch.where(met, torch.lerp(now, past, self.memory), now)


class ScaleFree(DyART):
    """DyART, with its settings, whose margin term says nothing about the scale of the logits.

    A margin does not change when all logits grow. The term w Phi(x_hat), w < 0, has that in common with it only where
    Phi(x_hat) is 0: where a batch's statistics, or AWP, have moved the boundary away from the point, shrinking or
    raising all logits changes it. Here the logits at the point are divided by the fall of Phi on the way to it, and
    multiplied by the fall as it is now: the same value, without that part of the gradient; for the soft boundary, which
    is not quite in proportion to the logits, nearly without it. No further pass.
    """

    def _logits(self, model: Model, points: BoundaryPoints, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        at_points, at_inputs, aside = super()._logits(model, points, inputs)
        there, here = (
            boundary_value(logits, points.labels, self.boundary, self.beta) for logits in (at_points, at_inputs)
        )
        fall = here - there
        usable = points.found & (fall > LEAST_FALL * points.input_value)
        share = torch.where(usable, fall.detach() / torch.where(usable, fall, 1.0), 1.0)
        return at_points * share[:, None], at_inputs, aside


class Scattered(DyART):
    """DyART whose searches begin at random points beside the inputs, as in the paper's released code.

    From the input itself a search goes the same way as long as the network is the same. One forward pass more.

    Args:
        start: how far a coordinate may be from the input.
        lam: weight of the margin term.
        steps: of the search.
        settings: of DyART.
    """

    def __init__(
        self,
        start: float = 4 / 255,
        lam: float = 250.0,
        steps: int = 8,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        refuse(self, settings, "warm_start")  # it says where searches begin, too
        super().__init__(lam=lam, steps=steps, **settings)
        self.start = start

    def _begin(self, problem: Problem, batch: Batch) -> tuple[Tensor, bool] | None:
        if batch.index.ndim == 0:  # nobody says whose draws these are
            return None
        noise = 2 * draws.uniform(start_key(batch, "start"), batch.index, problem.origin.shape[1:]) - 1
        return problem.into_box(problem.origin + self.start * noise.to(problem.origin)), False
