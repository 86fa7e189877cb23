"""What a monitor notes of one step: a few numbers, and the margins they come from."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dyart.dynamics.movement import Movement
from dyart.dynamics.shares import share

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Fewer points have no correlation worth the name.
FEWEST = 3

Value = float | None


@dataclass(frozen=True, repr=False)
class Observation:
    """One step of a training, seen from the probe set. None: there was nothing to take the number from."""

    step: int
    """Number of the step, from 1 on. Margins and speeds are those with the weights before it."""
    epoch: Value
    negative_share: Value
    """Of the vulnerable examples: those that the boundary moved towards (negative speed)."""
    vulnerable: int
    """Examples classified correctly, with a locally optimal point nearer than the radius."""
    correct: int
    """Examples classified correctly."""
    found: int
    """Examples with a boundary point."""
    optimal: int
    """Examples with a locally optimal one."""
    margin_quantiles: dict[str, Value]
    """Of all margins found."""
    correlation: Value
    """Pearson's, of predicted and actual movement, over the examples ``compared``. Where steps move the boundary by a
    millionth, one example whose search still found a closer point can spoil it: look at ``speeds`` and ``changes``."""
    compared: int
    """Examples with a locally optimal point before the step, which could be followed to one after it."""
    predicted_mean: Value
    """Mean change of the margin that the speed predicts, over these examples."""
    actual_mean: Value
    """Mean change of the margin found, over these examples."""
    margins: list[Value]
    """Of every example of the probe set."""
    speeds: list[Value]
    """Of every example: the predicted change of its margin, as a distance per step."""
    changes: list[Value]
    """Of every example: the actual change of its margin."""

    def __repr__(self) -> str:
        """Return a one-line summary: the lists have a number for every example."""
        share = "none" if self.negative_share is None else f"{100 * self.negative_share:.1f} %"
        middle = self.margin_quantiles.get("0.5")
        margin = "" if middle is None else f", median margin {middle:.4g}"
        return (
            f"Observation(step {self.step}: {self.correct} of {len(self.margins)} correct, {self.optimal} locally "
            f"optimal{margin}; {self.vulnerable} vulnerable, {share} of them losing margin)"
        )

    def record(self) -> dict[str, Any]:
        """Return the observation as a line of ``monitor.jsonl``."""
        return dataclasses.asdict(self)

    def numbers(self) -> dict[str, float]:
        """Return the numbers that a logger can draw a curve of; those that are None are left out."""
        names = ("negative_share", "vulnerable", "found", "correlation", "predicted_mean", "actual_mean")
        values = {name: getattr(self, name) for name in names} | {"median_margin": self.margin_quantiles["0.5"]}
        return {name: float(value) for name, value in values.items() if value is not None}


def summarise(movement: Movement, radius: float, step: int, epoch: Value) -> Observation:
    """Return what is noted of a movement; examples with a margin below ``radius`` are vulnerable."""
    found, speed, change = movement.found, movement.speed, movement.change
    vulnerable = share(speed, movement.counted & (found.margin < radius))
    compared = movement.compared
    return Observation(
        step=step,
        epoch=epoch,
        negative_share=_plain(vulnerable.value),
        vulnerable=vulnerable.count,
        correct=int(found.correct.sum()),
        found=int(found.found.sum()),
        optimal=int(found.optimal.sum()),
        margin_quantiles=_quantiles(found.margin[found.found]),
        correlation=_plain(correlation(speed[compared], change[compared])),
        compared=int(compared.sum()),
        predicted_mean=_plain(float(speed[compared].mean())),
        actual_mean=_plain(float(change[compared].mean())),
        margins=_column(found.margin),
        speeds=_column(speed),
        changes=_column(change),
    )


def from_record(record: Mapping[str, Any]) -> Observation:
    """Return the observation of a line of ``monitor.jsonl``; what else is in the line is left out."""
    return Observation(**{field.name: record[field.name] for field in dataclasses.fields(Observation)})


def correlation(one: Tensor, other: Tensor) -> float:
    """Return Pearson's correlation of two vectors; nan of fewer than three points, or where one does not vary."""
    if len(one) < FEWEST:
        return math.nan
    pair = torch.stack([one, other]).cpu().double()
    pair = pair - pair.mean(dim=1, keepdim=True)
    sizes = torch.linalg.vector_norm(pair, dim=1)
    product = float((pair[0] * pair[1]).sum() / sizes.prod())
    return max(-1.0, min(1.0, product)) if math.isfinite(product) else math.nan


def _quantiles(margins: Tensor) -> dict[str, Value]:
    if not len(margins):
        return {str(level): None for level in QUANTILES}
    values = torch.quantile(margins.cpu().double(), torch.tensor(QUANTILES, dtype=torch.float64))
    return {str(level): _plain(value) for level, value in zip(QUANTILES, values.tolist(), strict=True)}


def _column(values: Tensor) -> list[Value]:
    return [_plain(value) for value in values.tolist()]


def _plain(value: float) -> Value:
    """Return a number as JSON can have it, with six digits; None where it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
