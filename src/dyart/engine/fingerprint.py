"""A short fingerprint of the data that a run trains on, by which a resume sees that it is still the same."""

import hashlib
import math
import warnings
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dyart.data.auxiliary import Auxiliary
from dyart.data.sets import DataSet
from dyart.engine.environment import recorded
from dyart.engine.stored import ENVIRONMENT, RunError

FINGERPRINT = "data"  # of environment.json
# Bytes of images that are read at most. CIFAR-10 has 154 MB: 0.15 s, measured on one core of a server.
MOST_BYTES = 256 * 1024**2
# Of a set with more, so many images at most, spread evenly over it: for each, a system may read megabytes ahead.
SAMPLE = 128
BLOCK = 256  # examples that are copied at a time
DIGITS = 16
NAMED = 20  # classes
WORDS = {
    "labels": "other labels",
    "images": "other images or another order",
    "holdout": "another hold-out",
    "names": "other class names",
    "auxiliary_images": "other auxiliary images",
    "auxiliary_labels": "other auxiliary labels",
}


def fingerprint(data: DataSet, auxiliary: Auxiliary | None = None) -> dict[str, Any]:
    """Return what the training part of a set is known by: counts and shape, and digests of its content.

    All images count where they take up to 256 MiB, else at most 128 of them: a larger set may be a memory map of what
    no memory holds. Labels and hold-out count whole, so that an example more or less shows in any case.

    Args:
        data: the set.
        auxiliary: images that are mixed into it.
    """
    return {
        "examples": len(data.train),
        "shape": list(data.shape),
        "classes": len(data.classes),
        "labels": _digest(data.train.labels),
        "images": _images_digest(data.train.images),
        "holdout": _digest(data.holdout),
        "names": list(data.classes),
    } | _of_pool(auxiliary)


def _of_pool(auxiliary: Auxiliary | None) -> dict[str, str]:
    if auxiliary is None:
        return {}
    images, labels = auxiliary.split.images, auxiliary.split.labels
    return {"auxiliary_images": _images_digest(images), "auxiliary_labels": _digest(labels)}


def check_data(folder: Path, data: DataSet) -> None:
    """Refuse to go on with a run on other data than it was begun with. A run without a fingerprint passes.

    Raises:
        RunError: they differ; the message says in what.
    """
    before = recorded(folder / ENVIRONMENT, FINGERPRINT)
    words = _differences(before, fingerprint(data) if before else {})
    if words:
        raise RunError(
            f"{folder} was begun with other data ({', '.join(words)}): images that it was trained on could be held out "
            f"now. Put {data.name} back as it was, or begin another run with --out"
        )


def check_auxiliary(folder: Path, auxiliary: Auxiliary | None) -> None:
    """Refuse to go on with a run whose auxiliary images, or their labels, are others than it was begun with.

    Raises:
        RunError: they differ; the message says in what.
    """
    before = recorded(folder / ENVIRONMENT, FINGERPRINT)
    words = _differences(before, _of_pool(auxiliary) if before else {})
    if words:
        raise RunError(
            f"{folder} was begun with {' and '.join(words)}: put them back as they were, or begin another run with "
            "--out"
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return in words what differs; what an older version has not recorded does not."""
    return [
        WORDS.get(name, f"{name} {old} (now {new})")
        for name, new in now.items()
        if (old := before.get(name, new)) != new
    ]


def check_names(folder: Path, data: DataSet) -> None:
    """Refuse to measure a run on a set that numbers the same classes in another way; warn where names are others.

    Raises:
        RunError: the names are the run's, in another order.
    """
    own = recorded(folder / ENVIRONMENT, FINGERPRINT).get("names") or []
    names = list(data.classes)
    if not own or own == names or all(name.isdecimal() for name in names) or all(name.isdecimal() for name in own):
        return
    order = f"{folder} was trained with the classes {_shown(own)}, in this order; {data.name} has {_shown(names)}"
    if sorted(own) == sorted(names):
        raise RunError(f"{order}: its labels would count as other classes. Number them as in the run")
    warnings.warn(f"{order}: if these are other classes, the numbers mean nothing", stacklevel=2)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _images_digest(images: npt.NDArray[Any]) -> str:
    small = images.nbytes <= MOST_BYTES
    step = 1 if small else max(math.ceil(len(images) / SAMPLE), math.ceil(images.nbytes / MOST_BYTES))
    return _digest(images[::step])


def _digest(array: npt.NDArray[Any]) -> str:
    total = hashlib.sha256()
    for first in range(0, len(array), BLOCK):
        total.update(array[first : first + BLOCK].tobytes())
    return total.hexdigest()[:DIGITS]
