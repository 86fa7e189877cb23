"""Auxiliary (generated) images, memory-mapped: any number of them, mixed into every batch at a fixed share."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dyart.boundary.model import Model, evaluation_mode, logits_of
from dyart.data.sets import DataSet, Split

SHOWN = 3


@dataclass(frozen=True)
class Auxiliary:
    """A pool of images that is drawn from with replacement."""

    split: Split
    fraction: float
    """Of every batch: ``int(batch_size * fraction)`` images."""

    def __post_init__(self) -> None:
        """Refuse an empty pool and a share that leaves no room for real images."""
        if not 0 < self.fraction < 1:
            raise ValueError(f"the fraction of auxiliary images must lie between 0 and 1, got {self.fraction}")
        if len(self.split) == 0:
            raise ValueError("the auxiliary set is empty")

    def count(self, batch_size: int) -> int:
        """Return how many images of a batch are auxiliary."""
        return int(batch_size * self.fraction)


def open_auxiliary(images: Path, labels: Path, fraction: float, shape: tuple[int, ...], classes: int) -> Auxiliary:
    """Map two ``.npy`` files: uint8 images ``[M, C, H, W]`` or ``[M, H, W, C]``, and integer labels ``[M]``.

    Raises:
        ValueError: they do not fit each other or the data set; the message says how.
        FileNotFoundError: one of them is missing.
    """
    pool, targets = _pool(images, shape), _mapped(labels)
    if targets.shape != (len(pool),) or not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(f"{labels} holds {targets.dtype} {targets.shape}; {len(pool)} integer labels are needed")
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        raise ValueError(f"{labels} has labels from {targets.min()} to {targets.max()}; there are {classes} classes")
    return Auxiliary(Split(pool, targets), fraction)


def auxiliary_of(pool: DataSet, fraction: float, data: DataSet) -> Auxiliary:
    """Return all training images of one set, with their labels, to be mixed into another of the same classes.

    Raises:
        ValueError: the sets differ in more than their images, or are one.
    """
    if pool.name == data.name:
        raise ValueError(
            f"data.auxiliary {pool.name} is the set itself: its hold-out, by which epochs are compared, would be "
            "trained on; name another one"
        )
    if (pool.classes, pool.shape) != (data.classes, data.shape):
        raise ValueError(
            f"data.auxiliary {pool.name} has {len(pool.classes)} classes ({', '.join(pool.classes[:SHOWN])}, ...) and "
            f"images {pool.shape}; {data.name} has {len(data.classes)} ({', '.join(data.classes[:SHOWN])}, ...) and "
            f"{data.shape}: both must be the same, classes in the same order"
        )
    return Auxiliary(pool.train, fraction)


def pseudo_label(predict: Model, images: Path, labels: Path, shape: tuple[int, ...], batch_size: int = 512) -> Path:
    """Write the labels that a classifier gives to a pool of images, and return the file.

    Args:
        predict: from float32 images in [0, 1] on the CPU to logits, on the device it likes; a module in eval mode.
        images: ``.npy`` of uint8 images.
        labels: the ``.npy`` to write; complete or not there.
        shape: of one image, channels first.
        batch_size: images per call.
    """
    pool = _pool(images, shape)
    labels.parent.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    found = np.empty(len(pool), dtype=np.int64)
    with evaluation_mode(predict), torch.no_grad():
        for start in range(0, len(pool), batch_size):
            part = torch.from_numpy(np.array(pool[start : start + batch_size]))
            logits = logits_of(predict(part.float() / 255))
            found[start : start + len(part)] = logits.argmax(dim=1).cpu().numpy()
    partial = labels.with_name(labels.name + ".part")
    with partial.open("wb") as file:
        np.save(file, found)
    return partial.replace(labels)


def _pool(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    pool = _mapped(path)
    if pool.ndim == 4 and pool.shape[1:] != shape and (pool.shape[3], *pool.shape[1:3]) == shape:
        pool = pool.transpose(0, 3, 1, 2)
    if pool.dtype != np.uint8 or pool.shape[1:] != shape:
        raise ValueError(f"{path} holds {pool.dtype} {pool.shape[1:]} per image; uint8 {shape} is needed")
    return pool


def _mapped(path: Path) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(
            f"no auxiliary file {path}: set data.auxiliary and data.auxiliary_labels to .npy files of yours, saved "
            "with numpy.save, or data.auxiliary to a data set alone (or both to null, to train without them)"
        )
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise ValueError(f"{path} is no .npy array ({error}); write one with numpy.save") from error
