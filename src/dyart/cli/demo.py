"""``dyart demo``: a natural network, then adversarial training and DyART from it, and what each did to the margins.

It ends with two ordinary commands on its runs: ``dyart dynamics`` and ``dyart report``.
"""

import json
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn

from dyart.boundary.search import closest_boundary_points
from dyart.cli.dynamics import BARS, SCATTER
from dyart.cli.networks import test_examples
from dyart.data import DataSet, load
from dyart.engine.display import Display
from dyart.engine.run import make_model, train
from dyart.engine.stored import RunError, averaged_weights
from dyart.evaluation.curve import accuracy_from_margins
from dyart.evaluation.evaluate import evaluate
from dyart.evaluation.records import write_records
from dyart.recipes import Config, resolve
from dyart.report.histogram import margin_histogram

if TYPE_CHECKING:
    from rich.console import Console

RECIPES = {"natural": "fashion-mini-cnn-natural", "AT": "fashion-mini-cnn-at", "DyART": "fashion-mini-cnn-dyart"}
BURN_IN_EPOCHS = 4
SEARCH_STEPS = 20
TEST_IMAGES = 1000
# Of the dynamics: examples and search steps.
SPEEDS = (512, 50)
# A look at how it works, in seconds: training images, test images, epochs.
QUICK = (512, 100, 1)
MARKER = "demo.json"
# What a demo writes into its folder besides.
OWN = (*map(str.lower, RECIPES), "margins.png", "report.html", f"{SCATTER}.*", f"{BARS}.*")


@dataclass
class Outcome:
    """What one network was measured to be."""

    name: str
    train_seconds: float
    clean: float
    margins: dict[float, float]
    pgd: dict[float, float]
    distances: np.ndarray


def demo(folder: Path, seed: int = 0, device: str = "cpu", quick: bool = False) -> list[Outcome]:
    """Run the demonstration, print a table and write everything to ``folder``, which an earlier demo may hold.

    ``quick`` takes few images and epochs: the numbers mean nothing then.
    """
    from rich.console import Console

    console = Console(highlight=False)
    started = time.monotonic()
    _make_room(folder)
    data = load("fashion-mini")
    configs = {name: _config(name, folder, seed, device, quick) for name in RECIPES}
    outcomes = []
    for name, config in configs.items():
        training = train(config, callbacks=[Display(name)], data=data)
        seconds = sum(record["train_seconds"] for record in training.history)
        model = make_model(config, data)
        # The averaged weights of the last epoch for the burn-in, of the best one by validation for the others.
        model.load_state_dict(averaged_weights(Path(str(config.out)), "last" if name == "natural" else "best"))
        count = QUICK[1] if quick else TEST_IMAGES
        facts = {"data": data.name, "checkpoint": "last" if name == "natural" else "best"}
        outcomes.append(_measure(name, model.to(training.fabric.device).eval(), data, config, seconds, count, facts))
    picture = _histogram(outcomes, configs["DyART"], folder)
    _write(outcomes, configs, folder, seed)
    _print(console, outcomes, configs["DyART"])
    console.print(f"\nmargins, one picture: {picture}\nnumbers: {folder / MARKER}; runs: {folder}/*/")
    _dynamics_and_page(console, folder, device, quick)
    console.print(f"{time.monotonic() - started:.0f} s in all")
    return outcomes


def _make_room(folder: Path) -> None:
    """Remove what an earlier demo wrote, and nothing else; a folder with something else alone is refused."""
    if folder.exists() and any(folder.iterdir()):
        if not _is_marker(folder / MARKER):
            raise RunError(f"{folder} is not empty and holds no demo: choose another folder with --out")
        for path in (path for name in OWN for path in folder.glob(name)):
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("{}\n", encoding="utf-8")


def _is_marker(path: Path) -> bool:
    """Return whether a file is what a demo leaves: ``{}`` while it runs, then a row per network."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    rows = content if isinstance(content, list) and content else [None]
    return content == {} or all(isinstance(row, dict) and "recipe" in row for row in rows)


def _config(name: str, folder: Path, seed: int, device: str, quick: bool) -> Config:
    words = ["--out", str(folder / name.lower()), "--seed", str(seed), "--train.device", device]
    words += ["--train.loggers", "csv"]
    if name == "natural":
        words += ["--train.epochs", str(BURN_IN_EPOCHS), "--optim.schedule", "constant"]
    else:
        words += ["--train.burn_in", "0", "--train.burn_in_from", str(folder / "natural")]
    if quick:
        words += ["--data.limit", str(QUICK[0]), "--train.epochs", str(QUICK[2]), "--eval.steps", "2"]
    return resolve(RECIPES[name], words)


def _dynamics_and_page(console: "Console", folder: Path, device: str, quick: bool) -> None:
    """Measure how a step of AT and one of DyART move the boundary of both networks, and write the page."""
    from dyart.cli.main import main

    runs = [str(folder / "at"), str(folder / "dyart")]
    count, steps = (QUICK[1], 10) if quick else SPEEDS
    words = ["dynamics", *runs, "--count", str(count), "--steps", str(steps), "--out", str(folder), "--device", device]
    for command in (words, ["report", *runs, "--title", "The dyart demo: AT and DyART on Fashion-MNIST"]):
        console.print(f"\n$ dyart {shlex.join(command)}", markup=False, soft_wrap=True)  # to be pasted
        if main(command):
            raise RunError(f"`dyart {command[0]}` did not work: its message is above; the runs are in {folder}")


def _measure(
    name: str,
    model: nn.Module,
    data: DataSet,
    config: Config,
    seconds: float,
    count: int | None,
    facts: dict[str, str],
) -> Outcome:
    inputs, labels = test_examples(data, count, next(model.parameters()).device)
    radii = config.eval.radii
    found = closest_boundary_points(
        model, inputs, labels, steps=SEARCH_STEPS, batch_size=250, progress=sys.stderr.isatty()
    )
    found.to_csv(Path(str(config.out)) / "margins.csv")
    attacked = evaluate(model, inputs, labels, radii, "pgd", batch_size=500, preflight=False, facts=facts)
    write_records(attacked, Path(str(config.out)))
    # A wrong example has no margin; one without a found point has a large one.
    distances = torch.where(found.inside, found.margin.nan_to_num(nan=float("inf")), 0.0).cpu().numpy()
    return Outcome(
        name,
        seconds,
        attacked.clean_accuracy,
        accuracy_from_margins(found, radii),
        cast(dict[float, float], attacked.robust_accuracy),
        distances,
    )


def _histogram(outcomes: list[Outcome], config: Config, folder: Path) -> Path:
    radius, largest = config.eval.radius, 2.5 * config.eval.radius
    margins = {outcome.name: outcome.distances for outcome in outcomes}
    return margin_histogram(
        margins, folder / "margins.png", radius, largest, title="Fashion-MNIST test images, L-inf margins"
    )


def _write(outcomes: list[Outcome], configs: dict[str, Config], folder: Path, seed: int) -> None:
    rows = [
        {
            "method": outcome.name,
            "recipe": configs[outcome.name].recipe,
            "seed": seed,
            "epochs": configs[outcome.name].train.epochs,
            "train_seconds": outcome.train_seconds,
            "clean": outcome.clean,
            "robust_by_margin_search": {str(radius): value for radius, value in outcome.margins.items()},
            "robust_by_pgd20": {str(radius): value for radius, value in outcome.pgd.items()},
        }
        for outcome in outcomes
    ]
    (folder / MARKER).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _print(console: "Console", outcomes: list[Outcome], config: Config) -> None:
    from rich.table import Table

    table = Table(title="test accuracy in %: clean, and robust at each L-inf radius")
    for title in ("", "clean", "attack", *map(str, config.eval.radii), "train"):
        table.add_column(title, justify="left" if title in ("", "attack") else "right", no_wrap=True)
    for outcome in outcomes:
        rows = {"margin search": outcome.margins, "PGD-20": outcome.pgd}
        for position, (attack, curve) in enumerate(rows.items()):
            cells = [f"{100 * curve[radius]:.1f}" for radius in config.eval.radii]
            first = (outcome.name, f"{100 * outcome.clean:.1f}") if position == 0 else ("", "")
            last = f"{outcome.train_seconds:.0f} s" if position == 0 else ""
            table.add_row(*first, attack, *cells, last, end_section=position == 1)
    console.print(table)
    by_name = {outcome.name: outcome for outcome in outcomes}
    at, dyart, radius = by_name["AT"], by_name["DyART"], config.eval.radius
    robust = [min(o.margins[radius], o.pgd[radius]) for o in (dyart, at)]
    console.print(
        f"DyART against AT: {100 * (dyart.clean - at.clean):+.1f} points clean, "
        f"{100 * (robust[0] - robust[1]):+.1f} robust at {radius} (the stronger of the two attacks), one seed, "
        f"{len(dyart.distances)} images"
    )
