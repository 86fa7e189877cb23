"""Robust accuracy against radius, from margins: one search for the whole curve."""

from collections.abc import Sequence

from torch import Tensor

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


def accuracy_from_margins(found: BoundaryPoints, radii: Sequence[float]) -> dict[float, float]:
    """Return the share of examples that resist by their margins at each radius: an upper bound of the true one."""
    return {radius: rows.float().mean().item() for radius, rows in resists_by_margins(found, radii).items()}
