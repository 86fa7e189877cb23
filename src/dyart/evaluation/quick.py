"""The quick measurement after a training: clean accuracy and one attack on the test set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dyart.engine.fabric import team_of
from dyart.engine.fit import Training
from dyart.engine.run import default_folder, make_model
from dyart.engine.stored import averaged_weights, checkpoint_of, load_weights
from dyart.evaluation.evaluate import evaluate
from dyart.evaluation.examples import data_digest, model_digest
from dyart.evaluation.guessing import guessing
from dyart.evaluation.records import FILE, FLAGS, earlier, write_records
from dyart.evaluation.result import Evaluation
from dyart.evaluation.tiers import Attack

__all__ = ["FILE", "FLAGS", "Measured", "measure_run"]

BATCH = 500
THOROUGH = ("margins", "apgd", "autoattack")
TIERS: dict[str, Attack] = {"pgd": "pgd", "margins": "margins", "none": "clean"}


@dataclass(frozen=True)
class Measured:
    """Accuracies on the test set, and the file that has them."""

    result: Evaluation
    path: Path

    def __str__(self) -> str:
        """Return one line for a person, and one more where the network guesses."""
        robust = ", ".join(f"{radius} {100 * value:.1f} %" for radius, value in self.result.robust_accuracy.items())
        attack = f"; robust by {self.result.words}: {robust}" if robust else ""
        count, clean = len(self.result.verdicts), self.result.clean_accuracy
        guess = guessing(self.result.verdicts.predictions, self.result.verdicts.labels)
        words = f"test set, {count} images: clean {100 * clean:.1f} %{attack} ({self.path})"
        return words if guess is None else f"{words}\n{guess}"


def measure_run(training: Training) -> Measured | None:
    """Measure the averaged weights of a finished training's best epoch on the test set, as its recipe says.

    Quick enough to run after every training; an upper bound of the robust accuracy that AutoAttack would leave. The
    processes of the training divide it among them; the first writes it. Where the run's folder has a more thorough
    evaluation of the same weights, nothing is measured, and that one stays: None.
    """
    folder, team = default_folder(training.config), team_of(training.fabric)
    training.fabric.barrier()  # the first process has written what all will read
    settings, device, data = training.config.eval, training.fabric.device, training.data
    model = make_model(training.config, training.data)
    load_weights(model, averaged_weights(folder), str(folder))
    model = model.to(device).eval()
    digest = model_digest(model)
    known = earlier(folder, ("tier", "asked"))
    if known.get("asked", {}).get("network") == digest and known.get("tier") in THOROUGH:
        return None
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    result = evaluate(
        model,
        data.test.images,
        data.test.labels,
        settings.radii,
        TIERS[settings.attack],
        settings.norm,
        batch_size=BATCH,
        device=device,
        rows=data.test_rows,
        files=data.test_files,
        preflight=False,
        steps=50,
        restarts=1,
        precision="ieee",
        compile="off",
        facts=_facts(training, folder) | {"network": digest} if team.rank == 0 else None,
        team=team,
    )
    if team.rank == 0:
        write_records(result, folder)
    training.fabric.barrier()
    return Measured(result, folder / FILE)


def _facts(training: Training, folder: Path) -> dict[str, Any]:
    return {
        "data": training.data.name,
        "data_digest": data_digest(training.data),
        "checkpoint": "best",
        "checkpoint_name": checkpoint_of(folder).name,
        "epoch": training.best_epoch if training.best_epoch > 0 else training.epochs,
        "seconds_per_epoch": float(np.median([r["train_seconds"] for r in training.history if r["phase"] == "train"])),
        "notes": list(training.data.notes),
    }
