"""The quick measurement after a training: clean accuracy and one attack on the test set.

``evaluation.json`` has the accuracies, ``evaluation.npz`` which examples are right and which resist at each radius.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dyart.attacks.accuracy import correct
from dyart.boundary.model import ieee_float32
from dyart.boundary.search import closest_boundary_points
from dyart.data.loader import as_tensors
from dyart.engine.files import write_json, write_whole
from dyart.engine.fit import Training
from dyart.engine.run import averaged_weights, load_weights, make_model
from dyart.evaluation.curve import resists_by_margins, resists_by_pgd
from dyart.recipes.config import Eval

FILE, FLAGS = "evaluation.json", "evaluation.npz"
BATCH = 500
ATTACKS = {"pgd": "PGD-20 on the margin loss", "margins": "boundary search, 50 steps"}


@dataclass(frozen=True)
class Measured:
    """Accuracies on the test set."""

    clean: float
    robust: dict[float, float]
    attack: str
    images: int
    path: Path

    def __str__(self) -> str:
        """Return one line for a person."""
        robust = ", ".join(f"{radius} {100 * value:.1f} %" for radius, value in self.robust.items())
        attack = f"; robust by {ATTACKS[self.attack]}: {robust}" if self.robust else ""
        return f"test set, {self.images} images: clean {100 * self.clean:.1f} %{attack} ({self.path})"


def measure_run(training: Training) -> Measured:
    """Measure the averaged weights of a finished training's best epoch on the test set, as its recipe says.

    Quick, to be had after every training; an upper bound of the robust accuracy that AutoAttack would leave.
    """
    assert training.folder is not None
    settings, device = training.config.eval, training.fabric.device
    model = make_model(training.config, training.data)
    load_weights(model, averaged_weights(training.folder), str(training.folder))
    model = model.to(device).eval()
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs, labels = as_tensors(training.data.test, slice(None), device)
    with ieee_float32(device):
        right = correct(model, inputs, labels, BATCH)
        resisting = _resisting(model, inputs, labels, settings)
    flags = {"clean": right.cpu().numpy()} | {str(radius): rows.cpu().numpy() for radius, rows in resisting.items()}
    packed = io.BytesIO()
    np.savez_compressed(packed, **flags)  # type: ignore[arg-type]
    write_whole(training.folder / FLAGS, packed.getvalue())
    robust = {radius: rows.float().mean().item() for radius, rows in resisting.items()}
    clean = right.float().mean().item()
    measured = Measured(clean, robust, settings.attack, len(labels), training.folder / FILE)
    write_json(measured.path, _plain(measured, training))
    return measured


def _resisting(model: nn.Module, inputs: Tensor, labels: Tensor, settings: Eval) -> dict[float, Tensor]:
    if settings.attack == "pgd":
        return resists_by_pgd(model, inputs, labels, settings.radii, settings.norm, BATCH)
    if settings.attack == "margins":
        found = closest_boundary_points(model, inputs, labels, norm=settings.norm, batch_size=BATCH)
        return resists_by_margins(found, settings.radii)
    return {}


def _plain(measured: Measured, training: Training) -> dict[str, Any]:
    return {
        "data": training.data.name,
        "images": measured.images,
        "checkpoint": "best",
        "epoch": training.best_epoch,
        "attack": ATTACKS.get(measured.attack, measured.attack),
        "norm": training.config.eval.norm,
        "seconds_per_epoch": float(np.median([r["train_seconds"] for r in training.history if r["phase"] == "train"])),
        "notes": list(training.data.notes),
        "clean": measured.clean,
        "robust": {str(radius): value for radius, value in measured.robust.items()},
    }
