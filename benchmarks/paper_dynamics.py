"""The paper's figures 3 and 5 on CIFAR-10: one update of AT and of DyART on a natural and a partially robust network.

    python benchmarks/paper_dynamics.py --seconds 570 --work runs/dynamics --out results    # again, until it says done
    python benchmarks/paper_dynamics.py --robust runs/at/checkpoints/epoch-0030             # networks that are there

ResNet-18 with GroupNorm, as in the paper. The natural network is trained until the hold-out is classified at 85 %, the
partially robust one by AT until 75 % clean and 42 % under PGD-20 (margin loss): constant rate 0.01, batch 256, raw
weights, no averaging. Then, on the same batches of training images, theta' = -grad of either loss, the margins (exact
boundary, 100 steps) and speeds of all correctly classified images; nothing is updated. DyART: alpha 8, lambda 400,
r0 16/255, 20 search steps, the paper's for GroupNorm; it does not say which it used here. The paper shows one batch,
this has 8; tests count batches, too, as images of one batch share one update.

About 6 minutes on an H200: 1 for the natural network, 4 for AT (epochs of about 7 s, at most 60), 1 to measure. Writes
paper-dynamics.json, and paper-dynamics.csv with margin and speeds of every image that counts.
"""

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.attacks.radius import Radius
from dyart.data.loader import as_tensors
from dyart.dynamics import files
from dyart.dynamics.settings import plain
from dyart.dynamics.shares import margin_edges
from dyart.dynamics.source import Source, batches_of, methods_of, open_source
from dyart.dynamics.step import Dynamics, measure
from dyart.engine.display import Display
from dyart.engine.fabric import make_fabric
from dyart.engine.metrics import Record
from dyart.engine.stored import checkpoint_of
from dyart.recipes import resolve
from harness import write
from stops import OutOfTimeError, train_until
from train_and_attack import STOPPED

NAME = "paper-dynamics"
MODELS = {"natural": "natural", "partially robust": "at"}
GIVEN = {"natural": "natural", "partially robust": "robust"}
EPOCHS = {"natural": 30, "partially robust": 60}
TEST_BATCH = 500
RATE = ["--optim.schedule", "constant", "--optim.lr", "0.01", "--optim.weight_decay", "0.0005", "--optim.average", "0"]
DYART = {"alpha": 8, "lam": 400, "steps": 20}


def enough(name: str, options: argparse.Namespace, record: Record) -> bool:
    """Say whether a network is as good as the paper's."""
    if name == "natural":
        return bool(record["val_clean"] >= options.natural_clean)
    return bool(record["val_clean"] >= options.robust_clean and record["val_robust"] >= options.robust_accuracy)


def source_of(name: str, options: argparse.Namespace, overrides: list[str], deadline: float) -> Source:
    """Train a network, or take the one that was given, and open it with its raw weights."""
    given = getattr(options, GIVEN[name])
    if given is None:
        out = options.work / GIVEN[name]
        words = [*RATE, "--train.epochs", str(EPOCHS[name]), "--train.loggers", "csv", *overrides, "--out", str(out)]
        config = resolve(f"{options.prefix}-{MODELS[name]}", words)
        given = train_until(config, lambda record: enough(name, options, record), deadline, [Display(name)])
    device = make_fabric(options.device).device
    return open_source(checkpoint_of(given, "last"), device)


def measured(source: Source, options: argparse.Namespace) -> tuple[Dynamics, dict[str, Any]]:
    """Measure one network; return margins and speeds, and what is concluded."""
    radius = Radius(options.radius)
    chosen = methods_of(source, ["at", "dyart"], {"dyart": DYART | {"r0": options.r0}})
    batches = batches_of(source, options.count, "train", options.seed)
    found = measure(source.model, batches, {name: one.method for name, one in chosen.items()}, steps=options.steps)
    methods = {name: {"settings": plain(one.settings), "from": one.origin} for name, one in chosen.items()}
    return found, {
        "step": source.step,
        **tested(source, radius, options.images),
        "batches": len(batches),
        "batch": len(batches[0]),
        "methods": methods,
        "dynamics": files.summarize(found, radius, margin_edges(radius), "at"),
    }


def tested(source: Source, radius: Radius, images: int) -> dict[str, Any]:
    """Return clean accuracy and that under PGD-20 (margin loss) of a network's raw weights on the first test images."""
    inputs, labels = as_tensors(source.data.test, slice(0, images), source.device)
    clean = correct(source.model, inputs, labels, TEST_BATCH).float().mean().item()
    robust = resists_pgd(source.model, inputs, labels, radius).float().mean().item()
    return {"test_images": len(labels), "clean": clean, "robust": {str(radius): robust}}


def rows_of(name: str, found: Dynamics) -> list[list[str]]:
    """Return one line per example that counts."""
    columns = [found.batch, found.found.margin, found.speeds["at"], found.speeds["dyart"]]
    lines = zip(*(column[found.counted].tolist() for column in columns), strict=True)
    return [[name, str(batch), *(f"{value:.5g}" for value in values)] for batch, *values in lines]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--work", type=Path, default=Path("runs/dynamics"))
    made.add_argument("--out", type=Path, default=Path("results"))
    made.add_argument("--seconds", type=float, default=570.0, help="for the trainings")
    made.add_argument("--natural", type=Path, help="a run or checkpoint instead of a training")
    made.add_argument("--robust", type=Path, help="a run or checkpoint instead of a training")
    made.add_argument("--natural-clean", type=float, default=0.85)
    made.add_argument("--robust-clean", type=float, default=0.75)
    made.add_argument("--robust-accuracy", type=float, default=0.42)
    made.add_argument("--count", type=int, default=2048, help="training images to measure")
    made.add_argument("--steps", type=int, default=100, help="of the search for margins")
    made.add_argument("--images", type=int, default=10_000, help="test images for the accuracies")
    made.add_argument("--radius", default="8/255")
    made.add_argument("--r0", default="16/255")
    made.add_argument("--prefix", default="cifar10-resnet18-gn", help="of the recipes")
    made.add_argument("--device", default="auto")
    made.add_argument("--seed", type=int, default=0)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Train what is missing, measure, and write; return 75 where the time is over first."""
    options, overrides = parser().parse_known_args(arguments)
    overrides += ["--seed", str(options.seed), "--train.device", options.device]
    deadline = time.monotonic() + options.seconds
    try:
        sources = {name: source_of(name, options, overrides, deadline) for name in MODELS}
    except OutOfTimeError as error:
        print(f"{error}; call again to go on")
        return STOPPED
    records, lines = [], []
    for name, source in sources.items():
        began = time.monotonic()
        found, record = measured(source, options)
        records.append({"model": name, **record, "seconds": time.monotonic() - began})
        lines += rows_of(name, found)
        shares = {method: part["below_radius"] for method, part in record["dynamics"]["methods"].items()}
        words = ", ".join(f"{method} {share['negative']} of {share['count']}" for method, share in shares.items())
        print(f"{name}: clean {record['clean']:.3f}, {record['robust']}; negative below the radius: {words}")
    config = sources["natural"].config
    settings = {
        "data": config.data.name, "network": config.model.name, "normalization": config.model.normalization,
        "radius": options.radius, "seed": options.seed, "runs": 1, "search_steps": options.steps,
        "update": "theta' = -grad", "attack": "PGD-20 on the margin loss", "training": RATE + overrides,
    }  # fmt: skip
    write(NAME, sources["natural"].device, settings, records, options.out)
    with (options.out / f"{NAME}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([["model", "batch", "margin", "at", "dyart"], *lines])
    print(f"done: {options.out / NAME}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
