"""AT against DyART on the same models and batches: how often does one step move the boundary closer?

    OMP_NUM_THREADS=1 python benchmarks/dynamics.py --seeds 0 1 2
    OMP_NUM_THREADS=1 python benchmarks/dynamics.py --normalizations batch group    # as published

As the paper's figures 4 and 5, on the embedded set: per seed a naturally trained network (4 epochs) and a partially
robust one (3 epochs of AT from there), both with a constant rate and stopped midway; 16 batches of 128 training images
each; theta' = -grad of each method's loss on the very batch. Shares of negative speed have Wilson intervals, methods
are compared by McNemar's exact test, and batch by batch. Then, for the optimizer's true next step and for a tenth of
it: the movement that the speed predicts against the one found by searching again from the old points.

About eight minutes of one core (15 for both normalisations). Expected from the paper (CIFAR-10, ResNet-18 with
GroupNorm, one batch): 29.2 % for AT against 15.3 % for DyART in the first interval of the natural model.
"""

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dyart.attacks.accuracy import resists_pgd
from dyart.data.loader import as_tensors
from dyart.dynamics.files import summarize
from dyart.dynamics.movement import Search, movement, weights_of
from dyart.dynamics.observation import correlation
from dyart.dynamics.settings import choose, plain
from dyart.dynamics.shares import margin_edges
from dyart.dynamics.source import Source, batches_of, open_source, optimizer_of
from dyart.dynamics.step import Dynamics, measure, method_update
from dyart.engine.run import train
from dyart.engine.stored import checkpoint_of
from dyart.recipes import resolve
from dyart.report.bars import speed_bars
from dyart.report.scatter import Cloud
from dyart.report.style import save
from harness import RESULTS, write

DEVICE = torch.device("cpu")
RADIUS, SMALL = 0.1, 8 / 255
EPOCHS = {"natural": 4, "partially robust": 3}
RECIPES = {"natural": "fashion-mini-cnn-natural", "partially robust": "fashion-mini-cnn-at"}
COUNT, SEARCH_STEPS, TEST_IMAGES = 2000, 100, 1000
# By the name in the result: method and what differs from its recipe. First the recipes' own, at radius 0.1; a DyART
# that weighs margins ten times as much; natural training, which aims at no margins, as a control; and both at 8/255,
# where half of a natural model's points are robust already.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "at": ("at", {}),
    "dyart": ("dyart", {}),
    "dyart, lam 400": ("dyart", {"lam": 400}),
    "natural": ("natural", {}),
    "at, 8/255": ("at", {"radius": "8/255", "step_size": "2/255"}),
    "dyart, 8/255": ("dyart", {"r0": "16/255"}),
}
COMPARISONS = {RADIUS: ("at", "dyart", "dyart, lam 400", "natural"), SMALL: ("at, 8/255", "dyart, 8/255")}
# Of the check of predicted movement: batches, steps of the search that follows the points, sizes of the step.
BATCHES, FOLLOW, SCALES = 2, 10, (0.1, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--normalizations", nargs="+", default=["batch"], choices=["batch", "group"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for normalization in options.normalizations:
        clouds: dict[str, list[Dynamics]] = {name: [] for name in RECIPES}
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                before: Path | None = None
                for name in RECIPES:
                    started = time.process_time()
                    source = trained(name, Path(folder) / name, seed, normalization, before)
                    before, seconds = source.folder, time.process_time() - started
                    measured, record = measured_on(source, seed)
                    clouds[name].append(measured)
                    head = {"model": name, "normalization": normalization, "seed": seed, "train_cpu_seconds": seconds}
                    records.append(head | record | {"movement": predictions(source, seed)})
                    records[-1]["cpu_seconds"] = time.process_time() - started
                    show(records[-1])
            write("dynamics", DEVICE, settings(options.seeds), records, options.out)
        panels = {f"{name}, {normalization} norm": pooled(parts) for name, parts in clouds.items()}
        save(speed_bars(panels, margin_edges(RADIUS)), options.out / f"dynamics_{normalization}", [".png"])


def trained(name: str, folder: Path, seed: int, normalization: str, before: Path | None) -> Source:
    words = ["--out", str(folder), "--seed", str(seed), "--train.epochs", str(EPOCHS[name])]
    words += ["--model.normalization", normalization]
    words += ["--optim.schedule", "constant", "--train.loggers", "csv", "--train.device", "cpu", "--eval.every", "9"]
    words += ["--train.burn_in_from", str(before)] if before else []
    train(resolve(RECIPES[name], words))
    return open_source(checkpoint_of(folder, "last"), DEVICE)


def measured_on(source: Source, seed: int) -> tuple[Dynamics, dict[str, Any]]:
    chosen = {name: choose(method, source.config, changes) for name, (method, changes) in METHODS.items()}
    batches = batches_of(source, COUNT, "train", seed)
    methods = {name: one.method for name, one in chosen.items()}
    measured = measure(source.model, batches, methods, steps=SEARCH_STEPS)
    inputs, labels = as_tensors(source.data.test, slice(0, TEST_IMAGES), DEVICE)
    robust = resists_pgd(source.model, inputs, labels, RADIUS).float().mean().item()
    with torch.no_grad():
        clean = (source.model(inputs).argmax(dim=1) == labels).float().mean().item()
    record: dict[str, Any] = {"clean": clean, "robust": {str(RADIUS): robust}}
    for radius, names in COMPARISONS.items():
        part = dataclasses.replace(measured, speeds={name: measured.speeds[name] for name in names})
        record[f"radius {radius:.4g}"] = summarize(part, radius, margin_edges(radius), names[0])
    return measured, record


def predictions(source: Source, seed: int) -> list[dict[str, Any]]:
    """Predicted against actual change of margins, for the run's next step with either method."""
    optimizer, words = optimizer_of(source)
    search = Search(steps=SEARCH_STEPS, follow_steps=FOLLOW)
    rows = []
    for name in ("at", "dyart"):
        chosen = choose(name, source.config)
        for scale in SCALES:
            pairs: list[tuple[Tensor, Tensor]] = []
            for batch in batches_of(source, BATCHES * source.config.train.batch_size, "train", seed):
                update = method_update(source.model, chosen.method, batch, optimizer=optimizer, clip_norm=chosen.clip)
                before = weights_of(source.model)
                shift(source.model, {key: scale * value for key, value in update.items()})
                done = movement(source.model, before, batch.inputs, batch.labels, search)
                source.model.load_state_dict(before, strict=False)  # all but the count of batches
                pairs.append((done.speed[done.compared], done.change[done.compared]))
            predicted, actual = (torch.cat(parts) for parts in zip(*pairs, strict=True))
            rows.append(
                {
                    "method": name,
                    "step": scale,
                    "optimizer": words,
                    "clip": chosen.clip,
                    "examples": len(predicted),
                    "correlation": correlation(predicted, actual),
                    "same_sign": ((predicted < 0) == (actual < 0)).float().mean().item(),
                    "mean_size": actual.abs().mean().item(),
                }
            )
    return rows


def shift(model: nn.Module, update: dict[str, Tensor]) -> None:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in update.items():
            tensors[name].add_(value)


def pooled(parts: list[Dynamics]) -> dict[str, Cloud]:
    """Margins and speeds of all seeds, for the bars."""
    return {
        name: Cloud(
            torch.cat([part.found.margin[part.counted] for part in parts]).numpy(),
            torch.cat([part.speeds[name][part.counted] for part in parts]).numpy(),
        )
        for name in ("at", "dyart")
    }


def settings(seeds: list[int]) -> dict[str, Any]:
    methods = {}
    for name, (method, changes) in METHODS.items():
        one = choose(method, resolve(RECIPES["natural"]), changes)
        methods[name] = {"method": method, "settings": plain(one.settings), "from": one.origin}
    return {
        "seeds": seeds,
        "data": "fashion-mini",
        "network": "cnn",
        "weights": "raw",
        "split": "train",
        "epochs": EPOCHS,
        "search_steps": SEARCH_STEPS,
        "methods": methods,
        "test_images": TEST_IMAGES,
        "attack": "PGD-20 on the margin loss",
        "movement": {"batches": BATCHES, "follow_steps": FOLLOW, "steps": SCALES},
    }


def show(record: dict[str, Any]) -> None:
    which = f"{record['normalization']} norm, seed {record['seed']}, {record['model']}"
    print(f"{which}: clean {100 * record['clean']:.1f} %, robust {record['robust']}")
    for radius in COMPARISONS:
        summary = record[f"radius {radius:.4g}"]
        words = "; ".join(
            f"{name} {100 * entry['below_radius']['share']:.1f} % [{100 * entry['below_radius']['low']:.1f}, "
            f"{100 * entry['below_radius']['high']:.1f}], first interval {100 * entry['intervals'][0]['share']:.1f} %"
            for name, entry in summary["methods"].items()
        )
        print(f"  negative below {radius:.4g} ({summary['counts']['counted']} counted): {words}")
        for test in summary["tests"]:
            print(f"    {test['second']}: p {test['p_value']:.2g}, by batch {test['p_value_by_batch']:.2g}")
    for row in record["movement"]:
        print(f"  {row['method']}, step x {row['step']}: correlation {row['correlation']:.4f} of {row['examples']}")


if __name__ == "__main__":
    main()
