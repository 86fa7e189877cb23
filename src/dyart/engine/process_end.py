"""How several processes end: together, and with the words of the one that failed.

Whoever starts the processes (torchrun, SLURM, Fabric) ends all of them when one has failed; that may take seconds, and
what the others say in the meantime, of connections that were closed, helps nobody. So a process that fails writes its
error into the store of torch's process group, and those that only lost their connection to it read the error there.
"""

import subprocess  # nosec B404  # fixed commands, without a shell
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import torch.distributed as dist

from dyart.data.ranks import Team, team_here

# The processes that this one started, to be ended with it; and Fabric's own lists of them.
LAUNCHED: "list[subprocess.Popen[bytes]]" = []
WATCHED: "list[list[subprocess.Popen[bytes]]]" = []
GRACE, PAUSE = 3.0, 0.05  # seconds
KEY = "dyart/failed"


class ProcessError(RuntimeError):
    """Another process failed; the message is its own."""


@contextmanager
def ending() -> Iterator[None]:
    """Run the command's work; of several processes, let the error of one end all and be told once.

    Raises:
        ProcessError: in the first process, for an error of another.
        SystemExit: in the others, where the first tells it.
    """
    try:
        yield
    except Exception as error:
        # Fabric kills this process a few seconds after another has ended, whatever it has still to say and to save.
        for watched in WATCHED:
            watched.clear()
        team = team_here()
        if team.count > 1:
            (_first if team.rank == 0 else _other)(error, team)
        raise
    finally:
        leave()
        for process in LAUNCHED:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()
        LAUNCHED.clear()
        WATCHED.clear()


def leave() -> None:
    """Leave the others: torch leaves gloo's threads to the end of the interpreter, which some do not survive.

    (pytorch/pytorch#190489: the process aborts, after all its work. For NCCL, Fabric does the same.)
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _first(error: Exception, team: Team) -> None:
    store = _store()
    words = None if not _lost(error) else _await([f"{KEY}/{rank}" for rank in range(1, team.count)], store)
    with suppress(RuntimeError):
        store.set(f"{KEY}/0", "")
        time.sleep(10 * PAUSE)  # for the others to see it: the meeting point may end with this process
    if words is not None:
        rank, said = words
        raise ProcessError(f"process {rank} of {team.count} (from 0) failed: {said}") from error


def _other(error: Exception, team: Team) -> None:
    store = _store()
    try:
        if not _lost(error):
            store.set(f"{KEY}/{team.rank}", f"{error}" or type(error).__name__)
            if dist.get_backend() == "gloo":
                dist.destroy_process_group()  # closes the connections: the first process sees it now, not at the end
        told = _await([f"{KEY}/0"], store) is not None
    except RuntimeError:  # the meeting point ended with the first process
        told = True
    if told or _lost(error):
        raise SystemExit(1) from error


def _await(keys: list[str], store: Any) -> tuple[int, str] | None:  # noqa: ANN401
    """Return the rank and the words of a process that failed, or None if none does within the grace."""
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        for key in keys:
            if store.check([key]):
                return int(key.rpartition("/")[2]), store.get(key).decode()
        time.sleep(PAUSE)
    return None


def _lost(error: BaseException) -> bool:
    """Say whether an error is no more than that another process has gone."""
    causes = chain([error], [] if error.__cause__ is None else [error.__cause__])
    plain = [one for one in causes if isinstance(one, RuntimeError)]
    return any(isinstance(one, dist.DistError) or "gloo" in str(one) for one in plain)


def _store() -> Any:  # noqa: ANN401
    return dist.distributed_c10d._get_default_store()
