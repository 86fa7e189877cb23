"""What every reader returns: four arrays in the stored form, checked once for all."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.sets import RENUMBER, UNLABELLED, Images, Indices, NumberedBy, check_labels

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
NAMED = 10  # classes that a note names


@dataclass(frozen=True, eq=False)
class Raw:
    """A set as read from its files, in the order of the files.

    Attributes:
        train_images, test_images: uint8 [N, C, H, W] (float32 [N, D] in [0, 1] for vectors).
        train_labels, test_labels: integers [N].
        classes: one name per class.
        shuffled: the examples are in random order (then the first of them are a fair hold-out).
        notes: what was done to the data, in words.
        test_rows: where the test part was drawn from one part, the place of each of its examples there; else None.
        test_files: of pictures, the file of each test example, from the set's folder on; else empty.
        numbered_by: as in ``DataSet``.
    """

    train_images: Images
    train_labels: npt.NDArray[np.integer]
    test_images: Images
    test_labels: npt.NDArray[np.integer]
    classes: tuple[str, ...]
    shuffled: bool = True
    notes: tuple[str, ...] = ()
    test_rows: Indices | None = None
    test_files: tuple[str, ...] = ()
    numbered_by: NumberedBy = ""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the four arrays, contiguous, labels as int64."""
        return {
            "train_images": np.ascontiguousarray(self.train_images),
            "train_labels": self.train_labels.astype(np.int64),
            "test_images": np.ascontiguousarray(self.test_images),
            "test_labels": self.test_labels.astype(np.int64),
        }


def check(raw: Raw, where: str, test_alone: bool = False) -> Raw:
    """Return ``raw`` if images and labels fit each other and every class has a training example; raise otherwise.

    Classes without a test example are noted.

    A set with a test part alone, which is enough to measure a network, has no training examples to look at.
    """
    for part, images, labels in (
        ("training", raw.train_images, raw.train_labels),
        ("test", raw.test_images, raw.test_labels),
    ):
        if len(images) != len(labels):
            raise DataError(
                f"{where}: {len(images):,} {part} images and {len(labels):,} labels; one label each is needed"
            )
        if len(labels) == 0 and not (test_alone and part == "training"):
            raise DataError(f"{where} holds no {part} examples")
    if raw.train_images.shape[1:] != raw.test_images.shape[1:]:
        raise DataError(
            f"{where}: training examples have shape {raw.train_images.shape[1:]} and test examples "
            f"{raw.test_images.shape[1:]}; both must have one shape"
        )
    if not test_alone:
        check_labels(raw.train_labels.astype(np.int64), len(raw.classes), f"{where} (training labels)")
    low, high = int(raw.test_labels.min()), int(raw.test_labels.max())
    if low < 0:
        way = RENUMBER if test_alone else "renumber training and test labels alike"
        raise DataError(f"{where}: test labels go from {low} to {high}; they must begin at 0: {UNLABELLED}, or {way}")
    if len(raw.classes) < 2:
        raise DataError(f"{where} has {len(raw.classes)} class; a classifier needs two or more")
    if high >= len(raw.classes):
        raise DataError(
            f"{where}: test labels go from {low} to {high}, and there are {len(raw.classes)} classes (labels 0 to "
            f"{len(raw.classes) - 1})" + ("" if test_alone else "; every class of the test set needs training examples")
        )
    missing = np.flatnonzero(np.bincount(raw.test_labels.astype(np.int64), minlength=len(raw.classes)) == 0)
    if test_alone or not len(missing):
        return raw
    names = ", ".join(raw.classes[label] for label in missing[:NAMED]) + (", ..." if len(missing) > NAMED else "")
    note = f"no test example of {names}: accuracies are of the other {len(raw.classes) - len(missing)} classes"
    return replace(raw, notes=(note, *raw.notes))
