"""What goes wrong with data, in words that name the file and say what to do."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataError(ValueError):
    """A data set that is missing, damaged or not usable; the message names the file and says what to do."""


class MissingDataError(DataError):
    """A data set that is not on this machine; the message gives the command that gets it."""


def megabytes(size: int) -> str:
    """Return a size in words, e.g. ``170.5 MB``."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size:,} bytes"


def check_room(folder: Path, needed: int) -> None:
    """Raise before any work if the disk of ``folder`` has not ``needed`` bytes left."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(_no_room(folder, needed, free))


@contextmanager
def explain_full_disk(folder: Path, needed: int) -> Iterator[None]:
    """Turn "no space left on device" (or a quota that is used up) into an error that says how much is needed where."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DataError(_no_room(folder, needed, shutil.disk_usage(folder).free)) from error


def _no_room(folder: Path, needed: int, free: int) -> str:
    return (
        f"the disk that holds {folder} is full: {megabytes(needed)} are needed there and {megabytes(free)} are free; "
        "make room, or set DYART_DATA to a folder on another disk. Nothing half-made was left behind"
    )


@contextmanager
def explain_unreadable(path: Path) -> Iterator[None]:
    """Turn a missing permission into an error that names the file or folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise DataError(
            f"{error.filename or path} cannot be read or written ({error.strerror}): change its permissions, or use "
            "another folder"
        ) from error
