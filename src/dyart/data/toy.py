"""Two-dimensional toy sets, drawn by numpy from a fixed seed: for pictures of a decision boundary, and for tests."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dyart.data.sets import DataSet, Indices, Split, part_of_each_class

Points = npt.NDArray[np.float64]
Random = np.random.RandomState  # numpy promises never to change its stream

TRAIN, TEST = 2000, 1000


def _moons(random: Random, labels: Indices) -> Points:
    """Two half circles that reach into each other."""
    angle = np.pi * random.rand(len(labels))
    side = 1 - 2.0 * labels
    points = np.stack([side * np.cos(angle) + labels, side * np.sin(angle) + 0.5 * labels], 1)
    return np.asarray((points + 0.08 * random.randn(len(labels), 2) - (0.5, 0.25)) / 4.0 + 0.5)


def _circles(random: Random, labels: Indices) -> Points:
    """A circle inside another."""
    angle = 2 * np.pi * random.rand(len(labels))
    radius = np.where(labels == 0, 0.4, 0.2) + 0.02 * random.randn(len(labels))
    return np.asarray(0.5 + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1))


def _spirals(random: Random, labels: Indices) -> Points:
    """Two spirals, one turn and a half each, half a turn apart."""
    along = np.sqrt(random.rand(len(labels)))  # equal density along the arm, which is longer outside
    angle = 3 * np.pi * along + np.pi * labels
    points = (0.05 + 0.4 * along)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.asarray(0.5 + points + 0.01 * random.randn(len(labels), 2))


def _three_blobs(random: Random, labels: Indices) -> Points:
    """Three round clouds around an equilateral triangle."""
    angle = np.pi / 2 + 2 * np.pi * labels / 3
    return np.asarray(0.5 + 0.26 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.06 * random.randn(len(labels), 2))


DRAW: dict[str, tuple[Callable[[Random, Indices], Points], int]] = {
    "moons": (_moons, 2),
    "circles": (_circles, 2),
    "spirals": (_spirals, 2),
    "three-blobs": (_three_blobs, 3),
}


def toy(name: str) -> DataSet:
    """Return a toy set: 2,000 training and 1,000 test points in the unit square, the same ones every time."""
    draw, classes = DRAW[name]
    random = Random(sorted(DRAW).index(name) + 1)

    def split(count: int) -> Split:
        labels = random.permutation(np.arange(count) % classes).astype(np.int64)
        return Split(np.clip(draw(random, labels), 0, 1).astype(np.float32), labels)

    train, test = split(TRAIN), split(TEST)
    # The points are in random order: a tenth of each class, from the front.
    holdout = part_of_each_class(train.labels, np.arange(TRAIN), 10)
    return DataSet(name, train, test, tuple(str(label) for label in range(classes)), holdout)
