"""Faults while a checkpoint is written: at any of its file operations the process is killed, or the system refuses.

``faulty_save`` meets a fault while it writes a checkpoint; ``lost`` says what of the earlier ones is gone.
"""

import errno
import io
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from dyart.engine import checkpoint as store
from dyart.engine.recovery import newest_good

OPERATIONS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir")
# What a system says of a full disk, a failing one, and one that is used up by others.
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
SAVED = 3


class Killed(BaseException):
    """Stands for the end of the process where a whole process would be too slow."""


class Faults:
    """Counts the file operations of this process, and makes one of them fail.

    Args:
        at: which, from 0; None: only count.
        kind: "kill": kill -9 before it; "power": the same, and what was not synced is cut to half, as after a power
            cut; a number of ``errno``: the system refuses.
        end: how the process ends.
    """

    def __init__(self, at: int | None, kind: str | int, end: Callable[[], None] | None = None) -> None:
        self.at, self.kind, self.end = at, kind, end or self._kill
        self.count = 0
        self.unsynced: set[str] = set()
        self.names: dict[int, str] = {}

    def __enter__(self) -> "Faults":
        self.before = {name: getattr(os, name) for name in OPERATIONS if name not in ("open", "write")}
        self.opened, self.write_bytes = io.open, Path.write_bytes
        for name, function in self.before.items():
            setattr(os, name, self._counted(name, function))
        Path.write_bytes = self._writer()
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self.before.items():
            setattr(os, name, function)
        Path.write_bytes = self.write_bytes

    def _counted(self, name, function):
        def operation(*arguments, **named):
            self._meet(name)
            if name == "fsync":
                self.unsynced.discard(os.readlink(f"/proc/self/fd/{arguments[0]}"))
            return function(*arguments, **named)

        return operation

    def _writer(self):
        faults = self

        def write_bytes(path, content):
            faults._meet("open")
            faults.unsynced.add(str(path))
            half = len(content) // 2
            with open(path, "wb") as file:
                file.write(content[:half])
                file.flush()
                faults._meet("write")
                return half + file.write(content[half:])

        return write_bytes

    def _meet(self, name: str) -> None:
        self.names[self.count] = name
        here, self.count = self.count == self.at, self.count + 1
        if not here:
            return
        if isinstance(self.kind, int):
            raise OSError(self.kind, os.strerror(self.kind))
        if self.kind == "power":
            for path in self.unsynced:
                if os.path.exists(path):
                    os.truncate(path, os.path.getsize(path) // 2)
        self.end()

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def save(folder: Path, number: int, keep: int = 2) -> None:
    """Write a checkpoint that is known by its number, as the engine does."""
    weights = {name: {"a": torch.full((64,), float(number)), "b": torch.zeros(3)} for name in ("model", "averaged")}
    state = {"number": number, "momentum": torch.full((64,), float(number)), "best_epoch": 1}
    store.save(folder, f"epoch-{number:04d}", weights, state, {"step": number}, f"number: {number}\n")
    store.write_index(folder, {"last": f"epoch-{number:04d}", "best": "epoch-0001"}, keep)


def prepared(folder: Path, again: bool) -> None:
    """Write three checkpoints; with ``again``, also the fourth, which is then replaced, and of which nobody knows."""
    for number in range(1, SAVED + 1):
        save(folder, number)
    if again:
        weights = {"model": {"a": torch.zeros(1)}, "averaged": {"a": torch.zeros(1)}}
        store.save(folder, f"epoch-{SAVED + 1:04d}", weights, {"number": -1}, {"step": SAVED + 1})


def faulty_save(folder: Path, at: int | None, kind: str | int, end: Callable[[], None] | None = None) -> Faults:
    """Write the fourth checkpoint with a fault on the way; an error of the system is met as the engine does."""
    with Faults(at, kind, end) as faults, suppress(OSError):
        save(folder, SAVED + 1)
    return faults


def lost(folder: Path) -> str:
    """Return in words what was lost of the three checkpoints that were saved before; "" if nothing was."""
    good = newest_good(folder)
    if good is None:
        return "all"
    number = good.state.get("number")
    if good.damaged or number not in (SAVED, SAVED + 1):
        return f"the last one is {good.place.name}, number {number}"
    if store.read_weights(good.place, "model")["a"][0] != number or good.index.get("best") != "epoch-0001":
        return f"{good.place.name} holds something else, or the best is {good.index.get('best')}"
    for name in ("epoch-0001", good.place.name):
        store.read_facts(folder / name)
    return ""
