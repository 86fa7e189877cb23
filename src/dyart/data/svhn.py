"""Reader of SVHN's .mat files. Needs scipy, imported where used."""

import io

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.raw import Raw
from dyart.data.trees import Tree, find


def read_svhn(tree: Tree, classes: tuple[str, ...]) -> Raw | None:
    """Return SVHN (cropped digits) from ``train_32x32.mat`` and ``test_32x32.mat``; None if neither is there."""
    names = [find(tree, f"{part}_32x32.mat") for part in ("train", "test")]
    if names == [None, None]:
        return None
    if names[0] is None or names[1] is None:
        raise DataError("SVHN needs both train_32x32.mat and test_32x32.mat; one is missing")
    (train_images, train_labels), (test_images, test_labels) = (_mat(tree.read(n), tree.where(n)) for n in names if n)
    return Raw(train_images, train_labels, test_images, test_labels, classes)


def _mat(data: bytes, where: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.integer]]:
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise DataError("reading SVHN needs scipy: pip install scipy (or dyart's extra 'train')") from error
    try:
        content = loadmat(io.BytesIO(data), variable_names=("X", "y"))
        images, labels = content["X"], content["y"].reshape(-1)
    except Exception as error:  # scipy, zlib and struct each have their own errors for a damaged file
        raise DataError(f"{where} is truncated or altered ({type(error).__name__}: {error}): get it again") from error
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] != len(labels):
        raise DataError(f"{where}: {images.dtype} images {images.shape} and {len(labels)} labels do not fit")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10  # the digit 0 is stored as 10
