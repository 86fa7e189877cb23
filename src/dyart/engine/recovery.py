"""The newest checkpoint that is whole: the last one, or where that is damaged the one before it."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dyart.engine import checkpoint as store

log = logging.getLogger("dyart")


@dataclass(frozen=True)
class Good:
    """A checkpoint that was compared with its checksums, and the index that belongs to it."""

    place: Path
    state: dict[str, Any]
    index: dict[str, str]
    damaged: bool = False
    """``index`` is not that on the disk: the last checkpoint, or the best, was damaged."""


def newest_good(folder: Path) -> Good | None:
    """Return the checkpoint to go on from; None if there is none at all.

    It is the one that the index calls the last. Where the index, or that checkpoint, is damaged, it is the newest one
    that is not: the steps since then are done again, with the same result. A best one that is damaged is dropped: a
    later epoch will be the best. A line of log says either.

    Args:
        folder: the run's ``checkpoints``.

    Raises:
        CheckpointError: there are checkpoints, and none is whole; the message names the damage of the newest.
        FormatError: the newest was written by another version of dyart.
    """
    _put_back(folder)
    damage: list[str] = []
    try:
        index = store.read_index(folder)
        if not index:
            return None
        state = _state(folder / index["last"])
        whole = _without_damaged_best(folder, index)
        return Good(folder / index["last"], state, whole, damaged=whole != index)
    except store.FormatError:
        raise
    except store.CheckpointError as error:
        damage.append(str(error))
    for place in sorted(store.present(folder), key=store.step_of, reverse=True):
        try:
            state = _state(place)
        except store.FormatError:
            raise
        except store.CheckpointError as error:
            damage.append(str(error))
            continue
        log.warning("%s. Going on from %s instead, step %d", damage[0], place, store.step_of(place))
        index = {"last": place.name} | _best(folder, state)
        return Good(place, state, index, damaged=True)
    raise store.CheckpointError(f"{damage[0]}. There is no other whole checkpoint in {folder}")


def _put_back(folder: Path) -> None:
    """Put in its place what a process had moved aside when it ended."""
    for aside in folder.glob(f"[!.]*{store.OLD}"):
        target = aside.with_name(aside.name.removesuffix(store.OLD))
        if not target.exists():
            with suppress(OSError):  # another process of the same training was quicker
                aside.rename(target)


def _state(place: Path) -> dict[str, Any]:
    store.read_facts(place)
    return store.read_state(place)


def _best(folder: Path, state: dict[str, Any]) -> dict[str, str]:
    """Return the entry of the best checkpoint as a state knows it, if that one is there and whole."""
    epoch = state.get("best_epoch")
    if not isinstance(epoch, int) or epoch < 0:
        return {}
    return _without_damaged_best(folder, {"best": store.epoch_name(epoch)})


def _without_damaged_best(folder: Path, index: dict[str, str]) -> dict[str, str]:
    """Return an index whose best checkpoint, if it names one, is whole."""
    try:
        if "best" in index:
            store.read_facts(folder / index["best"])
    except store.CheckpointError as error:
        log.warning("%s. It was the best; of those that are left, or still to come, another one is", error)
        return {role: name for role, name in index.items() if role != "best"}
    return index
