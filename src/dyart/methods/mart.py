"""MART: misclassification-aware adversarial training (Wang et al., ICLR 2020).

    L = (1/n) sum_i [ -log p_y(x_i') - log(1.0001 - max_{k != y} p_k(x_i') + 1e-12) ]
      + (lambda/n) sum_i (1.0000001 - p_y(x_i)) sum_k p_k(x_i) (log p_k(x_i) - log(p_k(x_i') + 1e-12))

with x_i' = PGD within the radius on the cross-entropy. Nothing is detached. The constants are those of the released
code (the paper has 1, 1 and 0); they keep logarithms finite and count in float32, in which all of this is computed.
The released code has lambda 5 for ResNet-18 and 6 for WRN-34-10, the default here. The attack runs in eval mode and
starts from a normal draw.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart.attacks.kl import log_shares
from dyart.attacks.pgd import AttackNorm, Start
from dyart.boundary import validation
from dyart.boundary.margins import at_least_float32, closest_rival
from dyart.boundary.model import Model
from dyart.boundary.validation import Bounds
from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.base import Metrics, accuracy, classification_loss, logits_of_both, register

ABOVE_WRONG, ABOVE_OWN, TINY = 1.0001, 1.0000001, 1e-12


@register("mart")
class MART(AT):
    """MART. Cost: ``steps`` forward and input-gradient passes, and a training step of clean and adversarial images.

    Args:
        lam: weight of the divergence (the paper's lambda).
        radius: of the ball.
        steps: of PGD.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"normal"`` close to the input, ``"uniform"`` in the ball, or the ``"input"``.
        joint: clean and adversarial images in one forward pass, so that BatchNorm sees them together. False: two
            passes, clean images first.
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    def __init__(
        self,
        lam: float = 6.0,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: Start = "normal",
        joint: bool = False,
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        super().__init__(radius, steps, step_size, norm, start, bounds=bounds)
        validation.check_weight("lam", lam)
        self.lam, self.joint = lam, joint

    def loss(self, model: Model, batch: Batch, crafted: Tensor) -> tuple[Tensor, Metrics]:
        """Return boosted cross-entropy plus weighted divergence.

        ``boosted_loss`` and ``weighted_kl`` (without lambda) are the two parts; ``weight`` is the mean of the
        divergence's weights: the probability that the clean images' labels lack.
        """
        clean, adversarial = logits_of_both(model, batch.inputs, crafted, self.joint)
        boosted = classification_loss(adversarial, batch) + wrong_class_costs(adversarial, batch.labels).mean()
        weights = missing_probability(clean, batch.labels)
        divergence = (weights * divergences(clean, adversarial)).mean()
        metrics = {
            "boosted_loss": boosted.detach(),
            "weighted_kl": divergence.detach(),
            "weight": weights.detach().mean(),
            "accuracy": accuracy(clean, batch.labels),
            "adversarial_accuracy": accuracy(adversarial, batch.labels),
        }
        return boosted + self.lam * divergence, metrics


def wrong_class_costs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log(1.0001 - p + 1e-12) for the most probable wrong class of every example, ``[N]``."""
    probabilities = F.softmax(at_least_float32(logits), dim=1)
    wrong = probabilities.gather(1, closest_rival(logits, labels)[:, None])[:, 0]
    return -torch.log(ABOVE_WRONG - wrong + TINY)


def missing_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1.0000001 - p_y of every example, ``[N]``."""
    return ABOVE_OWN - F.softmax(at_least_float32(logits), dim=1).gather(1, labels.long()[:, None])[:, 0]


def divergences(clean_logits: Tensor, logits: Tensor) -> Tensor:
    """Return sum_k p_k (log p_k - log(p'_k + 1e-12)) of every example, ``[N]``: bounded, unlike the KL itself."""
    clean = log_shares(clean_logits)
    other = torch.log(F.softmax(at_least_float32(logits), dim=1) + TINY)
    return (clean.exp() * (clean - other)).sum(dim=1)
