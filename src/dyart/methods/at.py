"""Adversarial training (Madry et al., ICLR 2018; schedule and constants of Rice et al., ICML 2020).

L = (1/n) sum_i CE(z(x_i'), y_i),  x_i' = PGD within the radius around x_i, on the cross-entropy

The attack runs in eval mode; BatchNorm's running statistics see adversarial images alone.
"""

from torch import Tensor

from dyart.attacks.pgd import AttackNorm, Start, check_pgd, pgd
from dyart.attacks.radii import check_unit
from dyart.boundary import validation
from dyart.boundary.model import Model, logits_of
from dyart.boundary.validation import Bounds
from dyart.data.loader import Batch
from dyart.methods.base import Method, Metrics, accuracy, classification_loss, register, start_key


@register("at")
class AT(Method[Tensor]):
    """Adversarial training with PGD. Cost: ``steps`` forward and input-gradient passes, and one training step.

    Args:
        radius: of the ball.
        steps: of PGD.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"uniform"`` in the ball, ``"normal"`` close to the input, or the ``"input"``.
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    def __init__(
        self,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: Start = "uniform",
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        check_pgd(radius, steps, step_size, norm, start)
        self.radius, self.steps, self.step_size, self.norm, self.start = radius, steps, step_size, norm, start
        self.bounds = None if bounds is None else validation.as_pair(bounds)

    def check_settings(self) -> None:
        """Raise if the ball is larger than the box."""
        check_unit("radius", self.radius, self.norm, self.bounds)

    def craft(self, model: Model, batch: Batch) -> Tensor:
        """Return the adversarial images."""
        return pgd(
            model,
            batch.inputs,
            batch.labels,
            self.radius,
            self.steps,
            self.step_size,
            norm=self.norm,
            start=self.start,
            key=start_key(batch, "at"),
            index=batch.index,
            bounds=self.bounds,
            compile=self.compiled,
        )

    def loss(self, model: Model, batch: Batch, crafted: Tensor) -> tuple[Tensor, Metrics]:
        """Return the mean cross-entropy at the adversarial images."""
        logits = logits_of(model(crafted))
        loss = classification_loss(logits, batch)
        return loss, {"adversarial_loss": loss.detach(), "adversarial_accuracy": accuracy(logits, batch.labels)}
