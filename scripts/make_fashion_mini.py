"""Make the embedded data set fashion-mini from the four files of Fashion-MNIST (MIT license).

    python scripts/make_fashion_mini.py FOLDER_WITH_THE_FOUR_IDX_FILES

Writes src/dyart/data/fashion_mini.npz: 600 training and 200 test images of each class, drawn with a fixed seed from the
training and the test part. Every ten images in a row hold one of each class, in random order, so that any first part
of the set is balanced. The arrays are the same on every machine; the bytes of the file depend on the zlib in use.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dyart.data.errors import megabytes
from dyart.data.idx import read_idx
from dyart.data.mini import MINI_FILE, TEST, TRAIN
from dyart.data.names import FASHION
from dyart.data.trees import open_tree

SEED = 13


def balanced(labels: npt.NDArray[np.integer], count: int, random: np.random.RandomState) -> npt.NDArray[np.int64]:
    """Return ``count`` indices: each row of K in turn holds one random example of each of the K classes."""
    classes = len(FASHION)
    columns = [random.permutation(np.flatnonzero(labels == label))[: count // classes] for label in range(classes)]
    rows = np.stack(columns, 1)
    return np.concatenate([row[random.permutation(classes)] for row in rows])


def main(folder: Path) -> None:
    """Write the file and say how large it is."""
    raw = read_idx(open_tree(folder), FASHION)
    if raw is None:
        raise SystemExit(f"{folder} has no idx files")
    random = np.random.RandomState(SEED)
    train, test = balanced(raw.train_labels, TRAIN, random), balanced(raw.test_labels, TEST, random)
    np.savez_compressed(
        MINI_FILE,
        train_images=raw.train_images[train, 0],
        train_labels=raw.train_labels[train].astype(np.uint8),
        test_images=raw.test_images[test, 0],
        test_labels=raw.test_labels[test].astype(np.uint8),
    )
    print(f"{MINI_FILE}: {megabytes(MINI_FILE.stat().st_size)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
