"""Small trainings, and what is compared between two of them."""

import os
import signal
from pathlib import Path

import torch

from dyart.engine import checkpoint as store
from dyart.engine.callbacks import Callback
from dyart.engine.metrics import read_metrics
from dyart.recipes import Config
from dyart.recipes.load import check, merge

METHODS = {
    "natural": {"name": "natural"},
    "at": {"name": "at", "steps": 2, "radius": 0.05, "step_size": 0.025},
    "dyart": {"name": "dyart", "steps": 3, "r0": 0.1, "lam": 5.0},
}
BASE = {
    "seed": 3,
    "data": {"name": "three-blobs", "limit": 96},
    "model": {"name": "mlp"},
    "optim": {"lr": 0.2, "weight_decay": 0.001},
    "train": {"epochs": 3, "batch_size": 32, "log_every": 4, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 2},
}
STEPS = 3  # of an epoch


def make_config(out: Path | None = None, method: str | dict = "natural", **settings) -> Config:
    """Return a configuration; ``train_epochs=4`` sets ``train.epochs``."""
    tree = merge(BASE, {"method": METHODS[method] if isinstance(method, str) else method})
    tree = tree if out is None else merge(tree, {"out": str(out)})
    for name, value in settings.items():
        section, found, key = name.partition("_")
        tree = merge(tree, {section: {key: value}} if found else {name: value})
    return check(tree)


def numbers(folder: Path) -> list[dict]:
    """Every line of metrics.jsonl without what a clock says."""
    records = read_metrics(folder / "metrics.jsonl")
    return [{key: value for key, value in record.items() if not key.endswith("seconds")} for record in records]


def last_checkpoint(folder: Path, which: str = "last") -> Path:
    return folder / "checkpoints" / store.read_index(folder / "checkpoints")[which]


def last_state(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the last checkpoint: weights, averaged weights, the optimizer's momentum."""
    place = last_checkpoint(folder)
    store.read_facts(place)
    found = {f"{file}.{name}": value for file in ("model", "averaged") for name, value in _weights(place, file)}
    momenta = store.read_state(place)["optimizer"]["state"]
    return found | {f"momentum.{number}": entry["momentum_buffer"] for number, entry in momenta.items()}


def _weights(place: Path, file: str):
    return store.read_weights(place, file).items()


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two runs ended with the same bits and said the same on the way."""
    assert numbers(one) == numbers(other)
    first, second = last_state(one), last_state(other)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


class CrashError(Exception):
    """A crash that nothing is prepared for."""


class CrashAt(Callback):
    """Ends a training without notice after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, training) -> None:
        if training.steps_done == self.step:
            raise CrashError


class SignalAt(Callback):
    """Sends a signal to this process after a step."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def on_step(self, training) -> None:
        if training.steps_done == self.step:
            os.kill(os.getpid(), self.number)
