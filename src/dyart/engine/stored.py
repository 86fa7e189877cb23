"""What a run's folder holds: its configuration, its checkpoints, their weights."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from dyart.engine import checkpoint as store
from dyart.recipes import Config, RecipeError, resolve

log = logging.getLogger("dyart")

CONFIG, ENVIRONMENT = "config.yaml", "environment.json"


class RunError(RuntimeError):
    """A run's folder is not what it should be; the message says what to do."""


def read_config(folder: Path, method: bool = True) -> Config:
    """Return the configuration of a run's folder, with ``out`` where it lies now.

    Args:
        folder: of the run.
        method: False: what trained it is not looked at. To measure a network, its method's code need not be there.
    """
    return replace(resolve(config_path(folder, method), method=method), out=str(folder))


def config_path(folder: Path, method: bool = True) -> Path:
    """Return the file with the configuration of a run: its own, or where that is damaged a checkpoint's copy.

    Args:
        folder: of the run.
        method: see ``read_config``.

    Raises:
        RunError: the folder is no run.
    """
    path = folder / CONFIG
    if not folder.exists():
        raise RunError(f"{folder} does not exist: look for a misspelt name")
    if not path.is_file():
        raise RunError(f"{folder} is no run: it has no {CONFIG}")
    try:
        resolve(path, method=method)
    except RecipeError as error:
        copy = copied_config(folder)
        if copy is None:
            raise
        try:
            resolve(copy, method=method)
        except RecipeError:  # not damaged, then
            words = (
                f"{error}. If nobody has edited it, the run is of another version of dyart ({ENVIRONMENT} says which)"
            )
            raise RecipeError(words) from error
        log.warning("%s. Using the copy in %s", error, copy)
        return copy
    return path


def copied_config(folder: Path) -> Path | None:
    """Return the configuration in the newest checkpoint, if there is one."""
    places = sorted(store.present(folder / "checkpoints"), key=store.step_of, reverse=True)
    return next((place / store.CONFIG for place in places if (place / store.CONFIG).is_file()), None)


def averaged_weights(place: Path, which: str = "best") -> dict[str, torch.Tensor]:
    """Return averaged weights: of a run's best (or last) checkpoint, or of one checkpoint's folder."""
    checkpoint = checkpoint_of(place, which)
    store.read_facts(checkpoint)
    return store.read_weights(checkpoint, "averaged")


def checkpoint_of(place: Path, which: str = "best") -> Path:
    """Return the folder of a checkpoint: itself, or a run's ``best`` or ``last`` (the last where there is no best)."""
    if (place / store.MANIFEST).is_file():
        return place
    folder = place / "checkpoints"
    index = store.read_index(folder)
    name = index.get(which, index.get("last"))
    if name is None:
        missing = "" if place.exists() else ": there is no such folder"
        missing = ": it is a file; files of weights are for dyart evaluate and margins" if place.is_file() else missing
        raise RunError(f"{place} is neither a run with checkpoints nor a checkpoint{missing}")
    return folder / name


def run_folder(place: Path) -> Path:
    """Return the folder of the run that a path names: itself, or the one that its checkpoint lies in."""
    folder = checkpoint_of(place).parent.parent
    if not (folder / CONFIG).is_file():
        copy = copied_config(folder)
        remedy = f": cp {copy} {folder / CONFIG}" if copy else "; a checkpoint is read inside its run's folder"
        raise RunError(f"{place}: no {CONFIG} in {folder}{remedy}")
    return folder


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor], name: str) -> None:
    """Load a state dict of any floating-point dtype into a network, in that one's own dtype.

    Raises:
        RunError: it belongs to another network; the message begins with ``name``.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"the weights in {name} do not fit the network: {error}") from error
