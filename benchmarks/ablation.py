"""What each of DyART's savings saves, and what it does to the result.

    python benchmarks/ablation.py                                                    # fashion-mini on the CPU
    python benchmarks/ablation.py --device cuda --recipe cifar10-resnet18-dyart --name ablation_gpu --train.epochs 30

One training per variant and seed, from the recipe without any saving but the variant's, and one of another method
(--beside); keys of the recipes may follow. Accuracies are of the averaged weights after the last epoch, on the
hold-out: clean, and under the recipe's validation attack. "found" is a share of the examples inside their class, "good"
of the points nearer than r0 (good: the recipe trains on them, since the paper's conditions (a) and (b) hold), both in
the last epoch. "passes" is the search: forward and backward passes of an example to the input, counted where the
network is called, mean over the epochs. "extra" are passes of the loss beyond the one over points and images and back:
none, since the gradient kept by the search serves the weights and the conditions. Steps are timed in the end, with the
trained weights, all trainings of a seed in turn in one process.
"""

import argparse
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dyart.boundary.model import Model
from dyart.boundary.points import BoundaryPoints
from dyart.data.loader import Batch
from dyart.engine.callbacks import Callback
from dyart.engine.fit import Training
from dyart.engine.metrics import Record
from dyart.engine.phases import Position
from dyart.engine.run import prepare
from dyart.engine.timing import in_turn, step_of
from dyart.methods.base import Metrics
from dyart.methods.dyart import DyART
from dyart.recipes import resolve
from harness import RESULTS, write

ON, OFF = "true", "false"
# FEW: fewer steps than the recipe has, alone and where a warm start should make up for them.
FEW = "5"
PASSES = ("forward", "backward", "extra")
VARIANTS: dict[str, dict[str, str]] = {
    "none": {},
    "few steps": {"steps": FEW},
    "retire": {"retire": ON},
    "warm start": {"warm_start": ON},
    "warm start, few steps": {"warm_start": ON, "steps": FEW},
    "adaptive steps": {"adaptive_steps": ON},
    "adaptive steps, warm start": {"adaptive_steps": ON, "warm_start": ON},
    "all": {"adaptive_steps": ON, "warm_start": ON, "retire": ON},
}
NONE = {"warm_start": OFF, "retire": OFF, "adaptive_steps": OFF}


class Counted:
    """A network that counts the examples that go through it, forwards and backwards."""

    def __init__(self) -> None:
        self.model: Model = torch.nn.Identity()
        self.forward = self.backward = self.examples = 0

    def around(self, model: Model, batch: Batch) -> "Counted":
        self.model, self.examples = model, self.examples + len(batch)
        return self

    def __call__(self, x: Tensor) -> Tensor:
        self.forward += len(x)
        logits: Tensor = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self._back)
        return logits

    def _back(self, gradient: Tensor) -> None:
        self.backward += len(gradient)


class Watch(Callback):
    """Counts the passes of every epoch, and how many of the examples inside their class have a good point.

    A captured step runs as Python a few times only: what is counted then is what its replays do.
    """

    def __init__(self, method: DyART) -> None:
        self.method, self.epochs = method, list[dict[str, float]]()
        self.known: dict[int, dict[str, float]] = {}
        self.craft, self.loss = method.craft, method.loss
        method.craft, method.loss = self._craft, self._loss  # type: ignore[method-assign]
        self.tally: Tensor | None = None
        self._begin()

    def end(self) -> None:
        """Leave the method as it was."""
        for name in ("craft", "loss"):
            delattr(self.method, name)

    def on_record(self, training: Training, record: Record) -> None:
        if record["kind"] != "epoch" or record["phase"] != "train":
            return
        assert self.tally is not None
        if self.search.examples:
            count = self.search.examples
            # Of points and images together, there and back.
            extra = (self.update.forward + self.update.backward) / count - 4
            passes = {"forward": self.search.forward / count, "backward": self.search.backward / count, "extra": extra}
            self.known[self.method.steps] = passes
        good, near, found, inside = self.tally.tolist()
        self.tally.zero_()
        shares = {"good": good / max(near, 1), "found": found / max(inside, 1), "steps": self.method.steps}
        self.epochs.append(self.known[self.method.steps] | shares)
        self._begin()

    def _begin(self) -> None:
        self.search, self.update = Counted(), Counted()

    def _craft(self, model: Model, batch: Batch) -> BoundaryPoints:
        return self.craft(self.search.around(model, batch), batch)

    def _loss(self, model: Model, batch: Batch, crafted: BoundaryPoints) -> tuple[Tensor, Metrics]:
        if self.tally is None:
            self.tally = torch.zeros(4, dtype=torch.float64, device=crafted.found.device)
        kept, near = self.method.kept(crafted), crafted.margin < self.method.r0
        self.tally += torch.stack([rows.sum() for rows in (kept & near, near, crafted.found, crafted.inside)])
        return self.loss(self.update.around(model, batch), batch, crafted)


def trained(variant: str, seed: int, options: argparse.Namespace) -> tuple[dict[str, Any], Training]:
    words = ["--seed", str(seed), "--train.device", options.device, *options.more]
    words += [word for key, value in {**NONE, **VARIANTS[variant]}.items() for word in (f"--method.{key}", value)]
    config = resolve(options.recipe, words)
    training = prepare(config)
    assert isinstance(training.method, DyART)
    watch = Watch(training.method)
    training.callbacks = [watch]
    training.run()
    watch.end()
    train = [record for record in training.history if record["phase"] == "train"]
    record = {
        "variant": variant,
        "seed": seed,
        "method": {key: str(value) for key, value in config.method.items()},
        "clean": train[-1]["val_clean"],
        "robust": train[-1]["val_robust"],
        "used": train[-1]["used"],
        **{key: watch.epochs[-1][key] for key in ("found", "good")},
        **{f"{key}_passes": statistics.mean(epoch[key] for epoch in watch.epochs) for key in PASSES},
        "search_steps": [epoch["steps"] for epoch in watch.epochs],
    }
    return record, training


def beside(recipe: str, seed: int, options: argparse.Namespace) -> tuple[dict[str, Any], Training]:
    training = prepare(resolve(recipe, ["--seed", str(seed), "--train.device", options.device, *options.more]))
    training.run()
    last = training.history[-1]
    return {"recipe": recipe, "seed": seed, "clean": last["val_clean"], "robust": last["val_robust"]}, training


def timed(trainings: dict[str, Training], rounds: int) -> dict[str, list[float]]:
    """Milliseconds per step of every training, as it stands at the end of its last epoch."""
    for training in trainings.values():
        training.position = Position(training.epochs - 1, 0)
        training.callbacks = []
    device = next(iter(trainings.values())).fabric.device
    return in_turn({name: step_of(training) for name, training in trainings.items()}, device, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--recipe", default="fashion-mini-cnn-dyart")
    parser.add_argument("--beside", default="fashion-mini-cnn-at", help="recipe of another method, timed beside them")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=6, help="bursts of five timed steps of each variant")
    parser.add_argument("--name", default="ablation", help="of the JSON file")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options, options.more = parser.parse_known_args()
    warnings.filterwarnings("ignore")
    records: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for seed in options.seeds:
        other, training = beside(options.beside, seed, options)
        trainings = {options.beside: training}
        others.append(other)
        print(f"seed {seed}, {options.beside}: trained", file=sys.stderr, flush=True)
        for variant in options.variants:
            record, trainings[variant] = trained(variant, seed, options)
            records.append(record)
            print(f"seed {seed}, {variant}: trained", file=sys.stderr, flush=True)
        times = timed(trainings, options.rounds)
        other["step_ms"] = statistics.median(times[options.beside])
        for record in records[-len(options.variants) :]:
            record["step_ms"] = statistics.median(times[record["variant"]])
            record["over_beside"] = record["step_ms"] / other["step_ms"]
        settings = {"recipe": options.recipe, "more": options.more, "seeds": options.seeds, "rounds": options.rounds}
        settings["beside"] = others
        write(options.name, torch.device(options.device), settings, records, options.out)
    for record in records:
        print(
            "{variant:28} seed {seed}  clean {clean:.3f}  robust {robust:.3f}  found {found:.3f}  good {good:.3f}  "
            "passes {forward_passes:5.2f} + {backward_passes:5.2f}, extra {extra_passes:g}  "
            "{step_ms:7.2f} ms a step, {over_beside:.2f} of the other method's".format(**record)
        )


if __name__ == "__main__":
    main()
