"""MAIL: margin-aware instance reweighting (Liu et al., NeurIPS 2021), on adversarial training and on TRADES.

    PM_i = max_{k != y} p_k(x_i') - p_y(x_i')                 from the training step's own pass, detached
    w_i  = 3 sigmoid(slope (PM_i + bias))                      released code, the default
    w_i  = n sigmoid(slope (PM_i + bias)) / sum_j sigmoid(..)  paper, with ``normalize``
    MAIL-AT:      L = (1/n) sum_i w_i CE(z(x_i'), y_i)
    MAIL-TRADES:  L = (1/n) sum_i CE(z(x_i), y_i) + (beta/n) sum_i w_i KL(p(x_i) || p(x_i'))

The paper's margin has the other sign. All weights are 1 until the fraction ``begin`` of the training is done (the
released code: 76 of 120 epochs). Attacks run in eval mode from a normal draw, on the cross-entropy and on the KL.
Slope and bias are those that the released code recommends, which are not its parser's defaults (1 and -1.5).
"""

import math
from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart.attacks.kl import RandomStart
from dyart.attacks.pgd import AttackNorm, Start
from dyart.boundary import validation
from dyart.boundary.margins import at_least_float32, logit_margin
from dyart.boundary.model import Model, logits_of
from dyart.boundary.validation import Bounds
from dyart.data import ranks
from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.base import Metrics, accuracy, classification_losses, logits_of_both, register
from dyart.methods.trades import TRADES

SCALE = 3.0


class Weighting:
    """The weights of MAIL, and from when on they count.

    Where nobody says how far the training is, they count.

    Args:
        slope: of the sigmoid.
        bias: added to the margin.
        begin: fraction of the training with weights 1.
        normalize: to a mean of 1 over the batch, instead of the factor 3.
    """

    def __init__(self, slope: float, bias: float, begin: float, normalize: bool) -> None:
        """Check and keep the settings."""
        validation.check_weight("slope", slope)
        if not math.isfinite(bias):
            raise ValueError(f"bias must be finite, got {bias}")
        if not 0 <= begin <= 1:
            raise ValueError(f"begin is a fraction of the training, from 0 to 1, got {begin}")
        self.slope, self.bias, self.begin, self.normalize = slope, bias, begin, normalize
        self.fraction = 1.0

    @property
    def active(self) -> bool:
        """Whether the weights count by now."""
        return self.fraction >= self.begin

    def __call__(self, logits: Tensor, labels: Tensor, shard: ranks.Shard | None = None) -> Tensor:
        """Return the weight of every example, ``[N]``, a constant, from its logits at the adversarial image.

        ``shard``: which examples of the batch these are.
        """
        margins = negative_probability_margin(logits.detach(), labels)
        if not self.active:
            return torch.ones_like(margins)
        scores = self.slope * (margins + self.bias)
        if self.normalize:  # as logarithms: with a steep slope every sigmoid of a batch may be below any float
            every = ranks.gathered(F.logsigmoid(scores), shard)
            return ranks.own(len(every) * F.softmax(every, dim=0), shard)
        return SCALE * scores.sigmoid()


class Weighted:
    """When the weights of MAIL count; the first base of a class, before the method that is weighted."""

    weighting: Weighting

    def advance(self, fraction: float) -> None:
        """Take note of how far the training is."""
        self.weighting.fraction = fraction

    @property
    def stage(self) -> Hashable:
        """Whether examples are weighted."""
        return self.weighting.active

    @property
    def couples(self) -> bool:
        """Weights are relative to those of the batch, if they are normalised."""
        return self.weighting.active and self.weighting.normalize


@register("mail-at")
class MAILAT(Weighted, AT):
    """Adversarial training with the weights of MAIL. Cost: that of ``at``.

    Args:
        slope: of the weights: how much more an example close to the boundary or beyond counts.
        bias: of the weights, added to the margin.
        begin: fraction of the training that is plain adversarial training.
        normalize: weights of mean 1 in the batch, as in the paper; False: three times the sigmoid, as released.
        radius: of the ball.
        steps: of PGD.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"normal"`` close to the input, ``"uniform"`` in the ball, or the ``"input"``.
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    def __init__(
        self,
        slope: float = 10.0,
        bias: float = -0.5,
        begin: float = 0.63,
        normalize: bool = False,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: Start = "normal",
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        super().__init__(radius, steps, step_size, norm, start, bounds=bounds)
        self.weighting = Weighting(slope, bias, begin, normalize)

    def loss(self, model: Model, batch: Batch, crafted: Tensor) -> tuple[Tensor, Metrics]:
        """Return the weighted mean cross-entropy at the adversarial images; ``adversarial_loss`` is without weights."""
        logits = logits_of(model(crafted))
        losses = classification_losses(logits, batch)
        weights = self.weighting(logits, batch.labels, batch.shard)
        metrics = {
            "adversarial_loss": losses.detach().mean(),
            "adversarial_accuracy": accuracy(logits, batch.labels),
            "weight": weights.mean(),
        }
        return (weights * losses).mean(), metrics


@register("mail-trades")
class MAILTRADES(Weighted, TRADES):
    """TRADES with the weights of MAIL on the divergence. Cost: that of ``trades``.

    Args:
        slope: of the weights: how much more an example close to the boundary or beyond counts.
        bias: of the weights, added to the margin.
        begin: fraction of the training that is plain TRADES.
        normalize: weights of mean 1 in the batch, as in the paper; False: three times the sigmoid, as released.
        beta: weight of the divergence.
        radius: of the ball.
        steps: of PGD.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"normal"`` close to the input, or ``"uniform"`` in the ball.
        joint: clean and adversarial images in one forward pass, so that BatchNorm sees them together. False: two
            passes, clean images first.
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    def __init__(
        self,
        slope: float = 2.0,
        bias: float = 0.0,
        begin: float = 0.63,
        normalize: bool = False,
        beta: float = 5.0,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: RandomStart = "normal",
        joint: bool = False,
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        super().__init__(beta, 0.0, radius, steps, step_size, norm, start, joint, bounds=bounds)
        self.weighting = Weighting(slope, bias, begin, normalize)

    def loss(self, model: Model, batch: Batch, crafted: Tensor) -> tuple[Tensor, Metrics]:
        """Return clean cross-entropy plus weighted divergences; ``kl`` is logged without weights and beta."""
        clean, adversarial = logits_of_both(model, batch.inputs, crafted, self.joint)
        weights = self.weighting(adversarial, batch.labels, batch.shard)
        loss, metrics = self._sum(clean, adversarial, batch, weights)
        return loss, metrics | {"weight": weights.mean()}


def negative_probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return max_{k != y} p_k - p_y of every example, ``[N]``, in [-1, 1]: positive where misclassified."""
    return -logit_margin(F.softmax(at_least_float32(logits), dim=1), labels)
