"""One process at a time trains in a run's folder; the lock dies with its process, however that ends."""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FILE = ".lock"


class LockedError(RuntimeError):
    """Another process trains in this folder; the message says which."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which must exist, so that no other process trains there.

    On a file system without locks, and on Windows, nothing keeps them out.

    Raises:
        LockedError: another process is at work there.
        OSError: the folder cannot be written to.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = folder / FILE
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise LockedError(_taken(folder, file)) from None
        except OSError:  # a file system that knows no locks
            with file:
                yield
            return
        if _is_at(path, file):
            break
        file.close()  # its owner took it away after we had opened it
    with file:
        file.truncate(0)
        json.dump({"process": os.getpid(), "host": platform.node(), "since": time.strftime("%F %T %Z")}, file)
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _taken(folder: Path, file: IO[str]) -> str:
    file.seek(0)
    try:
        owner: dict[str, Any] = json.loads(file.read())
        who = f"process {owner['process']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):  # it has not written who it is yet
        who = "another process"
    return f"{folder} is in use by {who}: wait until it ends, stop it, or choose another folder with --out"
