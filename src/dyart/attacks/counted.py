"""PGD that counts on its way how long an example resists: kappa of GAIRAT (Zhang et al., ICLR 2021).

The evaluated points are x^(0), the start, to x^(K-1), those that a step begins from; the last one, x^(K), is returned
and not looked at. Two ways to count:

    "correct"      the evaluated points that are classified as labelled (the released code)
    "first-error"  those before the first that is not (the paper: the steps that an attack needs)

They differ where an example is fooled and comes back. Both are from 0 to K, and cost PGD's own passes alone.
"""

from typing import Literal, Unpack

import torch
from torch import Tensor

from dyart.attacks.pgd import PGDSettings, pgd
from dyart.boundary.model import Model
from dyart.boundary.validation import check_choice

Count = Literal["correct", "first-error"]

COUNTS: tuple[Count, ...] = ("correct", "first-error")


def counted_pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float | Tensor,
    steps: int = 10,
    step_size: float | Tensor | None = None,
    *,
    count: Count = "correct",
    **settings: Unpack[PGDSettings],
) -> tuple[Tensor, Tensor]:
    """Return the points of ``pgd``, whose arguments these are, and every example's count, int64 ``[N]``.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        radius: one, or one per example.
        steps: passes.
        step_size: of a step; None: 2.5 radii over the steps.
        count: what is counted: ``"correct"`` or ``"first-error"``.
        settings: of ``pgd``.

    Raises:
        ValueError: what ``pgd`` raises, or an unknown count.
    """
    check_choice("count", count, COUNTS)
    kappa = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
    resisting = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)

    def watch(logits: Tensor, labels: Tensor) -> None:
        right = logits.argmax(dim=1) == labels
        if count == "first-error":
            right = resisting.logical_and_(right)
        kappa.add_(right)

    points = pgd(model, inputs, labels, radius, steps, step_size, watch=watch, **settings)
    return points, kappa
