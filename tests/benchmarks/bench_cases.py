"""The modules of benchmarks/ and scripts/, and records of runs that were never trained."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).parents[2]
RADII = ("2/255", "4/255", "8/255", "12/255", "16/255")
IMAGES = 400


def module(name: str) -> ModuleType:
    """Import a script; its folder is on the path meanwhile only: names such as `search` must not shadow others."""
    folders = [str(ROOT / folder) for folder in ("benchmarks", "scripts")]
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = before


run_records = module("run_records")


def evaluation(
    accuracies: list[float],
    tier: str = "apgd",
    checkpoint: str = "best",
    shift: int = 0,
    radii: tuple[str, ...] = RADII,
) -> dict:
    """An evaluation in which the first images are right: clean, then at every radius, in per cent."""
    names = ("clean", *radii)[: len(accuracies)]
    right = {name: round(IMAGES * share / 100) for name, share in zip(names, accuracies, strict=True)}
    flags = {name: np.roll(np.arange(IMAGES) < count, shift) for name, count in right.items()}
    return {
        "checkpoint": checkpoint,
        "tier": tier,
        "attack": f"words for {tier}",
        "norm": "linf",
        "images": IMAGES,
        "clean": float(flags["clean"].mean()),
        "robust": {name: float(flags[name].mean()) for name in names[1:]},
        "intervals": {name: [0.0, 1.0] for name in names},
        "inferred": dict.fromkeys(names[1:], 0),
        "alarms": [],
        "view": {"device": "NVIDIA H200"},
        "versions": {},
        "wall_seconds": 120.0,
        "resists": {name: run_records.packed(part) for name, part in flags.items()},
    }


def record(run, *evaluations: dict, **more) -> dict:
    """The record of a run of the plan with some evaluations."""
    settings = module("plan")._settings(run)
    made = {
        "name": run.name, "data": "cifar10", "recipe": run.recipe, "seed": run.seed, "epochs": run.epochs,
        "burn_in": 5, "best_epoch": 2,
        "settings": settings, "seconds_per_epoch": 5.0, "train_seconds": 250.0, "wall_seconds": 300.0,
        "gpu": "NVIDIA H200", "versions": {"torch": "2.11.0"},
        "validation": {"epoch": [1, 2], "val_clean": [0.5, 0.8], "val_robust": [0.3, 0.481]}, **more,
    }  # fmt: skip
    for one in evaluations:
        made = run_records.with_evaluation(made, one)
    return made
