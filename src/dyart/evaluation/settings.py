"""What an evaluation's numbers depend on, besides model and data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

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
        bounds = None if self.bounds is None else [_numbers(bound) for bound in self.bounds]
        return vars(self) | {"radii": [float(radius) for radius in self.radii], "bounds": bounds}


def _numbers(bound: Any) -> Any:  # noqa: ANN401
    return bound.tolist() if hasattr(bound, "tolist") else bound  # of a tensor or an array


def check_several(radii: object) -> None:
    """Raise unless radii come as a list.

    Raises:
        TypeError: it is a single one, or one text with several.
    """
    if isinstance(radii, str | float | int):
        parts = [part.strip() for part in radii.split(",")] if isinstance(radii, str) else [radii]
        raise TypeError(f"radii is a list of radii, got {radii!r}: write radii={parts!r}")


def named_radii(radii: Sequence[float | str]) -> tuple[Radius, ...]:
    """Return radii in ascending order, each once; fractions of 255 that came as decimals get their usual name.

    Raises:
        TypeError: it is a single one.
        ValueError: one of them is no number.
    """
    check_several(radii)
    named = {float(radius): radius for radius in map(_named, radii)}
    return tuple(named[value] for value in sorted(named))


def _named(value: float | str) -> Radius:
    number = getattr(value, "item", None)  # of a tensor or of numpy
    coarse = "float32" in str(getattr(value, "dtype", ""))  # as it was written: 0.05, and not 0.05000000074505806
    radius = Radius(number() if number is not None else value)
    radius = Radius(str(np.float32(radius))) if coarse else radius
    # 2 / 255 as a decimal has 17 digits; nobody writes 0.2 as 51/255.
    usual = Radius(f"{round(255 * radius)}/255")
    same = np.float32(usual) == np.float32(radius) if coarse else usual == radius
    return usual if same and len(str(radius)) > SHORT else radius


def check_box(bounds: Bounds, dtype: object) -> None:
    """Raise if a box is empty, or wider than the [0, 1] that inputs of 8 bits are brought to.

    Raises:
        ValueError: it is.
    """
    if bounds is None:
        return
    low, high = (torch.as_tensor(bound).double() for bound in as_pair(bounds))
    if not bool((low < high).any()):
        raise ValueError(f"bounds are (low, high), low below high, got low {low.min():g} and high {high.max():g}")
    if str(dtype).removeprefix("torch.") == "uint8" and (bool((low < 0).any()) or bool((high > 1).any())):
        raise ValueError(
            f"inputs of uint8 are divided by 255 and lie in 0 to 1, got bounds from {low.min():g} to {high.max():g}: "
            "leave bounds out, and give radii as 8/255"
        )


def extent_of(bounds: Bounds) -> float:
    """Return the largest size of a coordinate in the box; infinite without a box."""
    if bounds is None:
        return float("inf")
    return max(float(torch.as_tensor(bound).abs().max()) for bound in as_pair(bounds))
