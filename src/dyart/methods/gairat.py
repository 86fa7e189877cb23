"""GAIRAT: geometry-aware instance-reweighted adversarial training (Zhang et al., ICLR 2021).

    L = (1/n) sum_i w_i CE(z(x_i'), y_i),  x_i' = PGD within the radius around x_i, on the cross-entropy
    w_i = n v_i / sum_j v_j,  v_i = [1 + tanh(Lambda + 5 (1 - 2 kappa_i / K))] / 2

kappa_i counts PGD's K steps that x_i resists: examples close to the boundary, with a small kappa, weigh more. Until
the fraction ``begin`` of the training all weights are 1, which is adversarial training.

Paper and released code differ in kappa: the code counts all points x^(0) .. x^(K-1) of PGD's way that are classified
correctly (the default here), the paper the steps until the first error (``kappa="first-error"``). For an odd K the
code has floor(K / 2) in place of K / 2; for an even one they agree. The reweighting masks gradients: robust accuracy
under PGD is far above that under AutoAttack, so report the latter.
"""

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart.attacks.counted import COUNTS, Count, counted_pgd
from dyart.attacks.pgd import AttackNorm, Start, check_pgd
from dyart.attacks.radii import check_unit
from dyart.boundary import validation
from dyart.boundary.model import Model, logits_of
from dyart.boundary.validation import Bounds
from dyart.data import ranks
from dyart.data.loader import Batch
from dyart.methods.base import (
    Method,
    Metrics,
    accuracy,
    classification_loss,
    classification_losses,
    register,
    start_key,
)

SLOPE = 5.0


@register("gairat")
class GAIRAT(Method[tuple[Tensor, Tensor]]):
    """Adversarial training with weights by kappa. Cost: that of ``at``.

    In a loop of one's own, call ``advance`` with the fraction of training done; without it examples are weighted.

    Args:
        radius: of the ball.
        steps: of PGD.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"uniform"`` in the ball, ``"normal"`` close to the input, or the ``"input"``.
        shift: Lambda of the weights: the smaller, the fewer examples share the weight.
        begin: fraction of the training from which on examples are weighted.
        kappa: points of PGD's way that are classified correctly, all of them (``"correct"``, the released code) or
            those before the first error (``"first-error"``, the paper).
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    def __init__(
        self,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: Start = "uniform",
        shift: float = -1.0,
        begin: float = 0.5,
        kappa: Count = "correct",
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        check_pgd(radius, steps, step_size, norm, start)
        validation.check_choice("kappa", kappa, COUNTS)
        if not abs(shift) < float("inf"):
            raise ValueError(f"shift must be finite, got {shift}")
        if not 0 <= begin <= 1:
            raise ValueError(f"begin must be a fraction of the training from 0 to 1, got {begin}")
        self.radius, self.steps, self.step_size, self.norm, self.start = radius, steps, step_size, norm, start
        self.bounds = None if bounds is None else validation.as_pair(bounds)
        self.shift, self.begin, self.kappa = shift, begin, kappa
        self.advance(1.0)

    def advance(self, fraction: float) -> None:
        """Weight examples from the fraction ``begin`` on."""
        self.weighted = fraction >= self.begin

    @property
    def stage(self) -> Hashable:
        """Whether examples are weighted."""
        return self.weighted

    @property
    def couples(self) -> bool:
        """Weights are relative to those of the batch."""
        return self.weighted

    def check_settings(self) -> None:
        """Raise if the ball is larger than the box."""
        check_unit("radius", self.radius, self.norm, self.bounds)

    def craft(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the adversarial images and every example's kappa."""
        return counted_pgd(
            model,
            batch.inputs,
            batch.labels,
            self.radius,
            self.steps,
            self.step_size,
            count=self.kappa,
            norm=self.norm,
            start=self.start,
            key=start_key(batch, "at"),  # adversarial training's own: until ``begin`` this is its twin
            index=batch.index,
            bounds=self.bounds,
            compile=self.compiled,
        )

    def loss(self, model: Model, batch: Batch, crafted: tuple[Tensor, Tensor]) -> tuple[Tensor, Metrics]:
        """Return the weighted mean of the cross-entropy at the adversarial images.

        Metrics: ``adversarial_loss`` (without weights), ``adversarial_accuracy``, ``kappa`` (mean), ``weight_max``,
        and ``weight_effective``, the share of the batch that carries the weight: (sum w)^2 / (n sum w^2).
        """
        points, kappa = crafted
        logits = logits_of(model(points))
        plain = classification_loss(logits, batch)
        loss, weights = plain, torch.ones_like(kappa, dtype=torch.float32)
        if self.weighted:
            weights = self.weights(ranks.gathered(kappa, batch.shard))
            loss = (ranks.own(weights, batch.shard) * classification_losses(logits, batch)).mean()
        return loss, {
            "adversarial_loss": plain.detach(),
            "adversarial_accuracy": accuracy(logits, batch.labels),
            "kappa": kappa.float().mean(),
            "weight_max": weights.max(),
            "weight_effective": weights.mean().square() / weights.square().mean(),
        }

    def weights(self, kappa: Tensor) -> Tensor:
        """Return the weights of a batch with these kappa, ``[N]``, float32; their mean is 1."""
        exponent = self.shift + SLOPE * (1 - 2 * kappa.float() / self.steps)
        # (1 + tanh a) / 2 = sigmoid(2 a), and in logarithms, where a batch of examples far away has weights too.
        return len(kappa) * torch.softmax(F.logsigmoid(2 * exponent), dim=0)
