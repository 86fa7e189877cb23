"""A data set in memory: training and test split, class names, and the hold-out that is never trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError

Indices = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
NumberedBy = Literal["", "folders", "names", "digits"]

HOLDOUT = 1024
SMALL = 10 * HOLDOUT  # below this many training examples the hold-out is a tenth
SEED = 13
# What to do about labels that cannot be taken as they are.
UNLABELLED = "leave examples without a label out"
RENUMBER = "renumber the labels without gaps: labels = numpy.unique(labels, return_inverse=True)[1]"


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their labels.

    Attributes:
        images: uint8 [N, C, H, W], possibly a memory map (private: writing to it does not change the file);
            float32 [N, D] in [0, 1] for sets of vectors such as the two-dimensional toy sets.
        labels: int64 [N], classes 0 to K - 1.
    """

    images: Images
    labels: Indices

    def __repr__(self) -> str:
        """Return one line."""
        return f"Split({len(self):,} examples, {self.images.dtype} {'x'.join(map(str, self.images.shape[1:]))})"

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set, ready for training and evaluation.

    Attributes:
        name: its name, as in the list of data sets, or its path.
        train: all training examples, the hold-out included.
        test: the test examples.
        classes: one name per class.
        holdout: indices into ``train``, sorted: for the selection of checkpoints; never trained on, never augmented.
        notes: what was done to the data on the way in, in words (e.g. grey images made RGB).
        shuffled: the training examples are stored in random order, so that the first of them are a fair sample.
        test_rows: of a set that came without a test part, which rows of it became one; None where there was one.
        test_files: of a set of pictures, the file of each test example, from the set's folder on; else empty.
        numbered_by: whose order the labels' numbers are: that of the names of ``folders``, of the labels' own
            ``names``, or of these as numbers (``digits``); "" where numbers, or classes in their order, were given.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    holdout: Indices
    notes: tuple[str, ...] = ()
    shuffled: bool = True
    test_rows: Indices | None = None
    test_files: tuple[str, ...] = ()
    numbered_by: NumberedBy = ""

    def __repr__(self) -> str:
        """Return one line."""
        shape = "x".join(map(str, self.shape))
        return (
            f"DataSet({self.name!r}, {len(self.classes)} classes, {shape}: {len(self.train):,} training examples, "
            f"{len(self.holdout):,} of them held out, {len(self.test):,} test examples)"
        )

    def rows_of(self, places: Indices) -> Indices:
        """Return what records call the test examples at these places: their rows in what the user gave."""
        return places if self.test_rows is None else self.test_rows[places]

    def files_of(self, places: Indices) -> list[str] | None:
        """Return the files of the test examples at these places; None for a set that is not of pictures."""
        return [self.test_files[place] for place in places] if self.test_files else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example: (C, H, W) for images, (D,) for vectors."""
        return tuple(self.train.images.shape[1:])

    @cached_property
    def fit(self) -> Indices:
        """Indices into ``train`` that training may use: all but the hold-out. The first so many are a fair sample.

        They ascend where the set is stored in random order. A set stored class by class would begin with a few of its
        classes: there they are in the order of the permutation that the hold-out is drawn by.
        """
        free = np.ones(len(self.train), dtype=bool)
        free[self.holdout] = False
        order = np.arange(len(self.train)) if self.shuffled else _permutation(len(self.train))
        return order[free[order]].astype(np.int64)


def first(labels: Indices) -> Indices:
    """Return the hold-out of a set stored in random order: the first 1,024 examples, a tenth of a small set."""
    return np.arange(min(HOLDOUT, max(len(labels) // 10, 1)), dtype=np.int64)


def _permutation(count: int) -> Indices:
    return np.random.RandomState(SEED).permutation(count)


def drawn(labels: Indices) -> Indices:
    """Return the hold-out of a set stored class by class: 1,024 examples drawn with a fixed seed, sorted.

    A small set gives a tenth of each class and at least one of each that has two or more, so that no class is left out
    of the selection. No class is left out of training: one that is drawn whole stays there.
    """
    # RandomState, because its stream is the one that numpy promises never to change.
    order = _permutation(len(labels))
    if len(labels) >= SMALL:
        taken, left = order[:HOLDOUT], order[HOLDOUT:]
        return np.sort(taken[np.isin(labels[taken], labels[left])]).astype(np.int64)
    return part_of_each_class(labels, order, 10)


def part_of_each_class(labels: Indices, order: Indices, share: int) -> Indices:
    """Return one example in ``share`` of every class, the first in ``order``; at least one where a class has two."""
    taken = [order[:0]]
    for label in np.unique(labels):
        own = order[labels[order] == label]
        taken.append(own[: max(len(own) // share, 1 if len(own) > 1 else 0)])
    return np.sort(np.concatenate(taken)).astype(np.int64)


def check_labels(labels: npt.NDArray[np.int64], classes: int, where: str) -> None:
    """Raise if a label is out of range, or if a class has no training example."""
    if len(labels) == 0:
        raise DataError(f"{where} holds no examples")
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise DataError(f"{where} has labels from {low} to {high}; they must begin at 0: {UNLABELLED}, or {RENUMBER}")
    if high >= classes:
        raise DataError(
            f"{where} has labels from {low} to {high}; with {classes} classes they must lie in 0..{classes - 1}"
        )
    empty = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if len(empty):
        raise DataError(
            f"{where}: no example of {_enumerate(empty)}, and there are {classes} classes; add examples, or {RENUMBER}"
        )


def _enumerate(labels: Sequence[int] | Indices, most: int = 10) -> str:
    words = ", ".join(str(int(label)) for label in labels[:most])
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"class{'es' if len(labels) > 1 else ''} {words}{more}"
