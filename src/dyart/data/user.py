"""A user's own arrays: an .npz file, or .npy files in a folder; checked as strictly as they are described."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError, explain_unreadable
from dyart.data.folders import draw_test, no_test_note, read_class_folders
from dyart.data.mapped import open_npy
from dyart.data.pictures import Progress
from dyart.data.raw import ARRAYS, Raw, check
from dyart.data.sets import Images
from dyart.data.trees import open_tree

Array = npt.NDArray[Any]

# Each of our names, and the other names under which such arrays are commonly saved.
NAMES = {
    "train_images": ("train_images", "x_train", "X_train", "images", "x", "X", "data"),
    "train_labels": ("train_labels", "y_train", "labels", "y", "targets"),
    "test_images": ("test_images", "x_test", "X_test"),
    "test_labels": ("test_labels", "y_test"),
}


def read_user(path: Path, progress: Progress | None = None) -> Raw:
    """Return the set at a path: an .npz file, a folder with .npy files, or pictures in one folder per class."""
    with explain_unreadable(path):
        if path.is_file() and path.suffix == ".npz":
            return _from_arrays(_npz(path), str(path))
        if path.is_dir() and any(path.glob("*.npy")):
            arrays = {file.stem: _npy(file) for file in sorted(path.glob("*.npy"))}
            return _from_arrays(arrays, str(path))
        if path.is_dir() or path.name.endswith((".zip", ".tar", ".tgz", ".tar.gz")):
            raw = read_class_folders(open_tree(path), progress, where=str(path))
            if raw is not None:
                return check(raw, str(path))
    raise DataError(
        f"{path} holds no data set; known are an .npz file or a folder of .npy files with {', '.join(ARRAYS)} (or "
        "images and labels), and pictures in train/<class>/ and test/<class>/, or in <class>/"
    )


def _npz(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except PermissionError:
        raise
    except Exception as error:  # numpy, zipfile and zlib each have their own errors for a damaged file
        raise DataError(f"{path} is truncated, altered or no .npz of plain arrays ({error})") from error


def _npy(path: Path) -> Array:
    try:
        return open_npy(path)
    except PermissionError:
        raise
    except Exception as error:
        raise DataError(f"{path} is truncated, altered or no plain .npy array ({error})") from error


def _from_arrays(arrays: Mapping[str, Array], where: str) -> Raw:
    found = {ours: next((arrays[name] for name in names if name in arrays), None) for ours, names in NAMES.items()}
    images, labels = found["train_images"], found["train_labels"]
    if images is None or labels is None:
        raise DataError(
            f"{where} has the arrays {', '.join(arrays) or '(none)'}; needed are {', '.join(ARRAYS)}, or images and "
            "labels"
        )
    train_images, train_labels = as_images(images, f"{where} (training images)"), _flat(labels, where)
    test_images, test_labels = found["test_images"], found["test_labels"]
    if (test_images is None) != (test_labels is None):
        raise DataError(f"{where} has only one of test_images and test_labels; give both or neither")
    names = arrays.get("classes", arrays.get("class_names"))
    if test_images is not None and test_labels is not None:
        test = as_images(test_images, f"{where} (test images)")
        train_labels, test_labels, classes = _numbered(train_labels, _flat(test_labels, where), names, where)
        return check(Raw(train_images, train_labels, test, test_labels, classes, False), where)
    if len(train_images) != len(train_labels):
        raise DataError(
            f"{where}: {len(train_images):,} images and {len(train_labels):,} labels; one label each is needed"
        )
    train_labels, _, classes = _numbered(train_labels, train_labels[:0], names, where)
    chosen = draw_test(train_labels)
    notes = (no_test_note(chosen),)
    images, labels, rest = train_images, train_labels, ~chosen
    return check(Raw(images[rest], labels[rest], images[chosen], labels[chosen], classes, False, notes), where)


def as_images(array: Array, where: str) -> Images:
    """Return images as uint8 [N, C, H, W], or vectors as float32 [N, D] in [0, 1].

    Accepts uint8 [N, H, W], [N, H, W, C] and [N, C, H, W] with C of 1 or 3, and floating-point [N, D]. A memory map
    stays one: images with the channels last are then a view, put in order batch by batch.
    """
    if array.ndim == 2 and array.dtype.kind == "f":
        if array.size and not (array.min() >= 0 and array.max() <= 1):  # so that nan fails, too
            raise DataError(f"{where}: vectors must lie in [0, 1], found {array.min()} to {array.max()}: rescale them")
        return array.astype(np.float32, copy=False)
    if array.dtype != np.uint8:
        unit = array.dtype.kind == "f" and array.size and float(array.max()) <= 1
        hint = "(images * 255).round().astype(numpy.uint8)" if unit else "images.round().astype(numpy.uint8)"
        raise DataError(f"{where} have type {array.dtype}; uint8 from 0 to 255 is needed: save {hint}")
    if array.ndim == 3:
        return array[:, None]
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


def _flat(labels: Array, where: str) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where}: labels have shape {labels.shape}; one whole number (or name) per example is needed")
    if labels.dtype.kind not in "iuUS":
        raise DataError(f"{where}: labels have type {labels.dtype}; whole numbers (or names) are needed")
    return np.array(labels)  # in memory: they are small, and all are looked at


def _numbered(
    train: Array, test: Array, names: Array | None, where: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], tuple[str, ...]]:
    """Return the labels as numbers, and the names of the classes."""
    if train.dtype.kind in "US":
        found = np.unique(train)
        strange = set(test.tolist()) - set(found.tolist())
        if strange:
            raise DataError(f"{where}: test labels {sorted(map(str, strange))} have no training example")
        classes = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in found.tolist())
        return np.searchsorted(found, train), np.searchsorted(found, test), classes
    count = int(train.max()) + 1 if len(train) else 0
    if count > len(train):  # before a name is made for each of them
        raise DataError(
            f"{where}: labels go up to {count - 1:,}, and there are {len(train):,} examples, at least one per class; "
            "renumber them without gaps: labels = numpy.unique(labels, return_inverse=True)[1]"
        )
    if names is not None:
        classes = tuple(str(name) for name in names.tolist())
    else:
        classes = tuple(str(number) for number in range(count))
    return train.astype(np.int64), test.astype(np.int64), classes
