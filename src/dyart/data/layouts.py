"""Arrays of a user's own as stored images: which axis is which, which number is white, and what to do otherwise."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.sets import Images

Array = npt.NDArray[Any]

WHITE = 255
DARK = 128  # images whose largest number is below this have another white, or are very dark
SAMPLED = 500


def scale_notes(images: Images) -> tuple[str, ...]:
    """Return a note if stored images use so little of 0..255 that white seems to be another number."""
    if images.dtype != np.uint8 or images.size == 0:
        return ()
    # A few hundred images tell, and a memory map is not read as a whole.
    largest = int(images[:: max(len(images) // SAMPLED, 1)].max())
    if largest >= DARK or largest == 0:
        return ()
    return (
        f"the largest number in the images is {largest}, and 255 counts as white: if {largest} is white, save "
        f"(images * (255 / {largest})).round().astype(numpy.uint8), else the network sees dark images",
    )


def as_images(array: Array, where: str) -> Images:
    """Return images as uint8 [N, C, H, W], or vectors as float32 [N, D] in [0, 1].

    Accepts uint8 [N, H, W], [N, H, W, C] and [N, C, H, W] with C of 1 or 3, and floating-point [N, D]. A memory map
    stays one: images with the channels last are then a view, put in order batch by batch.
    """
    if array.ndim == 2 and array.dtype.kind == "f":
        if len(bad := np.flatnonzero(~np.isfinite(array).all(axis=1))):
            raise DataError(
                f"{where}: {len(bad):,} rows have NaN or infinity in them, the first is {bad[0]}: fill it in"
            )
        if array.size and not (array.min() >= 0 and array.max() <= 1):
            raise DataError(
                f"{where}: vectors must lie in [0, 1], found {array.min()} to {array.max()}: save (x - low) / (high - "
                "low) with the least and largest number of each column, and train the network on the same; for any "
                "other range call dyart.closest_boundary_points(model, x, y, bounds=None) in Python"
            )
        return array.astype(np.float32, copy=False)
    if array.dtype != np.uint8:
        raise DataError(f"{where} have type {array.dtype}; uint8 from 0 to 255 is needed: {_to_bytes(array)}")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 2:
        raise DataError(
            f"{where} have shape {array.shape}: for images save them as [N, H, W], for vectors as x / 255, float32"
        )
    if array.ndim != 4:
        raise DataError(f"{where} have shape {array.shape}; [N, H, W], [N, H, W, C] or [N, C, H, W] is needed")
    front, back = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
    if front == back:
        what = "axes 1 and 3 could both be the channels" if front else "neither axis 1 nor axis 3 has 1 or 3 channels"
        raise DataError(f"{where} have shape {array.shape}: {what}; save them as uint8 [N, C, H, W] with C of 1 or 3")
    if front:
        return array
    turned = array.transpose(0, 3, 1, 2)
    return turned if isinstance(array, np.memmap) else np.ascontiguousarray(turned)


def _to_bytes(array: Array) -> str:
    """Return how to make uint8 images of an array, by the range that its numbers are in."""
    if array.dtype.kind not in "fiub" or array.size == 0:
        return "images are numbers"
    low, high = float(array.min()), float(array.max())
    seen = f"they go from {low:g} to {high:g}"
    if not (low >= 0 and high < np.inf):
        return (
            f"{seen}; undo the normalisation (images * std + mean gives 0 to 1), save (images * "
            "255).round().astype(numpy.uint8), and name mean and std with --mean and --std"
        )
    if high <= 1:
        return f"{seen}, so save (images * 255).round().astype(numpy.uint8)"
    if DARK <= high <= WHITE:
        return f"{seen}, so save images.round().astype(numpy.uint8)"
    return f"{seen}; if {high:g} is white, save (images * (255 / {high:g})).round().astype(numpy.uint8)"
