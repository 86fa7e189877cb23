"""What a run that goes on may change, and what it must not."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dyart.engine.environment import changed_sources, changed_surroundings
from dyart.engine.fabric import Fabric
from dyart.engine.fit import Training
from dyart.engine.stored import CONFIG, ENVIRONMENT, RunError, copied_config
from dyart.recipes import Config, differences, resolve

# Of a resumed run these stay: with others, its steps or weights would mean something else.
STAY = ("seed", "data.", "model.", "method.name", "train.batch_size", "train.burn_in")
# Of these, some are about the machine alone.
MOVABLE = {"data.root", "data.residency"}
# By these, epochs are compared.
JUDGED = ("eval.radius", "eval.steps", "eval.norm", "eval.select")

Changes = Mapping[str, tuple[Any, Any]]


def changes_of(folder: Path, config: Config, fabric: Fabric) -> dict[str, tuple[Any, Any]]:
    """Return what changes for a resumed run: its settings, the code, what it runs on; refuse what must stay."""
    changed = _different(begun(folder), config)
    fixed = {key: pair for key, pair in changed.items() if key.startswith(STAY) and not _movable(key, pair[1])}
    if fixed:
        words = ", ".join(f"{key} {old} (now {new})" for key, (old, new) in sorted(fixed.items()))
        raise RunError(f"{folder} was begun with {words}: resume it as it was, or begin another with --out")
    path = folder / ENVIRONMENT
    return changed | changed_sources(path, config) | changed_surroundings(path, fabric)


def _movable(key: str, new: object) -> bool:
    """Whether a setting is about the machine alone: a file of data may lie elsewhere (what it has is checked)."""
    return key in MOVABLE or (key == "data.name" and Path(str(new)).expanduser().exists())


def in_words(changes: Changes) -> str:
    """Return changes as ``optim.lr 0.5 (was 0.2)``."""
    return ", ".join(f"{key} {new} (was {old})" for key, (old, new) in sorted(changes.items()))


def keep_settings(folder: Path, training: Training) -> None:
    """Give a training with nothing left to do the run's own settings: nothing was trained with others."""
    own, asked = begun(folder), training.config
    changed = _different(own, asked)
    if changed:
        ended = "train.epochs" if training.position.epoch >= training.epochs else "train.early_stop"
        training.fabric.print(
            f"nothing is left to train in {folder}: {in_words(changed)} is not taken, {CONFIG} stays as it is; to "
            f"train on, raise {ended}"
        )
        # What asks it to stop stays: by the run's own patience, something may be left.
        training.config = replace(own, out=asked.out, train=replace(own.train, early_stop=asked.train.early_stop))


def compare_anew(training: Training, changes: Changes) -> None:
    """Forget the best epoch where epochs were compared by another attack: its figure says nothing beside new ones."""
    changed = [key for key in JUDGED if key in changes]
    if changed and training.best_epoch >= 0 and training.position.epoch < training.epochs:
        was, training.best, training.best_epoch = training.best_epoch, (-1.0, -1.0), -1
        training.fabric.print(f"{' and '.join(changed)} changed: epoch {was} is the best no longer, the next counts")


def check_epochs(folder: Path, training: Training) -> None:
    """Refuse to resume a run to fewer epochs than it has: weights do not go back."""
    done, asked = training.steps_done, training.epochs * len(training.loader)
    if done > asked:
        epochs = -(-done // len(training.loader))  # one that was begun counts
        raise RunError(
            f"{folder} has trained {epochs} epochs already, and {training.epochs} are asked for (train.burn_in and "
            "train.epochs together): ask for more, or begin another with --out"
        )


def begun(folder: Path) -> Config:
    """Return what a run's weights were trained with, by the checkpoint's copy: whatever happened to the file since."""
    return resolve(copied_config(folder) or folder / CONFIG)


def _different(own: Config, asked: Config) -> dict[str, tuple[Any, Any]]:
    return {key: pair for key, pair in differences(own, asked).items() if key != "out"}
