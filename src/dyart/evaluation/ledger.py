"""The book of an evaluation while it runs; closed, it is the verdicts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyart.attacks.radius import Radius
from dyart.boundary.norms import Norm
from dyart.evaluation.verdicts import MARGINS, Floats, Integers, Status, Verdicts

# What is kept of every example's boundary search: name, type, value where there is none.
SEARCHED: dict[str, tuple[Any, Any]] = {
    "margin": (np.float64, np.nan),
    "value": (np.float64, np.nan),
    "alignment": (np.float64, np.nan),
    "optimal": (np.bool_, False),
    "rival": (np.int64, -1),
}
# Of a batch's record: the size of the parts it was divided into, where memory ran out.
PARTS = "parts"


class Ledger:
    """Verdicts in the making, with what every attack cost.

    Args:
        index: places of the examples in their set, ``[N]``.
        labels: ``[N]``.
        radii: ascending.
        slack: what rounding may add to each.
        norm: of radii and distances.
        attacks: names, in the order in which they are run.
    """

    def __init__(
        self,
        index: Integers,
        labels: Integers,
        radii: Sequence[Radius],
        slack: Floats,
        norm: Norm,
        attacks: Sequence[str],
    ) -> None:
        """Begin with nothing known."""
        self.index, self.labels, self.radii, self.slack, self.norm = index, labels, tuple(radii), slack, norm
        self.attacks = tuple(attacks)
        shape = (len(labels), len(radii))
        self.predictions = np.full(len(labels), -1, dtype=np.int64)
        self.status = {name: np.full(shape, Status.NOT_ATTACKED, dtype=np.int8) for name in attacks}
        self.distance = {name: np.full(shape, np.inf) for name in attacks}
        self.searched = {name: np.full(len(labels), none, dtype=kind) for name, (kind, none) in SEARCHED.items()}
        self.conditions = np.zeros((len(labels), 3), dtype=bool)
        self.divided: dict[str, int] = {}
        """Attacks whose batches were divided, and the size of the smallest parts."""
        self.costs: dict[str, dict[str, float]] = defaultdict(lambda: {"forward": 0, "backward": 0, "seconds": 0.0})

    @property
    def limits(self) -> Floats:
        """The radii with what rounding may add, ``[R]``."""
        return np.asarray([float(radius) for radius in self.radii]) + self.slack

    def charge(self, attack: str, record: Mapping[str, Any]) -> None:
        """Add what a batch cost: examples passed forwards and backwards, and seconds; note if it was divided."""
        for key in ("forward", "backward", "seconds"):
            self.costs[attack][key] += record[key]
        if PARTS in record:
            self.divided[attack] = min(record[PARTS], self.divided.get(attack, record[PARTS]))

    def enter_margins(self, rows: Integers, record: Mapping[str, Any]) -> None:
        """Enter what the boundary search found; it is tried at all radii at once."""
        for name, column in self.searched.items():
            column[rows] = np.asarray(record[name], dtype=column.dtype)
        self.conditions[rows] = np.asarray(record["conditions"], dtype=bool).reshape(-1, 3)
        distance = np.nan_to_num(self.searched["margin"][rows], nan=np.inf)
        for level in range(len(self.radii)):
            self.enter(MARGINS, rows, np.full(len(rows), level), distance)

    def enter(self, attack: str, rows: Integers, levels: Integers, distance: Floats) -> None:
        """Enter what an attack found for some examples, each at its own radius."""
        broken = distance <= self.limits[levels]
        self.status[attack][rows, levels] = np.where(broken, Status.BROKEN, Status.RESISTED)
        self.distance[attack][rows, levels] = np.minimum(self.distance[attack][rows, levels], distance)

    def closest(self) -> Floats:
        """Return the distance of the closest point that any attack found, ``[N]``; inf: none."""
        found = [distance.min(axis=1) for distance in self.distance.values()]
        return np.min(found, axis=0) if found else np.full(len(self.labels), np.inf)

    def infer(self, battery: Sequence[str], level: Integers) -> None:
        """Mark the radii below the one at which an example resisted everything, ``[N]``; -1: it did at none."""
        below = np.arange(len(self.radii)) < level[:, None]
        for name in battery:
            status = self.status[name]
            status[below & (status == Status.NOT_ATTACKED)] = Status.INFERRED

    def close(self) -> Verdicts:
        """Return the verdicts."""
        return Verdicts(
            radii=self.radii,
            norm=self.norm,
            slack=self.slack,
            index=self.index,
            labels=self.labels,
            predictions=self.predictions,
            attacks=self.attacks,
            status=self.status,
            distance=self.distance,
            conditions=self.conditions,
            **self.searched,
        )
