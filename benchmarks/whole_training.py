"""The paper's appendix "Further analysis": accuracies and the share of negative speed through whole trainings.

    python benchmarks/whole_training.py at --seconds 570 --work runs/whole --out results    # again, until it says done
    python benchmarks/whole_training.py dyart --seconds 570 --work runs/whole --out results

ResNet-18 with GroupNorm on CIFAR-10, 25,000 iterations (131 whole epochs of batch 256: the paper does not state its
batch; its first 10 epochs are 2,500 iterations, so about 200), rate 0.01 and 0.001 from iteration 20,000 on, raw
weights. AT from scratch; DyART (alpha 8, lambda 400, r0 16/255) from a natural network, trained here until 85 % of the
hold-out, or given with --natural. Momentum 0.9 and weight decay 0.0005: the paper states none.

Two shares of negative speed among images with a margin below 8/255: that of theta' = -grad of the loss on the step's
own batch, as the paper has it, every --gradient-every steps; and that of the step as the optimizer takes it, with its
momentum, by dyart's BoundaryMonitor (--monitor.every). Accuracies: on the hold-out and on as many training images; in
the end on the test images.

On an H200, estimated from benchmarks/results/steps.json (batches of 128 and 512): steps of 36 ms (AT, PGD-10) and 33 ms
(DyART, 8 search steps) with batch 256, 15 and 14 minutes of them, and about 5 of watching, validation and starts.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dyart.attacks.radius import Radius
from dyart.data import load
from dyart.data.loader import Batch
from dyart.dynamics.shares import share
from dyart.dynamics.source import open_source
from dyart.dynamics.step import measure
from dyart.dynamics.watch import Watch
from dyart.engine.callbacks import Callback
from dyart.engine.display import Display
from dyart.engine.fabric import make_fabric
from dyart.engine.fit import Training
from dyart.engine.metrics import read_metrics
from dyart.engine.stored import checkpoint_of
from dyart.recipes import Config, resolve
from dyart.report.curves import BURN_IN, NEGATIVE, read_run
from paper_dynamics import RATE, tested
from run_records import write
from stops import OutOfTimeError, train_until
from train_and_attack import STOPPED, clock, plain

OF_GRADIENT, OF_STEP = "negative_share", "negative_share_of_step"
SHARES = "gradient_share.jsonl"
DYART = ["--method.alpha", "8", "--method.lam", "400", "--method.r0", "16/255", "--method.steps", "8"]
# Observations at the end of a training that its last share is the mean of.
LAST = 10


class Drop(Callback):
    """Divides the rate by ten from a step on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, training: Training) -> None:
        # Settings of its own: those of the configuration say what was asked for.
        training.phases = [replace(phase, optim=replace(phase.optim)) for phase in training.phases]
        self.rate = training.config.optim.lr

    def on_step_begin(self, training: Training, batch: Batch) -> None:
        phase = training.phase(training.position.epoch)
        phase.optim.lr = self.rate / 10 if training.steps_done >= self.step else self.rate


class GradientShare(Callback):
    """Notes the share of negative speed among a step's own vulnerable images under theta' = -grad of its loss.

    Args:
        every: steps from one to the next; 0: never.
        radius: margins below it are vulnerable.
        steps: of the search for margins.
    """

    def __init__(self, every: int, radius: float, steps: int) -> None:
        self.every, self.radius, self.steps = every, radius, steps

    def on_start(self, training: Training) -> None:
        """What was noted after the checkpoint of a resumed run is noted again."""
        assert training.folder is not None
        self.path = training.folder / SHARES
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= training.steps_done]
        self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def on_step_begin(self, training: Training, batch: Batch) -> None:
        step = training.steps_done + 1
        if not self.every or step % self.every:
            return
        method = training.phase(training.position.epoch).method
        found = measure(training.model, [batch], {"own": method}, norm=training.config.eval.norm, steps=self.steps)
        below = share(found.speeds["own"], found.counted & (found.found.margin < self.radius))
        line = {"step": step, "negative": below.negative, "count": below.count, "examples": len(found)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def epochs_of(config: Config, iterations: int) -> int:
    """Return how many whole epochs have at least so many steps."""
    data = load(config.data.name, Path(config.data.root) if config.data.root else None)
    steps = len(data.fit[: config.data.limit]) // config.train.batch_size
    return math.ceil(iterations / steps)


def natural_network(options: argparse.Namespace, overrides: list[str], deadline: float) -> Path:
    """Return a natural network to begin with: the one given, or one that is trained here."""
    if options.natural is not None:
        return Path(options.natural)
    words = [
        *RATE,
        "--train.epochs",
        "30",
        "--train.loggers",
        "csv",
        *overrides,
        "--out",
        str(options.work / "natural"),
    ]
    config = resolve(f"{options.prefix}-natural", words)
    return train_until(config, lambda record: record["val_clean"] >= options.clean, deadline, [Display("natural")])


def series(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the curves of a training, as JSON values."""
    curves = read_run(folder)
    curves.pop(BURN_IN, None)
    found = {OF_STEP if name == NEGATIVE else name: part for name, part in curves.items()}
    noted = [line for line in read_metrics(folder / SHARES) if line["count"]]
    if noted:
        values = [line["negative"] / line["count"] for line in noted]
        found[OF_GRADIENT] = (np.array([line["step"] for line in noted]), np.array(values))
    return {
        name: {"step": [int(step) for step in steps], "value": [float(f"{value:.4g}") for value in values]}
        for name, (steps, values) in found.items()
    }


def ends(curves: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """Return where curves end: accuracies as they are, shares as the mean of their last observations."""
    shares = (OF_GRADIENT, OF_STEP)
    return {
        name: float(np.mean(part["value"][-LAST:])) if name in shares else part["value"][-1]
        for name, part in curves.items()
    }


def record(folder: Path, config: Config, training_facts: dict[str, Any]) -> dict[str, Any]:
    settings: Any = plain(asdict(config))
    settings.pop("out")
    settings["data"].pop("root")
    settings["train"].pop("burn_in_from")  # a place on the machine; what it is, is said below
    curves = series(folder)
    return {
        "method": config.method["name"],
        "data": config.data.name,
        "network": config.model.name,
        "normalization": config.model.normalization,
        "seed": config.seed,
        "runs": 1,
        **training_facts,
        "wall_seconds": clock(folder, 0.0),
        "settings": settings,
        "ends": ends(curves),
        "curves": curves,
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("method", choices=["at", "dyart"])
    made.add_argument("--work", type=Path, default=Path("runs/whole"))
    made.add_argument("--out", type=Path, default=Path("results"))
    made.add_argument("--seconds", type=float, default=570.0)
    made.add_argument("--natural", type=Path, help="a run to begin DyART with, instead of training one")
    made.add_argument("--clean", type=float, default=0.85, help="accuracy of the natural network")
    made.add_argument("--iterations", type=int, default=25_000)
    made.add_argument("--drop", type=int, default=20_000, help="iteration from which on the rate is a tenth")
    made.add_argument("--gradient-every", type=int, default=250)
    made.add_argument("--search-steps", type=int, default=20, help="of the margins of --gradient-every")
    made.add_argument("--images", type=int, default=10_000, help="test images for the accuracies in the end")
    made.add_argument("--radius", default="8/255")
    made.add_argument("--prefix", default="cifar10-resnet18-gn", help="of the recipes")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Train, or go on, and write; return 75 where the time is over first."""
    options, overrides = parser().parse_known_args(arguments)
    began = time.monotonic()
    deadline, folder = began + options.seconds, options.work / options.method
    words = [
        *RATE,
        "--train.burn_in",
        "0",
        "--train.loggers",
        "csv",
        "--eval.every",
        "3",
        "--train.checkpoint_every",
        "10",
    ]
    words += ["--monitor.every", "250", "--monitor.probe", "batch", "--monitor.examples", "256"]
    words += ["--eval.radius", options.radius, "--out", str(folder), *(DYART if options.method == "dyart" else [])]
    try:
        if options.method == "dyart":
            shared = [word for pair in _pairs(overrides) for word in pair if not pair[0].startswith("--method.")]
            words += ["--train.burn_in_from", str(natural_network(options, shared, deadline))]
        config = resolve(f"{options.prefix}-{options.method}", [*words, *overrides])
        config.train.epochs = epochs_of(config, options.iterations)
        watched = GradientShare(options.gradient_every, Radius(options.radius), options.search_steps)
        callbacks = [Display(f"whole training, {options.method}"), Drop(options.drop), Watch(), watched]
        begun = time.monotonic()
        try:
            train_until(config, None, deadline, callbacks)
        finally:
            clock(folder, time.monotonic() - begun)
    except OutOfTimeError as error:
        print(f"{error}; call again to go on")
        return STOPPED
    facts = environment_of(folder)
    facts |= {"iterations": options.iterations, "epochs": config.train.epochs, "drop": options.drop}
    facts["from"] = "natural training" if options.method == "dyart" else "scratch"
    source = open_source(checkpoint_of(folder, "last"), make_fabric(config.train.device).device)
    facts["test"] = tested(source, Radius(options.radius), options.images)
    name = f"whole-training-{options.method}"
    content = record(folder, config, facts)
    write(options.out / f"{name}.json", content)
    print(f"done: {options.out / name}.json, {content['ends']}")
    return 0


def environment_of(folder: Path) -> dict[str, Any]:
    facts = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return {"gpu": facts["device"], "versions": facts["versions"], "commit": facts["commit"]}


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


if __name__ == "__main__":
    sys.exit(main())
