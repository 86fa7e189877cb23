"""Natural training.

L = (1/n) sum_i CE(z(x_i), y_i)
"""

from torch import Tensor

from dyart.boundary.model import Model, logits_of
from dyart.data.loader import Batch
from dyart.methods.base import Method, Metrics, accuracy, classification_loss, register


@register("natural")
class Natural(Method[None]):
    """Cross-entropy on the images as they are; also the burn-in of DyART. Cost: one training step."""

    crafts = False

    def craft(self, model: Model, batch: Batch) -> None:
        """Return nothing."""

    def loss(self, model: Model, batch: Batch, crafted: None) -> tuple[Tensor, Metrics]:
        """Return the mean cross-entropy."""
        logits = logits_of(model(batch.inputs))
        loss = classification_loss(logits, batch)
        return loss, {"clean_loss": loss.detach(), "accuracy": accuracy(logits, batch.labels)}

    def rank(self, clean: float, robust: float) -> tuple[float, float]:
        """Return clean accuracy first: robust accuracy is about zero, and its noise would choose."""
        return clean, robust
