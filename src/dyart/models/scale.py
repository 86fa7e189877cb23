"""A mean and std that belong to inputs of another scale than [0, 1], such as pixels from 0 to 255."""

from collections.abc import Sequence

WHITE = 255
# Inputs in [0, 1] have means in there and deviations of a half at most. Whoever shifts and stretches them for another
# reason stays below these, and a network for pixels from 0 to 255 has small ones: mean 0, std 1/255.
LARGEST_MEAN, LARGEST_STD = 2.0, 10.0


def in_unit_scale(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """Return the numbers that do to inputs in [0, 1] what these do to pixels; None where they may be meant as they are.

    (255 x - mean) / std is (x - mean / 255) / (std / 255). One of the two that is of [0, 1] already stays.
    """
    far = max(map(abs, mean), default=0.0) > LARGEST_MEAN
    if not far and max(std, default=0.0) <= LARGEST_STD:
        return None
    wide = max(std, default=0.0) >= 1
    return [number / WHITE if far else number for number in mean], [value / WHITE if wide else value for value in std]


def listed(numbers: Sequence[float]) -> str:
    """Return numbers as the command line takes them: ``0.485,0.456,0.406``."""
    return ",".join(f"{number:.6g}" for number in numbers)
