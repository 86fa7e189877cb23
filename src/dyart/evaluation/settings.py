"""What an evaluation's numbers depend on, besides model and data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dyart.attacks.radius import Radius
from dyart.boundary.norms import Norm
from dyart.boundary.validation import Bounds, as_pair

SHORT = 8  # characters


@dataclass(frozen=True)
class Settings:
    """As resolved: radii ascending, each once."""

    radii: tuple[Radius, ...]
    attack: str
    norm: Norm
    strict: bool
    seed: int
    bounds: Bounds
    batch_size: int
    steps: int
    restarts: int

    def plain(self) -> dict[str, Any]:
        """Return JSON values that say whether two evaluations are the same. Radii count as numbers, however written."""
        bounds = None if self.bounds is None else [b.tolist() if isinstance(b, Tensor) else b for b in self.bounds]
        return {
            "attack": self.attack,
            "norm": self.norm,
            "radii": [float(radius) for radius in self.radii],
            "strict": self.strict,
            "seed": self.seed,
            "bounds": bounds,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "restarts": self.restarts,
        }


def named_radii(radii: Sequence[float | str]) -> tuple[Radius, ...]:
    """Return radii in ascending order, each once; fractions of 255 that came as decimals get their usual name."""
    named = {float(radius): radius for radius in map(_named, radii)}
    return tuple(named[value] for value in sorted(named))


def _named(value: float | str) -> Radius:
    radius = Radius(value if isinstance(value, str | Radius) else float(value))
    # 2 / 255 as a decimal has 17 digits; nobody writes 0.2 as 51/255.
    usual = Radius(f"{round(255 * radius)}/255")
    return usual if usual == radius and len(str(radius)) > SHORT else radius


def extent_of(bounds: Bounds) -> float:
    """Return the largest size of a coordinate in the box; 1 without a box."""
    sizes = [] if bounds is None else [float(torch.as_tensor(bound).abs().max()) for bound in as_pair(bounds)]
    return max([size for size in sizes if size < float("inf")], default=1.0)


def width_of(bounds: Bounds) -> float:
    """Return the longest side of the box; infinite without a box."""
    if bounds is None:
        return float("inf")
    low, high = (torch.as_tensor(bound).double() for bound in as_pair(bounds))
    return float((high - low).max())
