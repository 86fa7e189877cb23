"""Logit margins: the functions whose zero level sets are the decision boundaries.

``logit_margin`` is the paper's phi (its equation 1), ``soft_logit_margin`` its Phi (equation 7).
"""

import math
from typing import Literal

import torch
from torch import Tensor

Boundary = Literal["exact", "soft"]

BOUNDARIES: tuple[Boundary, ...] = ("exact", "soft")


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return phi = z_y - max_{k != y} z_k for every row.

    Positive exactly where the row is classified as its label; zero on the decision boundary.

    Args:
        logits: ``[N, K]``, any floating dtype, K >= 2.
        labels: ``[N]``, integers in ``0 .. K-1``.

    Returns:
        ``[N]`` in float32, or float64 for float64 logits. Differentiable in the logits; where several
        rivals tie, the gradient follows one of them.
    """
    own, rivals = _split(logits, labels)
    return own - rivals.max(dim=1).values


def soft_logit_margin(logits: Tensor, labels: Tensor, beta: float = 5.0) -> Tensor:
    """Return Phi = z_y - logsumexp_{k != y}(beta z_k) / beta for every row.

    A smooth lower bound of the logit margin: ``0 <= phi - Phi <= log(K - 1) / beta``, and Phi = phi for
    two classes. The largest rival is subtracted before the exponential, so that logits of any finite size
    are safe.

    Args:
        logits: ``[N, K]``, any floating dtype, K >= 2.
        labels: ``[N]``, integers in ``0 .. K-1``.
        beta: inverse temperature of the smoothed maximum, positive.

    Returns:
        ``[N]`` in float32, or float64 for float64 logits. Differentiable in the logits.
    """
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be positive and finite, got {beta}")
    own, rivals = _split(logits, labels)
    # The shift cancels in the derivative, so it may be a constant.
    largest = rivals.max(dim=1).values.detach()
    below = torch.where((largest > -torch.inf)[:, None], rivals - largest[:, None], 0.0)
    excess = torch.logsumexp(beta * below, dim=1)
    return (own - largest) - excess / beta


def boundary_value(logits: Tensor, labels: Tensor, boundary: Boundary, beta: float) -> Tensor:
    """Return the margin function whose zero level set is the requested ``boundary``."""
    if boundary == "exact":
        return logit_margin(logits, labels)
    return soft_logit_margin(logits, labels, beta)


def closest_rival(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the class with the largest logit among all but the label, ``[N]``."""
    return _split(logits, labels)[1].argmax(dim=1)


def rivals_by_logit(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the other classes from the largest logit down, ``[N, K-1]``."""
    # The label comes last, also behind classes that the model masks with -inf.
    rivals = _split(logits, labels)[1]
    rivals = rivals.clamp(min=torch.finfo(rivals.dtype).min).scatter(1, labels.long()[:, None], -torch.inf)
    return rivals.argsort(dim=1, descending=True, stable=True)[:, :-1]


def _split(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Split logits into the label's own, ``[N]``, and all with the label's set to -inf, ``[N, K]``."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must be [N, K] with K >= 2 classes, got shape {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    if labels.is_floating_point():
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    if labels.shape != logits.shape[:1]:
        raise ValueError(f"labels must be [{logits.shape[0]}] like the logits, got {tuple(labels.shape)}")
    logits = at_least_float32(logits)
    labels = labels.long()[:, None]
    own = logits.gather(1, labels)[:, 0]
    classes = torch.arange(logits.shape[1], device=logits.device)
    return own, logits.masked_fill(classes == labels, -torch.inf)


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()
