"""Reader of the idx files of MNIST and Fashion-MNIST."""

import math

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.raw import Raw
from dyart.data.trees import Tree, find, gunzip

UNSIGNED_BYTE = 8
PARTS = {"train": "train", "test": "t10k"}


def parse_idx(data: bytes, where: str) -> npt.NDArray[np.uint8]:
    """Return the array in an idx file: two zero bytes, the type, the number of axes, their lengths, the values."""
    if len(data) < 4 or len(data) < 4 + 4 * data[3] or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTE:
        raise DataError(f"{where} is no idx file of unsigned bytes (it starts with {data[:4]!r}): get it again")
    start = 4 + 4 * data[3]
    shape = tuple(int(length) for length in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"{where} is truncated or altered: its header promises {shape} values, and {len(data) - start:,} "
            "follow; get it again"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def read_idx(tree: Tree, classes: tuple[str, ...]) -> Raw | None:
    """Return the set in four idx files, gzipped or not; None if the tree has no such file."""
    arrays: dict[str, npt.NDArray[np.uint8]] = {}
    missing = []
    for part, prefix in PARTS.items():
        for kind, axes in (("images", 3), ("labels", 1)):
            stem = f"{prefix}-{kind}-idx{axes}-ubyte"
            name = find(tree, stem + ".gz", stem, stem.replace("-idx", ".idx"))
            if name is None:
                missing.append(stem + ".gz")
                continue
            data = tree.read(name)
            array = parse_idx(gunzip(data, tree.where(name)) if name.endswith(".gz") else data, tree.where(name))
            if array.ndim != axes:
                raise DataError(f"{tree.where(name)} holds an array of shape {array.shape}; {axes} axes were expected")
            arrays[f"{part}_{kind}"] = array
    if not arrays:
        return None
    if missing:
        raise DataError(f"{', '.join(missing)} missing: the set needs all four files")
    return Raw(
        train_images=arrays["train_images"][:, None],
        train_labels=arrays["train_labels"],
        test_images=arrays["test_images"][:, None],
        test_labels=arrays["test_labels"],
        classes=classes,
    )
