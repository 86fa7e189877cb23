"""A user's own arrays: an .npz file, or .npy files in a folder; checked as strictly as they are described."""

import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError, explain_unreadable
from dyart.data.folders import TEST, draw_test, no_test_note, read_class_folders
from dyart.data.layouts import as_images, scale_notes
from dyart.data.mapped import open_npy
from dyart.data.pictures import Progress, Size
from dyart.data.raw import ARRAYS, Raw, check
from dyart.data.sets import Indices, NumberedBy
from dyart.data.trees import open_tree

Array = npt.NDArray[Any]

# The names under which the arrays of a training part are commonly saved, in capitals or not. A test part has the names
# of folders of pictures in its own: test_images or x_test, val_images or x_val, and so on.
IMAGES = ("train_images", "x_train", "images", "x", "data")
LABELS = ("train_labels", "y_train", "labels", "y", "targets")

MOST_CLASSES = 100_000  # of a test part alone, which need not show them all


def read_user(
    path: Path, progress: Progress | None = None, size: Size | None = None, get: str = "dyart data get NAME"
) -> Raw:
    """Return the set at a path: an .npz file, a folder with .npy files, or pictures in one folder per class.

    Args:
        path: of the set.
        progress: called with (words, done, total) while pictures are read.
        size: width and height that all pictures are brought to; None: they must have one.
        get: the command that stores the set, for the error about pictures of several sizes.
    """
    with explain_unreadable(path):
        if path.is_file() and path.suffix == ".npz":
            _refuse_size(path, size)
            return read_arrays(_npz(path), str(path))
        if path.is_dir() and any(path.glob("*.npy")):
            _refuse_size(path, size)
            arrays = {file.stem: _npy(file) for file in sorted(path.glob("*.npy"))}
            return read_arrays(arrays, str(path))
        if path.is_dir() or path.name.endswith((".zip", ".tar", ".tgz", ".tar.gz")):
            advice = (
                f"{get} --from {shlex.quote(str(path))} --size N cuts every one to a square around its centre, resizes "
                "it to N x N pixels (or WIDTHxHEIGHT) and stores the set under that name"
            )
            raw = read_class_folders(open_tree(path), progress, where=str(path), size=size, advice=advice)
            if raw is not None:
                return check(raw, str(path), test_alone=len(raw.train_labels) == 0)
    if path.is_file() and path.suffix == ".npy":
        raise DataError(f"{path} is one array: name the folder with train_images.npy, train_labels.npy and so on")
    raise DataError(
        f"{path} holds no data set; known are an .npz file or a folder of .npy files with {', '.join(ARRAYS)} (or "
        "images and labels), and pictures in train/<class>/ and test/<class>/, or in <class>/"
    )


def _refuse_size(path: Path, size: Size | None) -> None:
    if size is not None:
        raise DataError(f"{path} holds arrays, whose images have one size: leave --size out, it is for pictures")


def _npz(path: Path) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and say how to run that
        raise DataError(f"{path} is no .npz archive, as numpy.savez writes it: truncated, altered or something else")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except PermissionError:
        raise
    except Exception as error:  # numpy, zipfile and zlib each have their own errors for a damaged file
        words = f"{path} is truncated, altered or no .npz of plain arrays ({error}){_objects(error)}"
        raise DataError(words) from error


def _npy(path: Path) -> Array:
    try:
        return open_npy(path)
    except PermissionError:
        raise
    except Exception as error:
        raise DataError(f"{path} is truncated, altered or no plain .npy array ({error}){_objects(error)}") from error


def _objects(error: Exception) -> str:
    """Return what to do about an array of Python objects, as pandas has its texts."""
    return "; save names as labels.astype(str), numbers as labels.astype(int)" if "Object arrays" in str(error) else ""


def read_arrays(arrays: Mapping[str, Array], where: str) -> Raw:
    """Return the set that arrays make up, by any of their usual names; ``where`` is for messages."""
    lower = {name.lower(): array for name, array in arrays.items()}
    images, labels = (next((lower[name] for name in names if name in lower), None) for names in (IMAGES, LABELS))
    test_images, test_labels, unused = _test_part(lower, where)
    names = lower.get("classes", lower.get("class_names"))
    if images is None and labels is None and test_images is not None and test_labels is not None:
        return _test_alone(test_images, test_labels, names, unused, where)
    if images is None or labels is None:
        raise DataError(
            f"{where} has the arrays {', '.join(map(repr, arrays)) or '(none)'}; needed are {', '.join(ARRAYS)}, or "
            "images and labels"
        )
    train_images, train_labels = as_images(images, f"{where} (training images)"), _flat(labels, where)
    notes = scale_notes(train_images) + unused
    if test_images is not None and test_labels is not None:
        test = as_images(test_images, f"{where} (test images)")
        train_labels, test_labels, classes, by = _numbered(train_labels, _flat(test_labels, where), names, where)
        raw = Raw(train_images, train_labels, test, test_labels, classes, False, notes, numbered_by=by)
        return check(raw, where)
    if len(train_images) != len(train_labels):
        raise DataError(
            f"{where}: {len(train_images):,} images and {len(train_labels):,} labels; one label each is needed"
        )
    train_labels, _, classes, by = _numbered(train_labels, train_labels[:0], names, where)
    chosen = draw_test(train_labels)
    if not chosen.any():
        raise DataError(
            f"{where}: {len(train_labels)} examples of {len(classes)} classes are too few to draw a test part from; "
            "give test_images and test_labels"
        )
    notes += (no_test_note(chosen),)
    images, labels, rest = train_images, train_labels, ~chosen
    parts = images[rest], labels[rest], images[chosen], labels[chosen]
    return check(Raw(*parts, classes, False, notes, np.flatnonzero(chosen), numbered_by=by), where)


def _test_part(arrays: Mapping[str, Array], where: str) -> tuple[Array | None, Array | None, tuple[str, ...]]:
    """Return images and labels of the likeliest test part, as of folders of pictures, and a note if others are left."""
    parts = {}
    for part in TEST:
        pair = tuple(
            next((name for name in names if name in arrays), None)
            for names in ((f"{part}_images", f"x_{part}"), (f"{part}_labels", f"y_{part}"))
        )
        if any(pair):
            parts[part] = pair
    if not parts:
        return None, None, ()
    (part, (images, labels)), *others = parts.items()
    if images is None or labels is None:
        instead = next((f" ({other} is the test part then)" for other, pair in others if all(pair)), "")
        alone, missing = (
            (images, f"y_{part} or {part}_labels") if labels is None else (labels, f"x_{part} or {part}_images")
        )
        raise DataError(f"{where} has {alone} and no {missing} that belong to it; give both or neither{instead}")
    left = [name for _, pair in others for name in pair if name is not None]
    notes = (f"{images} and {labels} are the test part; {', '.join(left)} not used",) if left else ()
    return arrays[images], arrays[labels], notes


def _test_alone(images: Array, labels: Array, names: Array | None, unused: tuple[str, ...], where: str) -> Raw:
    """Return a set without a training part: enough to measure a network."""
    test = as_images(images, f"{where} (test images)")
    numbers, _, classes, by = _numbered(_flat(labels, where), np.zeros(0, labels.dtype), names, where, MOST_CLASSES)
    raw = Raw(test[:0], numbers[:0], test, numbers, classes, False, scale_notes(test) + unused, numbered_by=by)
    return check(raw, where, test_alone=True)


def _flat(labels: Array, where: str) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where}: labels have shape {labels.shape}; one whole number (or name) per example is needed")
    if labels.dtype.kind not in "iuUS":
        raise DataError(f"{where}: labels have type {labels.dtype}; whole numbers (or names) are needed")
    return np.array(labels)  # in memory: they are small, and all are looked at


def _numbered(
    train: Array, test: Array, names: Array | None, where: str, most: int = 0
) -> tuple[Indices, Indices, tuple[str, ...], NumberedBy]:
    """Return the labels as numbers, the names of the classes, and whose order that is.

    There may be as many classes as there are examples, or ``most``.
    """
    if names is not None and names.ndim != 1:
        raise DataError(f"{where}: classes have shape {names.shape}; one name per class is needed, or leave them out")
    classes = () if names is None else _words(names)
    if (train.dtype.kind in "US") != (test.dtype.kind in "US"):
        raise DataError(
            f"{where}: training labels have type {train.dtype}, test labels {test.dtype}; use numbers in both, or names"
        )
    if train.dtype.kind in "US":
        train_words = _words(train)
        by: NumberedBy = "" if classes else "digits" if _are_digits(train_words) else "names"
        return *_by_name(train_words, _words(test), classes or _sorted_names(train_words), where), by
    count = int(train.max()) + 1 if len(train) else 0
    if count > max(len(train), most):  # before a name is made for each of them
        raise DataError(
            f"{where}: labels go up to {count - 1:,}, and there are {len(train):,} examples, at least one per class; "
            "renumber them without gaps: labels = numpy.unique(labels, return_inverse=True)[1]"
        )
    classes = classes or tuple(str(number) for number in range(count))
    return train.astype(np.int64), test.astype(np.int64), classes, ""


def _by_name(
    train: tuple[str, ...], test: tuple[str, ...], classes: tuple[str, ...], where: str
) -> tuple[Indices, Indices, tuple[str, ...]]:
    """Return labels that are names as numbers, in the order of ``classes``; those of both parts are of one order."""
    if strange := sorted(set(train) - set(classes)):
        raise DataError(f"{where}: the labels {strange} are not among the classes {list(classes)}")
    if strange := sorted(set(test) - set(train)):
        raise DataError(f"{where}: test labels {strange} have no training example")
    numbers = {name: number for number, name in enumerate(classes)}
    first, second = (np.array([numbers[name] for name in part], dtype=np.int64) for part in (train, test))
    return first, second, classes


def _are_digits(names: tuple[str, ...]) -> bool:
    return all(name.isascii() and name.isdigit() for name in names)


def _sorted_names(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return each name once, in alphabetical order; digits as the numbers they are: 2 before 10."""
    names = sorted(set(labels))
    if _are_digits(labels):
        longest = max(map(len, names), default=0)
        names.sort(key=lambda name: name.zfill(longest))  # int() refuses very long ones
    return tuple(names)


def _words(names: Array) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
