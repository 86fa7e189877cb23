"""The embedded set ``fashion-mini``: a balanced tenth of Fashion-MNIST that comes with the package (MIT license)."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from dyart.data.errors import DataError
from dyart.data.names import FASHION
from dyart.data.sets import HOLDOUT, DataSet, Split

MINI = "fashion-mini"
MINI_FILE = Path(__file__).parent / "fashion_mini.npz"
MINI_SHA256 = "db2c4c5b10e51304ae57138a069ab4c0e7c5ba4136b1a30404071a2b0a543ec5"
TRAIN, TEST = 6_000, 2_000


def fashion_mini() -> DataSet:
    """Return 6,000 training and 2,000 test images [1, 28, 28], 600 and 200 of each of the ten classes.

    Every ten images in a row hold one of each class, so that any first part is balanced. The hold-out is the first
    1,024.
    """
    try:
        with MINI_FILE.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # the format checks its CRC
            arrays = {key: archive[key] for key in ("train_images", "train_labels", "test_images", "test_labels")}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{MINI_FILE} is missing or damaged ({error}): install dyart again") from error
    return DataSet(
        name=MINI,
        train=Split(arrays["train_images"][:, None], arrays["train_labels"].astype(np.int64)),
        test=Split(arrays["test_images"][:, None], arrays["test_labels"].astype(np.int64)),
        classes=FASHION,
        holdout=np.arange(HOLDOUT, dtype=np.int64),
    )
