"""Radii that can be meant: positive, and smaller than the box."""

import math
from collections.abc import Sequence

from dyart.boundary.norms import Norm

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
