"""Radii that can be meant: positive, and smaller than the box."""

import math
from collections.abc import Sequence

import torch

from dyart.boundary.norms import Norm
from dyart.boundary.validation import Bounds, as_pair

# Of a pixel: whole numbers up to this were meant in them.
STEPS = 255


def check_radii(radii: Sequence[float], norm: Norm, features: int, width: float = 1.0) -> None:
    """Raise unless every radius is positive and smaller than the box is wide, by its own norm.

    A ball of that radius holds the whole box: every classifier with more than one answer is broken there.

    Args:
        radii: as given; the message writes them as their text.
        norm: of the radii.
        features: numbers per example.
        width: of the box along one of them; infinite: no box.

    Raises:
        ValueError: one is not; the message says what may have been meant.
    """
    reach = width * {"linf": 1.0, "l2": math.sqrt(features), "l1": float(features)}[norm]
    for radius in radii:
        if not radius > 0:
            raise ValueError(f"radii must be positive, got {radius}")
        if radius >= reach:
            steps = f"; did you mean {radius}/255?" if norm == "linf" and radius == int(radius) <= STEPS * width else ""
            raise ValueError(
                f"the radius {radius} is as large as the box of all inputs ({reach:g} in {norm}), where nothing resists"
                f"{steps}"
            )


def width_of(bounds: Bounds) -> float:
    """Return the longest side of the box; infinite without a box."""
    if bounds is None:
        return float("inf")
    low, high = (torch.as_tensor(bound).double() for bound in as_pair(bounds))
    return float((high - low).max())


def check_unit(name: str, radius: float, norm: Norm, bounds: Bounds) -> None:
    """Raise if an L-inf radius is larger than the box, such as 8 for 8/255.

    One as large as the box is fine: every margin is below it.

    Raises:
        ValueError: it is; the message says what may have been meant.
    """
    width = width_of(bounds)
    if norm == "linf" and radius > width:
        raise ValueError(
            f"{name} {radius:g} is larger than the box of all inputs ({width:g}): did you mean {radius:g}/255?"
        )
