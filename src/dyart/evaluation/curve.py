"""Robust accuracy against radius, from margins (one search for the whole curve) and from PGD at each radius."""

from collections.abc import Sequence

from torch import Tensor

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.boundary.model import Model
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints


def resists_by_margins(found: BoundaryPoints, radii: Sequence[float]) -> dict[float, Tensor]:
    """Return which examples are classified as labelled and have no found point within each radius, ``[N]`` each.

    Margins come from a search, so there may be closer points than the found ones.

    Raises:
        ValueError: the margins are those of the soft boundary, which is crossed before the class changes.
    """
    if found.boundary != "exact":
        raise ValueError(f"robust accuracy needs margins of the exact boundary, got {found.boundary!r}")
    margin = found.margin.nan_to_num(nan=float("inf"))
    return {radius: found.inside & (margin > radius) for radius in radii}


def resists_by_pgd(
    model: Model, inputs: Tensor, labels: Tensor, radii: Sequence[float], norm: Norm = "linf", batch_size: int = 512
) -> dict[float, Tensor]:
    """Return which examples resist PGD-20 on the margin loss at each radius, ``[N]`` each.

    A point that fools the model within a radius does so within every larger one: what has fallen is not attacked
    again.
    """
    alive = correct(model, inputs, labels, batch_size)
    resisting: dict[float, Tensor] = {}
    for radius in sorted(radii):
        rows = alive.nonzero()[:, 0]
        held = resists_pgd(model, inputs[rows], labels[rows], radius, norm=norm, index=rows, batch_size=batch_size)
        alive = alive.index_put((rows,), held)
        resisting[radius] = alive
    return {radius: resisting[radius] for radius in radii}


def accuracy_from_margins(found: BoundaryPoints, radii: Sequence[float]) -> dict[float, float]:
    """Return the share of examples that resist by their margins at each radius: an upper bound of the true one."""
    return _shares(resists_by_margins(found, radii))


def accuracy_under_pgd(
    model: Model, inputs: Tensor, labels: Tensor, radii: Sequence[float], norm: Norm = "linf", batch_size: int = 512
) -> dict[float, float]:
    """Return the share of examples that resist PGD-20 at each radius: an upper bound of the true one."""
    return _shares(resists_by_pgd(model, inputs, labels, radii, norm, batch_size))


def _shares(resisting: dict[float, Tensor]) -> dict[float, float]:
    return {radius: rows.float().mean().item() for radius, rows in resisting.items()}
