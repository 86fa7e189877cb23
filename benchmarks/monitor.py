"""What watching the boundary costs, and how well the speed predicts how the boundary moves.

    python benchmarks/monitor.py
    python benchmarks/monitor.py --recipes cifar10-resnet18-at --device cuda --noise --out DIR    # time alone, on a GPU

One process trains from a recipe and times every step and every observation; "share" is the median observation's time
over that of the steps from one to the next (so many median steps). Passes are of one image each, forward or backward:
those of the training's steps by the recipe's numbers, those of the observation as the network is called.

For every observed step the movement of the boundary is also measured for a tenth of the step: the weights before it and
a tenth of the way. Correlations are of predicted and actual movement, over the examples of the probe whose closest
point is locally optimal before and after: of each observed step (the median is given), and of all of them together.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dyart.data.loader import Batch
from dyart.dynamics.movement import Movement, Weights, movement, weights_of
from dyart.dynamics.observation import correlation
from dyart.dynamics.watch import Watch
from dyart.engine.callbacks import Callback
from dyart.engine.fit import Training
from dyart.engine.run import prepare
from dyart.recipes import resolve
from harness import RESULTS, _synchronize, write
from methods import noise

FRACTIONS = (1.0, 0.1)


class Clock(Callback):
    """Times every step, observations apart, and measures movements for fractions of the observed steps."""

    def __init__(self, watch: Watch, fractions: tuple[float, ...]) -> None:
        self.watch, self.fractions = watch, fractions
        self.steps: list[float] = []
        self.observations: list[float] = []
        self.moved: dict[float, list[Movement]] = {fraction: [] for fraction in fractions}
        self.before: Weights | None = None

    def on_start(self, training: Training) -> None:
        self.watch.on_start(training)
        self.device = training.fabric.device
        self.due = self.watch.monitor.every

    def on_step_begin(self, training: Training, batch: Batch) -> None:
        observed = (training.steps_done + 1) % self.due == 0
        self.before = weights_of(training.model) if observed and self.fractions else None
        _synchronize(self.device)
        start = time.perf_counter()
        self.watch.on_step_begin(training, batch)
        _synchronize(self.device)
        self.begun = time.perf_counter()
        self.noted = self.begun - start

    def on_step(self, training: Training) -> None:
        _synchronize(self.device)
        now = time.perf_counter()
        self.steps.append(now - self.begun)
        self.watch.on_step(training)
        if training.steps_done % self.due == 0:
            _synchronize(self.device)
            self.observations.append(self.noted + time.perf_counter() - now)
            self._measure(training.model)

    def _measure(self, model: nn.Module) -> None:
        if self.before is None:
            return
        monitor, after = self.watch.monitor, weights_of(model)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for fraction in self.fractions:
            for name, old in self.before.items():
                tensors[name].data.copy_(torch.lerp(old, after[name], fraction))
            self.moved[fraction].append(movement(model, self.before, monitor.inputs, monitor.labels, monitor.search))
        for name, value in after.items():
            tensors[name].data.copy_(value)


def passes(watch: Watch, training: Training) -> dict[str, float]:
    """Passes of one image each: of all the steps between two observations, and of an observation, as counted."""
    monitor, calls = watch.monitor, {"forward": 0, "backward": 0}

    def count(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        calls["forward"] += len(inputs[0])
        if output.requires_grad:
            output.register_hook(lambda gradient: calls.update(backward=calls["backward"] + len(gradient)))

    handle = training.model.register_forward_hook(count)
    movement(training.model, weights_of(training.model), monitor.inputs, monitor.labels, monitor.search)
    handle.remove()
    method = training.config.method
    per_step = 2 * training.config.train.batch_size * (method["steps"] + 1)
    counted = calls["forward"] + calls["backward"]
    return {**calls, "training": monitor.every * per_step, "share": counted / (monitor.every * per_step)}


def agreement(moves: list[Movement]) -> dict[str, Any]:
    pairs = [(move.speed[move.compared], move.change[move.compared]) for move in moves]
    each = [value for value in (correlation(*pair) for pair in pairs) if value == value]
    predicted, actual = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    counted = sum(int(move.counted.sum()) for move in moves)
    return {
        "correlation_median": statistics.median(each),
        "correlation_lowest": min(each),
        "correlation_of_all": correlation(predicted, actual),
        "steps": len(moves),
        "examples": counted,
        "compared": len(predicted),
        "same_sign": float((predicted.sign() == actual.sign()).float().mean()),
        "mean_predicted": float(predicted.abs().mean()),
    }


def measure(recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    words = ["--train.device", options.device, "--train.epochs", str(options.epochs), "--train.burn_in", "0"]
    config = resolve(recipe, [*words, "--monitor.every", str(options.every), "--eval.every", "1000"])
    watch = Watch()
    clock = Clock(watch, () if options.noise else FRACTIONS)
    data = noise(40 * config.train.batch_size) if options.noise else None
    training = prepare(config, callbacks=[clock], data=data)
    training.run()
    # The first of each also compile, capture or fill caches.
    step, observation = statistics.median(clock.steps[1:]), statistics.median(clock.observations[1:])
    return {
        "recipe": recipe,
        "batch": config.train.batch_size,
        "every": options.every,
        "probe": len(watch.monitor.inputs),
        "step_ms": 1000 * step,
        "observation_ms": 1000 * observation,
        "share": observation / (options.every * step),
        "passes": passes(watch, training) if config.method["name"] == "at" else None,
        "movement": {str(fraction): agreement(moves) for fraction, moves in clock.moved.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["fashion-mini-cnn-at", "fashion-mini-cnn-dyart"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--noise", action="store_true", help="random images: time alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    records = []
    for recipe in options.recipes:
        records.append(measure(recipe, options))
        print(json.dumps(records[-1], indent=1))
        settings = {"epochs": options.epochs, "images": "random" if options.noise else "of the recipe"}
        write("monitor", torch.device(options.device), settings, records, options.out)


if __name__ == "__main__":
    main()
