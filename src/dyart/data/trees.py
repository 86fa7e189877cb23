"""Files inside a folder, a zip, a tar or alone, read in one way: readers need not know what the user has."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from dyart.data.errors import DataError, explain_unreadable


class Tree(Protocol):
    """Named files. Names use ``/``; ``where`` says in an error where a name lies."""

    @property
    def names(self) -> Sequence[str]:
        """All names."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of one file; an error names the file."""
        ...

    def where(self, name: str) -> str:
        """Return the file's place in words."""
        ...


class FolderTree:
    """All files below a folder, or one file."""

    def __init__(self, path: Path) -> None:
        """List the files; nothing is read yet."""
        self.path = path if path.is_dir() else path.parent
        with explain_unreadable(path):
            self.names = sorted(_walk(path, "")) if path.is_dir() else [path.name]

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        path = self.path / name
        with explain_unreadable(path):
            return path.read_bytes()

    def where(self, name: str) -> str:
        """Return the file's path."""
        return str(self.path / name)


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    # Path.rglob skips folders without permission in silence: they would be classes without images.
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"


def _hidden(name: str) -> bool:
    """Return whether a file in an archive is hidden, or in a folder that is, as ``_walk`` skips them.

    Such are .DS_Store, .ipynb_checkpoints/, and macOS's shadow of every file.
    """
    parts = name.split("/")
    return "__MACOSX" in parts[:-1] or any(part.startswith(".") and part not in (".", "..") for part in parts)


class ZipTree:
    """The files of a zip, read one by one; every read checks the file's CRC."""

    def __init__(self, path: Path) -> None:
        """Read the directory of the zip."""
        self.path = path
        with damage_in(str(path)):
            self.archive = zipfile.ZipFile(path)
            self.names = [name for name in self.archive.namelist() if not name.endswith("/") and not _hidden(name)]

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        with damage_in(self.where(name)):
            try:
                return self.archive.read(name)
            except RuntimeError as error:  # a password, or a compression that this Python has not
                raise DataError(f"{self.where(name)}: {error}; unpack the archive and name the folder") from error

    def where(self, name: str) -> str:
        """Return the archive and the name in it."""
        return f"{self.path} ({name})"


class TarTree:
    """The files of a tar, which has no directory: read whole into memory (the sets that come so are below 200 MB)."""

    def __init__(self, path: Path) -> None:
        """Read all files. Nothing is extracted, so no path inside can reach anywhere."""
        self.path = path
        self.files: dict[str, bytes] = {}
        with damage_in(str(path)), tarfile.open(path, "r:*") as archive:
            for member in archive:
                handle = archive.extractfile(member) if member.isfile() and not _hidden(member.name) else None
                if handle is not None:
                    self.files[member.name] = handle.read()
        self.names = sorted(self.files)

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        return self.files[name]

    def where(self, name: str) -> str:
        """Return the archive and the name in it."""
        return f"{self.path} ({name})"


def open_tree(path: Path) -> Tree:
    """Return what a path holds: a folder, the inside of a zip or tar, or the file itself."""
    with explain_unreadable(path):
        if not path.exists():
            raise DataError(f"{path} does not exist")
        if path.is_dir():
            return FolderTree(path)
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: get it again")
        if path.suffix == ".zip":
            return ZipTree(path)
        if path.suffix in (".tar", ".tgz") or path.name.endswith(".tar.gz"):
            return TarTree(path)
    return FolderTree(path)


def find(tree: Tree, *endings: str) -> str | None:
    """Return the shortest name whose last part is one of ``endings``, tried in turn; None if there is none."""
    for ending in endings:
        found = [name for name in tree.names if name.rsplit("/", 1)[-1] == ending]
        if found:
            return min(found, key=len)
    return None


def gunzip(data: bytes, where: str) -> bytes:
    """Return the content of a gzip file, whose length and CRC are checked."""
    with damage_in(where):
        return gzip.decompress(data)


@contextmanager
def damage_in(where: str) -> Iterator[None]:
    """Turn every way in which an archive can be cut or altered into one error that names it."""
    try:
        yield
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise DataError(f"{where} is truncated or altered ({error}): get it again") from error
