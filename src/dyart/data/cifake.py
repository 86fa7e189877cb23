"""Reader of CIFAKE: images of CIFAR-10's classes that a diffusion model generated, as JPEG files."""

import re

import numpy as np

from dyart.data.errors import DataError
from dyart.data.pictures import Progress, read_pictures
from dyart.data.raw import Raw
from dyart.data.trees import Tree

# "train/FAKE/17.jpg" is of the first class, "train/FAKE/17 (4).jpg" of the fourth. REAL has CIFAR-10's own images.
GENERATED = re.compile(r"(?:^|/)(train|test)/FAKE/(\d+)(?: \((\d+)\))?\.jpe?g$")


def read_cifake(tree: Tree, classes: tuple[str, ...], progress: Progress | None = None) -> Raw | None:
    """Return the generated images, sorted by class and number; None where there are none."""
    found = []
    for name in tree.names:
        if (match := GENERATED.search(name)) is not None:
            part, number, place = match.groups()
            label = int(place or 1) - 1
            if not 0 <= label < len(classes):
                raise DataError(f"{tree.where(name)}: there are {len(classes)} classes, and it is of number {place}")
            found.append((part == "test", label, int(number), name))
    if not found:
        return None
    found.sort()
    images, _ = read_pictures(tree, [name for *_, name in found], "reading pictures", progress)
    is_test, labels = (np.array([one[column] for one in found]) for column in (0, 1))
    parts = images[~is_test], labels[~is_test], images[is_test], labels[is_test]
    return Raw(*parts, classes, shuffled=False)
