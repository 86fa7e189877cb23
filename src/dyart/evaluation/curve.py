"""Robust accuracy against radius, from margins (one search for the whole curve) and from PGD at each radius."""

from collections.abc import Sequence

from torch import Tensor

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.boundary.model import Model
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints


def accuracy_from_margins(found: BoundaryPoints, radii: Sequence[float]) -> dict[float, float]:
    """Return the share of examples that are classified as labelled and have no found point within each radius.

    Margins come from a search, so each value is an upper bound of the true robust accuracy.

    Raises:
        ValueError: the margins are those of the soft boundary, which is crossed before the class changes.
    """
    if found.boundary != "exact":
        raise ValueError(f"robust accuracy needs margins of the exact boundary, got {found.boundary!r}")
    margin = found.margin.nan_to_num(nan=float("inf"))
    return {radius: (found.inside & (margin > radius)).float().mean().item() for radius in radii}


def accuracy_under_pgd(
    model: Model, inputs: Tensor, labels: Tensor, radii: Sequence[float], norm: Norm = "linf", batch_size: int = 512
) -> dict[float, float]:
    """Return the share of examples that resist PGD-20 on the margin loss at each radius, an upper bound as well.

    A point that fools the model within a radius does so within every larger one, and counts there.
    """
    alive = correct(model, inputs, labels, batch_size)
    curve: dict[float, float] = {}
    for radius in sorted(radii):
        alive = alive & resists_pgd(model, inputs, labels, radius, norm=norm, batch_size=batch_size)
        curve[radius] = alive.float().mean().item()
    return {radius: curve[radius] for radius in radii}
