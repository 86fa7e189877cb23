"""The quick measurement after a training: clean accuracy and one attack on the test set, into ``evaluation.json``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dyart.attacks.accuracy import correct
from dyart.boundary.search import closest_boundary_points
from dyart.data.loader import to_unit
from dyart.engine.files import write_json
from dyart.engine.fit import Training
from dyart.engine.run import averaged_weights, make_model
from dyart.evaluation.curve import accuracy_from_margins, accuracy_under_pgd

FILE = "evaluation.json"
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
    model.load_state_dict(averaged_weights(training.folder))
    model = model.to(device).eval()
    test = training.data.test
    inputs = to_unit(torch.from_numpy(np.array(test.images))).to(device)
    labels = torch.from_numpy(np.array(test.labels, dtype=np.int64)).to(device)
    robust: dict[float, float] = {}
    if settings.attack == "pgd":
        robust = accuracy_under_pgd(model, inputs, labels, settings.radii, settings.norm, BATCH)
    elif settings.attack == "margins":
        found = closest_boundary_points(model, inputs, labels, norm=settings.norm, batch_size=BATCH)
        robust = accuracy_from_margins(found, settings.radii)
    clean = correct(model, inputs, labels, BATCH).float().mean().item()
    measured = Measured(clean, robust, settings.attack, len(labels), training.folder / FILE)
    write_json(measured.path, _plain(measured, training))
    return measured


def _plain(measured: Measured, training: Training) -> dict[str, Any]:
    return {
        "data": training.data.name,
        "images": measured.images,
        "checkpoint": "best",
        "epoch": training.best_epoch,
        "attack": ATTACKS.get(measured.attack, measured.attack),
        "norm": training.config.eval.norm,
        "clean": measured.clean,
        "robust": {str(radius): value for radius, value in measured.robust.items()},
    }
