"""What TRADES and its relatives attack: the predicted distribution instead of the label (Zhang et al., ICML 2019).

KL(p(x) || p(x')) = sum_k p_k(x) (log p_k(x) - log p_k(x'))

At x' = x it is 0 and so is its gradient: an attack on it needs a random start.
"""

from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from dyart.attacks.pgd import BallSettings, Objective, pgd
from dyart.boundary.margins import at_least_float32
from dyart.boundary.model import Model, logits_of
from dyart.boundary.validation import check_choice

RandomStart = Literal["uniform", "normal"]

RANDOM_STARTS: tuple[RandomStart, ...] = ("uniform", "normal")


def kl_divergence(clean_logits: Tensor, logits: Tensor) -> Tensor:
    """Return KL(p(x) || p(x')) of every example, ``[N]``, in float32 or better; gradients flow through both."""
    clean, other = (log_shares(part) for part in (clean_logits, logits))
    return F.kl_div(other, clean, reduction="none", log_target=True).sum(dim=1)


def log_shares(logits: Tensor) -> Tensor:
    """Return the logarithm of the predicted shares: finite, so that a class masked with -inf has no part in it."""
    shares = F.log_softmax(at_least_float32(logits), dim=1)
    return shares.clamp(min=torch.finfo(shares.dtype).min)


def kl_from(clean_logits: Tensor) -> Objective:
    """Return the objective for PGD that moves predictions away from those at the clean inputs, whatever the labels.

    Args:
        clean_logits: ``[N, K]`` of the same examples; taken as constants.
    """
    clean = clean_logits.detach()

    def objective(logits: Tensor, labels: Tensor) -> Tensor:
        return kl_divergence(clean, logits)

    return objective


def constant_logits(model: Model, inputs: Tensor) -> Tensor:
    """Return the logits at ``inputs``, to compare with and not to differentiate: one forward pass."""
    # Detached, not computed under no_grad: under a caller's autocast, older releases of torch keep the weights' copies
    # from this pass for the next one, which would then have no gradients (pytorch/pytorch#158232).
    with torch.enable_grad():
        return logits_of(model(inputs.detach())).detach()


def kl_pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float | Tensor,
    steps: int = 10,
    step_size: float | Tensor | None = None,
    *,
    start: RandomStart = "normal",
    **settings: Unpack[BallSettings],
) -> Tensor:
    """Return points within ``radius`` of the inputs that are predicted otherwise: PGD on the KL divergence.

    The arguments are those of ``pgd``; ``labels`` are not used. Cost: ``steps + 1`` forward and ``steps`` backward
    passes: the clean distribution is the same at every step.

    Raises:
        ValueError: as for ``pgd``, and for a start at the input, from where there is no way.
    """
    check_choice("start", start, RANDOM_STARTS)
    objective = kl_from(constant_logits(model, inputs))
    return pgd(model, inputs, labels, radius, steps, step_size, objective=objective, start=start, **settings)
