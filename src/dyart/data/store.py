"""Sets on disk: four .npy files and a manifest in one folder, made whole or not at all, checked when loaded."""

import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyart.data.errors import DataError, check_room, explain_full_disk, explain_unreadable
from dyart.data.mapped import open_npy
from dyart.data.raw import ARRAYS, Raw
from dyart.data.registry import REGISTRY
from dyart.data.sets import DataSet, Split, drawn, first

MANIFEST = "manifest.json"
FORMAT = 1
KEYS = {"name", "shape", "counts", "classes", "holdout", "notes", "source", "checked", "files"}
# Hashing costs about a second per gigabyte: 0.19 s for CIFAR-10 (184 MB), measured on one core of a server.
VERIFY_BELOW = 512 * 1024**2
HOLDOUTS = {"first": first, "drawn": drawn}


def data_root() -> Path:
    """Return the folder of the data sets: ``$DYART_DATA``, else ``$XDG_CACHE_HOME/dyart``, else ``~/.cache/dyart``."""
    if os.environ.get("DYART_DATA"):
        return Path(os.environ["DYART_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dyart"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(
    folder: Path, name: str, raw: Raw, source: str, checked: str, digests: dict[str, str] | None = None, wrong: str = ""
) -> Path:
    """Write a set: into a temporary folder beside ``folder``, which then takes its place in one step.

    A reader sees the old set or the new one, for a moment none, never a half; after an error nothing is left.

    Args:
        folder: where the set will lie. A set that is there already is replaced.
        name: name of the set.
        raw: the set, checked.
        source: where it came from, in words.
        checked: how its integrity was established, in words.
        digests: SHA-256 that the files must have, or None.
        wrong: what is already known to be suspicious about the source, for the error when they have not.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    arrays = raw.arrays()
    needed = sum(array.nbytes for array in arrays.values()) + 4096 * len(arrays)
    check_room(folder.parent, needed)
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with explain_full_disk(folder.parent, needed):
            files = {f"{key}.npy": _write(stage / f"{key}.npy", array) for key, array in arrays.items()}
            if digests is not None:
                _compare(files, digests, source, wrong)
            text = json.dumps(_manifest(name, raw, files, source, checked), indent=1)
            _write_bytes(stage / MANIFEST, text.encode())
            _sync(stage)
        stage.chmod(0o755)  # mkdtemp makes it private
        _replace(stage, folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return folder


def _compare(files: dict[str, dict[str, Any]], digests: dict[str, str], source: str, wrong: str) -> None:
    different = [Path(name).stem for name, digest in digests.items() if files[name]["sha256"] != digest]
    if different:
        raise DataError(
            f"{source} does not hold the published set: {', '.join(different)} differ from it; "
            f"{wrong or 'it was altered'}. Get the files again, or save your own version as an .npz file and load that "
            "by its path"
        )


def _manifest(name: str, raw: Raw, files: dict[str, Any], source: str, checked: str) -> dict[str, Any]:
    counts = {
        part: np.bincount(labels.astype(np.int64), minlength=len(raw.classes)).tolist()
        for part, labels in (("train", raw.train_labels), ("test", raw.test_labels))
    }
    return {
        "format": FORMAT,
        "name": name,
        "shape": list(raw.train_images.shape[1:]),
        "counts": {"train": len(raw.train_labels), "test": len(raw.test_labels)},
        "classes": list(raw.classes),
        "counts_by_class": counts,
        "holdout": "first" if raw.shuffled else "drawn",
        "notes": list(raw.notes),
        "test_rows": None if raw.test_rows is None else raw.test_rows.tolist(),
        "test_files": list(raw.test_files),
        "numbered_by": raw.numbered_by,
        "source": source,
        "checked": checked,
        "files": files,
    }


def _write(path: Path, array: npt.NDArray[Any]) -> dict[str, Any]:
    with path.open("wb") as file:
        # Not numpy's own writer: on a full disk it raises an OSError without the number that tells so.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        if array.size:  # nothing is no memory that could be looked at as bytes
            file.write(array.data.cast("B"))
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": sha256(path), "bytes": path.stat().st_size}


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replace(stage: Path, folder: Path) -> None:
    """Put ``stage`` in the place of ``folder``. An old set moves aside first: a full folder cannot be replaced."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, old / "set")
        try:
            os.rename(stage, folder)
        except OSError:
            with suppress(FileNotFoundError):  # there was none
                os.rename(old / "set", folder)
            raise
        _sync(folder.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Let one process at a time make the set ``name``; others wait. The lock dies with its process."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("a") as file:
        try:
            import fcntl
        except ImportError:  # no such locks here; the rename above still keeps a set whole
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a stored set; None if there is none."""
    path = folder / MANIFEST
    with explain_unreadable(path):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise DataError(f"{path} is truncated or altered ({error}): {again(folder)}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or KEYS - content.keys():
        raise DataError(f"{path} is no manifest of format {FORMAT}: {again(folder)}")
    return content


def again(folder: Path) -> str:
    """Return what to do about a damaged set."""
    own = "" if folder.name in REGISTRY else " --from FILE_OR_FOLDER"
    return f"make it again with: {command(folder.name, folder.parent)}{own}"


def command(name: str, root: Path) -> str:
    """Return the command that gets a set into ``root``, which it names where it is not the usual folder."""
    return f"dyart data get {name}" + ("" if root == data_root() else f" --root {shlex.quote(str(root))}")


def verify(folder: Path, content: dict[str, Any], full: bool) -> None:
    """Raise an error that names the file if a stored file is missing, truncated or (``full``) altered."""
    for key in ARRAYS:
        path, expected = folder / f"{key}.npy", content["files"][f"{key}.npy"]
        with explain_unreadable(path):
            if not path.exists():
                raise DataError(f"{path} is missing: {again(folder)}")
            size = path.stat().st_size
            if size != expected["bytes"]:
                raise DataError(f"{path} has {size:,} bytes instead of {expected['bytes']:,}: {again(folder)}")
            if full and sha256(path) != expected["sha256"]:
                raise DataError(f"{path} was altered (its SHA-256 is not that of the manifest): {again(folder)}")


def open_stored(folder: Path, full: bool | None = None) -> DataSet | None:
    """Return a stored set, images memory-mapped; None if there is none.

    Args:
        folder: the set's folder.
        full: check the SHA-256 of every file; None: if they have less than 512 MB together. Sizes are always checked.
    """
    content = manifest(folder)
    if content is None:
        return None
    size = sum(entry["bytes"] for entry in content["files"].values())
    verify(folder, content, size < VERIFY_BELOW if full is None else full)
    try:
        images = [open_npy(folder / f"{part}_images.npy") for part in ("train", "test")]
        labels = [np.load(folder / f"{part}_labels.npy", allow_pickle=False) for part in ("train", "test")]
    except (ValueError, EOFError) as error:
        raise DataError(f"an array in {folder} cannot be read ({error}): {again(folder)}") from error
    return DataSet(
        name=content["name"],
        train=Split(images[0], labels[0]),
        test=Split(images[1], labels[1]),
        classes=tuple(content["classes"]),
        holdout=HOLDOUTS[content["holdout"]](labels[0]),
        notes=tuple(content["notes"]),
        shuffled=content["holdout"] == "first",
        test_rows=None if (rows := content.get("test_rows")) is None else np.asarray(rows, dtype=np.int64),
        test_files=tuple(content.get("test_files", ())),
        # Sets that were stored before this was noted: pictures lie in the folders of their classes.
        numbered_by=content.get("numbered_by", "folders" if content.get("test_files") else ""),
    )
