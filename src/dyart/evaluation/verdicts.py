"""What every attack did to every example at every radius: the raw material of accuracies, records and alarms.

A verdict is about one attack, one example and one radius. What is concluded from verdicts, e.g. that an example resists
at a radius because no point within it was found by any attack, is a property of all of them together and computed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dyart.attacks.radius import Radius
from dyart.boundary.norms import Norm

Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.int8]

MARGINS = "margins"
# Of a radius: what a point may lie beyond it by rounding, besides what rounding of its coordinates adds up to.
RELATIVE = 1e-6
PRECISION = 2.0**-23
# Of a radius: the most that rounding of the coordinates may add to it.
MOST = 0.01


class Status(IntEnum):
    """Of one attack at one radius on one example."""

    NOT_ATTACKED = 0
    """It was not tried there: the example is misclassified as it is, or was known to be broken at this radius."""
    RESISTED = 1
    """It was tried there and found nothing within the radius."""
    BROKEN = 2
    """It was tried there and found a point within the radius, perhaps even within a smaller one: see ``distance``."""
    INFERRED = 3
    """It was not tried there, but at a larger radius, where the example resisted: taken to resist here, too."""


def slack(radii: npt.ArrayLike, norm: Norm, features: int, extent: float = 1.0, precision: float = PRECISION) -> Floats:
    """Return by how much a point may lie beyond each radius and still count as within it: rounding alone, ``[R]``.

    A coordinate of size ``extent`` is off by up to half a unit in the last place (``precision``: of float32), and so is
    its difference from the input; these add up over ``features`` as the norm says. At most a hundredth of the radius.
    """
    given = np.asarray(radii, dtype=np.float64)
    return RELATIVE * given + np.minimum(rounding(norm, features, extent, precision), MOST * given)


def rounding(norm: Norm, features: int, extent: float = 1.0, precision: float = PRECISION) -> float:
    """Return by how much rounding can change the distance of a point with coordinates of size ``extent``."""
    return precision * extent * {"linf": 1.0, "l2": float(np.sqrt(features)), "l1": float(features)}[norm]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Raw verdicts of an evaluation. N examples, R radii in ascending order."""

    radii: tuple[Radius, ...]
    norm: Norm
    slack: Floats
    """By how much a point may lie beyond each radius and still count, ``[R]``: rounding."""
    index: Integers
    """Places of the examples in their set, ``[N]``."""
    labels: Integers
    predictions: Integers
    """Of the examples as they are."""
    attacks: tuple[str, ...]
    """Names, in the order in which they are run, e.g. ``("margins", "pgd", "apgd-ce", "apgd-t", "fab-t", "square")``.

    ``"margins"`` is the boundary search, which is tried at all radii at once. ``"pgd"``, where it is run beside
    stronger attacks, is tried at every radius on every example that is classified as labelled, whatever is known of it
    already: what it says of one radius does not depend on another.
    """
    status: Mapping[str, Codes]
    """By attack: a ``Status`` for every example and radius, int8 ``[N, R]``."""
    distance: Mapping[str, Floats]
    """By attack: how far the point is that it found when it was tried at this radius, ``[N, R]``; inf where it found
    none. Every such point was classified otherwise than labelled by the user's own model in plain float32; an input
    whose label ties with another class lies on the boundary as it is, at distance 0. A distance beyond the radius
    belongs to a status of ``RESISTED``: it counts at larger radii."""
    margin: Floats
    """Distance of the closest boundary point that the search found, ``[N]``; nan where there is none, or no search."""
    value: Floats
    """phi at that point, ``[N]``."""
    alignment: Floats
    """In [-1, 1]: 1 exactly where the first-order conditions of a closest point hold, ``[N]``; nan without a point."""
    optimal: Flags
    """The point is locally closest, as far as it was checked: ``|value| <= 0.1`` and alignment > 0.9, ``[N]``."""
    conditions: Flags
    """The paper's conditions (a), (b), (c) at the point, ``[N, 3]``."""
    rival: Integers
    """The class across the boundary there, ``[N]``; -1 without a point."""

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    @property
    def correct(self) -> Flags:
        """Classified as labelled, ``[N]``."""
        return np.asarray(self.predictions == self.labels)

    @property
    def limits(self) -> Floats:
        """The radii with what rounding may add, ``[R]``."""
        return np.asarray([float(radius) for radius in self.radii]) + self.slack

    def closest(self, attack: str) -> Floats:
        """Return the distance of the closest point that an attack found, at whatever radius, ``[N]``; inf: none."""
        return np.asarray(self.distance[attack].min(axis=1, initial=np.inf))

    def broken_by(self, attack: str) -> Flags:
        """Return where an attack's points lie within the radius, found there or elsewhere, ``[N, R]``."""
        return self.closest(attack)[:, None] <= self.limits

    @property
    def broken(self) -> Flags:
        """Where some attack's point lies within the radius, ``[N, R]``."""
        found = (
            np.stack([self.closest(attack) for attack in self.attacks]) if self.attacks else np.empty((0, len(self)))
        )
        return np.asarray(found.min(axis=0, initial=np.inf)[:, None] <= self.limits)

    @property
    def resists(self) -> Flags:
        """Classified as labelled, and no attack's point lies within the radius, ``[N, R]``."""
        return self.correct[:, None] & ~self.broken

    @property
    def inferred(self) -> Flags:
        """Taken to resist because it resisted at a larger radius: not attacked here in full, ``[N, R]``."""
        marked = [self.status[attack] == Status.INFERRED for attack in self.attacks]
        return self.resists & np.any(marked, axis=0) if marked else np.zeros_like(self.resists)
