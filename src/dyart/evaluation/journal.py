"""What an evaluation has done so far, on the disk: killed at any time, it goes on where it was.

One line of JSON per batch, appended and flushed to the disk. The first line says what is evaluated: settings, and
fingerprints of model and data. A line that a kill cut short is dropped; that batch is done again.

An evaluation is a fixed sequence of batches, each a function of the results before it. To resume is to walk through the
sequence again and to take from the journal what is there. A finished evaluation that is the beginning of another one is
gone on with, too: a line says what it is about from there on. One process at a time: the file is locked while it is
open.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from dyart.data.ranks import Team
from dyart.evaluation.behaviour import alike

FILE = "evaluation.journal.jsonl"
FINISHED = {"finished": True}
GOES_ON = "goes_on_about"
# Of what a journal is about: what the model does on a few examples, which may differ by rounding.
OUTPUTS = "outputs"
# Of the packages: what is finished stays finished, and says by which it was made.
VERSIONS = "versions"
SHOWN = 80  # characters

Record = dict[str, Any]


class JournalError(ValueError):
    """The folder holds an unfinished evaluation of something else, or one that is running now."""


class Journal:
    """The steps of one evaluation; without a folder they are kept nowhere.

    ``finished`` says that they were all there, ``replaced`` that those of something else were, which are gone.

    Args:
        folder: where the file lies; None: nothing is written.
        about: what is evaluated, as JSON values: a journal is gone on with only if it is about the same.
        fresh: forget what is there.
        beginnings: entries of ``about`` with which a finished evaluation is the beginning of this one, and is gone on
            with.

    Raises:
        JournalError: an unfinished evaluation of something else is there (a finished one is replaced), or another
            process is at work there.
    """

    def __init__(
        self,
        folder: Path | None,
        about: Mapping[str, Any],
        fresh: bool = False,
        beginnings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Read what is there, or begin anew."""
        self.path = None if folder is None else folder / FILE
        self.done: list[Record] = []
        self.resumed = 0
        self.finished = self.replaced = False
        what: Record = json.loads(json.dumps(about))
        self.about = what
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "a+b")  # noqa: SIM115  # closed by close()
        try:
            _lock(self.file, self.path)
            lines = [] if fresh else _complete_lines(self.path)
            finished = bool(lines) and lines[-1] == FINISHED
            there = _about(lines)
            begun = finished and any(_same(there, {**what, **other}, (OUTPUTS,)) for other in beginnings)
            unknown = bool(lines) and VERSIONS not in there
            apart = (OUTPUTS, VERSIONS) if finished or unknown else (OUTPUTS,)
            if lines and not begun and not _same(there, what, apart):
                if not finished:
                    raise JournalError(_difference(self.path, there, what))
                lines, self.replaced = [], True
            self.file.truncate(_length(self.path) if lines else 0)
            if not lines:
                self._append(what)
            elif begun:
                self._append({GOES_ON: what})
        except BaseException:
            self.file.close()
            raise
        self.finished = bool(lines) and finished and not begun
        self.about = there if lines and not begun else what
        self.done = [line for line in lines[1:] if line != FINISHED and GOES_ON not in line]
        self.resumed = len(self.done)

    def step(self, key: Mapping[str, Any], work: Callable[[], Record]) -> Record:
        """Return the record of one batch: from the journal, or by doing the work.

        Args:
            key: what the step is; the same every time.
            work: does it, and returns JSON values.

        Raises:
            JournalError: the journal has another step at this place.
        """
        if self.done:
            stored = self.done.pop(0)
            if {name: stored.get(name) for name in key} != dict(key):
                raise JournalError(
                    f"{self.path} does not fit: it has {stored.get('attack')!r} where {key.get('attack')!r} comes next "
                    "(written by another version?): start anew with fresh=True (--fresh)"
                )
            return stored
        record = {**key, **work()}
        if self.path is not None:
            self._append(record)
        return record

    def finish(self) -> None:
        """Say that all is done."""
        if self.path is not None and not self.finished:
            self._append(FINISHED)

    def close(self) -> None:
        """Close the file, and let others have it; what is in it stays."""
        if self.path is not None:
            self.file.close()

    def _append(self, record: Mapping[str, Any]) -> None:
        # One write of one whole line, on the disk before the next step begins.
        self.file.write((json.dumps(record) + "\n").encode())
        self.file.flush()
        os.fsync(self.file.fileno())


def open_journal(
    team: Team,
    folder: Path | None,
    about: Callable[[], Mapping[str, Any]],
    fresh: bool,
    beginnings: Sequence[Mapping[str, Any]] = (),
) -> Journal:
    """Return the journal of processes that evaluate together: the first has the file, all know what is in it.

    Raises:
        JournalError: as ``Journal`` does, on all processes.
    """
    journal = Journal(None, {})

    def opened() -> list[Record]:
        nonlocal journal
        journal = Journal(folder, {} if folder is None else about(), fresh, beginnings)
        return journal.done

    (done,) = team.do([opened])
    journal.done = list(done)
    return journal


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep others out until the file is closed, or this process ends, however it does."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(
            f"another process is evaluating into {path.parent} now: wait until it ends, or choose another folder"
        ) from None
    except OSError:  # a file system that knows no locks
        return


def _same(old: Record, new: Record, apart: tuple[str, ...]) -> bool:
    """Say whether two journals are about the same, some entries ``apart``; outputs may differ by rounding."""
    left_out = dict.fromkeys(apart)
    return {**old, **left_out} == {**new, **left_out} and alike(old.get(OUTPUTS), new.get(OUTPUTS))


def _about(lines: Sequence[Record]) -> Record:
    """Return what the last steps of a journal are about."""
    return next((line[GOES_ON] for line in reversed(lines) if GOES_ON in line), lines[0] if lines else {})


def _complete_lines(path: Path) -> list[Record]:
    """Return the records of a journal up to the first line that is not whole; none if there is no file."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_bytes()[: _length(path)].splitlines():
        records.append(json.loads(line))
    return records


def _length(path: Path) -> int:
    """Return the bytes of a journal's whole lines."""
    length = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            length += len(line)
    return length


def _difference(path: Path, old: Record, new: Record) -> str:
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if names != [OUTPUTS]:
        names = [name for name in names if name != OUTPUTS]
    if names == [VERSIONS]:
        return (
            f"{path} holds an unfinished evaluation by other versions of packages ({_short(old[VERSIONS])}, now "
            f"{_short(new[VERSIONS])}): go on with those, or choose another folder, or start anew: fresh=True (--fresh)"
        )
    words = ", ".join(f"{name} {_short(old.get(name))} (now {_short(new.get(name))})" for name in names)
    return (
        f"{path} holds an unfinished evaluation of something else: {words}. Go on with that one as it was begun, "
        "choose another folder, or start anew with fresh=True (--fresh)"
    )


def _short(value: object) -> str:
    """Return a value in words, cut where it is long: bounds and outputs may have thousands of numbers."""
    words = repr(value)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}..."
