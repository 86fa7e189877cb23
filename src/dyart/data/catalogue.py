"""Which data sets there are, and loading one of them by name or path."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError, MissingDataError
from dyart.data.mini import MINI, MINI_FILE, TEST, TRAIN, fashion_mini
from dyart.data.names import FASHION
from dyart.data.obtain import unknown
from dyart.data.raw import Raw
from dyart.data.registry import REGISTRY
from dyart.data.sets import DataSet, Split, drawn
from dyart.data.store import command, data_root, manifest, open_stored
from dyart.data.toy import DRAW, toy
from dyart.data.toy import TEST as TOY_TEST
from dyart.data.toy import TRAIN as TOY_TRAIN
from dyart.data.user import read_arrays, read_user


def load(name: str, root: Path | None = None, verify: bool | None = None) -> DataSet:
    """Return a data set.

    Args:
        name: a registered name, the name of a set that was stored with ``get``, a toy set, or a path: an .npz file, a
            folder of .npy files, or pictures in one folder per class. Where it is both, the name counts, and a note of
            the set says so; ``./NAME`` is the path.
        root: folder of the data sets; None: :func:`data_root`.
        verify: check the SHA-256 of the stored files; None: if they have less than 512 MB together (their sizes are
            always checked), so that loading stays quick.
    """
    name = str(name)
    root = data_root() if root is None else Path(root).expanduser()
    found = _by_name(name, root, verify)
    if found is not None:
        data, folder = found
        where = "that comes with the package" if folder is None else f"stored in {folder}"
        other = _namesake(name, folder)
        return replace(data, notes=(f"the set {where} is taken; {other}", *data.notes)) if other else data
    if name in REGISTRY:
        ways = filter(None, (command(name, root), _namesake(name)))
        raise MissingDataError(f"the data set {name} is not in {root}; get it with: {'; '.join(ways)}")
    path = Path(name).expanduser()
    if not path.exists():
        raise MissingDataError(
            f"{unknown(name)}; and there is no file or folder of that name, seen from {Path.cwd()}. If it was moved, "
            "name its new place: --data.name of a training, --data where a network is measured"
        )
    stored = open_stored(path, verify)
    if stored is not None:
        return stored
    return _own(name, read_user(path, get=command("NAME", root)))


def _by_name(name: str, root: Path, verify: bool | None) -> tuple[DataSet, Path | None] | None:
    """Return the set of a name and its folder (None: it comes with the package); None if none is stored under it."""
    if name == MINI:
        return fashion_mini(), None
    if name in DRAW:
        return toy(name), None
    if Path(name).name != name or name in ("", ".", ".."):
        return None
    stored = open_stored(root / name, verify)
    return None if stored is None else (stored, root / name)


def _namesake(name: str, folder: Path | None = None) -> str:
    """Return how to take what has a set's name in the working directory; "" if nothing has, or the set lies there."""
    path = Path(name)
    if not path.exists() or (folder is not None and path.samefile(folder)):
        return ""
    return f"to take the {'folder' if path.is_dir() else 'file'} {name} in the working directory, name it ./{name}"


def from_arrays(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    test_images: npt.ArrayLike | None = None,
    test_labels: npt.ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    name: str = "own",
) -> DataSet:
    """Return a data set of arrays, checked as a file of them is: for ``dyart.engine.run.train(config, data=...)``.

    Args:
        images: ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``, uint8; or vectors ``[N, D]``, floating point in
            [0, 1]. Tensors on the CPU are arrays, too.
        labels: ``[N]``, numbers from 0 on, or names.
        test_images: likewise; None: a fifth of the images is set aside.
        test_labels: likewise.
        classes: names of the classes, in the order of the labels.
        name: what a run says that it was trained on.

    Raises:
        DataError: something does not fit; the message says what.
    """
    given = {"images": images, "labels": labels, "test_images": test_images, "test_labels": test_labels}
    arrays = {key: np.asarray(part) for key, part in (given | {"classes": classes}).items() if part is not None}
    return _own(name, read_arrays(arrays, name))


def _own(name: str, raw: Raw) -> DataSet:
    labels = raw.train_labels.astype(np.int64)
    return DataSet(
        name=name,
        train=Split(raw.train_images, labels),
        test=Split(raw.test_images, raw.test_labels.astype(np.int64)),
        classes=raw.classes,
        holdout=drawn(labels),
        notes=raw.notes,
        shuffled=False,  # a user's set may be in any order
        test_rows=raw.test_rows,
        test_files=raw.test_files,
        numbered_by=raw.numbered_by,
    )


@dataclass(frozen=True)
class Listed:
    """One line of the list of data sets; ``where`` is the folder of a set that is present, and empty otherwise."""

    name: str
    classes: int
    shape: tuple[int, ...]
    train: int
    test: int
    source: str
    present: bool
    where: str


def listing(root: Path | None = None) -> list[Listed]:
    """Return all sets that can be loaded by name: embedded, registered, stored by the user, and toys."""
    root = data_root() if root is None else Path(root).expanduser()
    lines = [Listed(MINI, len(FASHION), (1, 28, 28), TRAIN, TEST, "in the package", True, str(MINI_FILE))]
    for entry in REGISTRY.values():
        present = _stored(root / entry.name)
        where = str(root / entry.name) if present else ""
        lines.append(
            Listed(entry.name, entry.count, entry.shape, entry.train, entry.test, entry.source, present, where)
        )
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.name not in REGISTRY and not folder.name.startswith(".") and _stored(folder):
            content = manifest(folder) or {}
            counts, shape = content["counts"], tuple(content["shape"])
            classes, source = len(content["classes"]), content["source"]
            lines.append(
                Listed(folder.name, classes, shape, counts["train"], counts["test"], source, True, str(folder))
            )
    lines += [
        Listed(name, classes, (2,), TOY_TRAIN, TOY_TEST, "drawn by numpy", True, "in the package")
        for name, (_, classes) in DRAW.items()
    ]
    return lines


def _stored(folder: Path) -> bool:
    try:
        return manifest(folder) is not None
    except DataError:  # damaged: as good as absent; loading it says what is wrong
        return False
