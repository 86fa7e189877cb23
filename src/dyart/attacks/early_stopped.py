"""Early-stopped PGD: friendly adversarial examples, wrong but not more wrong than need be (Zhang et al., ICML 2020).

Every example has ``tau`` steps to take beyond its first error. At each of the K points that a step may begin from:

    classified as labelled          it takes the step
    wrong, with steps left over     it takes the step, and has one fewer (errors need not follow each other)
    wrong, with none left over      it stays at this point for good

The first look is at the start: with tau = 0 an example that is wrong there is returned as it started. The last point
is not looked at. With tau >= K nobody stops, and this is PGD bit for bit.

Examples that have stopped are masked, not taken out of the batch: static shapes, and the same K forward and backward
passes as PGD whatever tau is.
"""

from typing import Unpack

import torch
from torch import Tensor

from dyart.attacks.pgd import PGDSettings, pgd
from dyart.boundary.model import Model
from dyart.boundary.validation import check_count


def early_stopped_pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float | Tensor,
    steps: int = 10,
    step_size: float | Tensor | None = None,
    *,
    tau: int = 0,
    **settings: Unpack[PGDSettings],
) -> tuple[Tensor, Tensor]:
    """Return points within ``radius`` of the inputs, and how many steps every example took, int64 ``[N]``.

    Whether an example is wrong is judged by its label, whatever the objective.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        radius: one, or one per example.
        steps: at most.
        step_size: of a step; None: 2.5 radii over the steps.
        tau: steps beyond the first error.
        settings: of ``pgd``; its ``noise`` is the paper's omega.

    Raises:
        ValueError: what ``pgd`` raises, or a negative tau.
    """
    check_count("tau", tau, 0)
    left = torch.full((len(inputs),), tau, dtype=torch.int64, device=inputs.device)
    taken = torch.zeros_like(left)

    def watch(logits: Tensor, labels: Tensor) -> Tensor:
        # Below zero is stopped, and for good: the counter never rises.
        left.sub_((logits.argmax(dim=1) != labels).long())
        moving = left >= 0
        taken.add_(moving)
        return moving

    points = pgd(model, inputs, labels, radius, steps, step_size, watch=watch, **settings)
    return points, taken
