"""TRADES (Zhang et al., ICML 2019).

L = (1/n) sum_i CE(z(x_i), y_i) + (beta/n) sum_i KL(p(x_i) || p(x_i')),  x_i' = PGD within the radius on the same KL

Gradients flow through both arguments of the KL. The attack runs in eval mode. The paper's first term has no label
smoothing and its released attack starts from a normal draw, the defaults here; Gowal et al. (2020) smooth with 0.1 and
start uniformly. The released code passes the clean images through the network a second time, after the adversarial
ones: the same loss and gradient, but BatchNorm's running statistics see them twice; that pass is left out.
"""

import torch.nn.functional as F
from torch import Tensor

from dyart.attacks.kl import RANDOM_STARTS, RandomStart, kl_divergence, kl_pgd
from dyart.attacks.pgd import AttackNorm, check_pgd
from dyart.attacks.radii import check_unit
from dyart.boundary import validation
from dyart.boundary.margins import at_least_float32
from dyart.boundary.model import Model
from dyart.boundary.validation import Bounds
from dyart.data.loader import Batch
from dyart.methods.base import Method, Metrics, accuracy, classification_loss, logits_of_both, register, start_key


@register("trades")
class TRADES(Method[Tensor]):
    """TRADES. Cost: ``steps + 1`` forward and ``steps`` input-gradient passes, and a training step of both batches.

    Args:
        beta: weight of the divergence.
        smoothing: of the labels in the clean cross-entropy, e.g. 0.1.
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
        beta: float = 6.0,
        smoothing: float = 0.0,
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
        validation.check_weight("beta", beta)
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
        check_pgd(radius, steps, step_size, norm, start, RANDOM_STARTS)
        self.beta, self.smoothing, self.joint = beta, smoothing, joint
        self.radius, self.steps, self.step_size, self.norm, self.start = radius, steps, step_size, norm, start
        self.bounds = None if bounds is None else validation.as_pair(bounds)

    def check_settings(self) -> None:
        """Raise if the ball is larger than the box."""
        check_unit("radius", self.radius, self.norm, self.bounds)

    def craft(self, model: Model, batch: Batch) -> Tensor:
        """Return the adversarial images."""
        return kl_pgd(
            model,
            batch.inputs,
            batch.labels,
            self.radius,
            self.steps,
            self.step_size,
            norm=self.norm,
            start=self.start,
            key=start_key(batch, "trades"),
            index=batch.index,
            bounds=self.bounds,
            compile=self.compiled,
        )

    def loss(self, model: Model, batch: Batch, crafted: Tensor) -> tuple[Tensor, Metrics]:
        """Return clean cross-entropy plus weighted divergence; ``kl`` is logged without beta."""
        clean, adversarial = logits_of_both(model, batch.inputs, crafted, self.joint)
        return self._sum(clean, adversarial, batch)

    def _sum(
        self, clean: Tensor, adversarial: Tensor, batch: Batch, weights: Tensor | None = None
    ) -> tuple[Tensor, Metrics]:
        """Return the loss and its parts, from logits; ``weights`` of the examples in the divergence."""
        divergences = kl_divergence(clean, adversarial)
        clean_loss = smoothed_loss(clean, batch, self.smoothing)
        loss = clean_loss + self.beta * (divergences if weights is None else weights * divergences).mean()
        metrics = {
            "clean_loss": clean_loss.detach(),
            "kl": divergences.detach().mean(),
            "accuracy": accuracy(clean, batch.labels),
            "adversarial_accuracy": accuracy(adversarial, batch.labels),
        }
        return loss, metrics


def smoothed_loss(logits: Tensor, batch: Batch, smoothing: float) -> Tensor:
    """Return the mean of (1 - smoothing) CE + smoothing mean_k(-log p_k)."""
    loss = classification_loss(logits, batch)
    if smoothing == 0:
        return loss
    return (1 - smoothing) * loss - smoothing * F.log_softmax(at_least_float32(logits), dim=1).mean()
