"""Time per training step of every method relative to natural training, beside what its passes should take.

    python benchmarks/methods.py --device cuda

One network (ResNet-18, BatchNorm, the recipes' settings), random images, one process. "work" is the count of floating
point operations of a step (forward and backward passes of craft and loss, counted by torch) over that of natural
training: the ratio of times that the passes alone would give. Times are of whole steps, optimizer and averaging
included, taken in turn, round after round.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dyart.data.loader import Batch
from dyart.data.sets import DataSet
from dyart.engine.fit import Training
from dyart.engine.timing import noise, operations, ready
from dyart.methods.base import registered
from harness import RESULTS, write


def training(method: str, data: DataSet, options: argparse.Namespace, compiled: bool) -> Training:
    words = ["--train.device", options.device, "--train.compile", "on" if compiled else "off"]
    words += ["--train.batch_size", str(options.batch), "--train.precision", options.precision]
    return ready(f"cifar10-resnet18-{method}", [*words, "--model.name", options.network], data)


def stepping(made: Training, batches: list[Batch]) -> Callable[[int], None]:
    def step(number: int) -> None:
        made.position.step = number
        made._step(made.phases[-1], batches[number % len(batches)])

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", nargs="+", default=list(registered()))
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    device = torch.device(options.device)
    data = noise(8 * options.batch)
    names = ["natural", *(name for name in options.methods if name != "natural")]
    work = {name: operations(training(name, data, options, compiled=False))[0] for name in names}
    steps, times = {}, {name: [] for name in names}
    for name in names:
        start = time.perf_counter()
        made = training(name, data, options, compiled=not options.no_compile)
        steps[name] = stepping(made, list(made.loader.epoch(0)))
        for number in range(4):
            steps[name](number)
        _wait(device)
        print(f"{name}: ready after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for number in range(options.rounds):
        for name, step in steps.items():
            _wait(device)
            start = time.perf_counter()
            step(number % 4)
            _wait(device)
            times[name].append(1000 * (time.perf_counter() - start))
    records: list[dict[str, Any]] = []
    for name in names:
        ms = statistics.median(times[name])
        ratio, expected = ms / statistics.median(times["natural"]), work[name] / work["natural"]
        records.append(
            {"network": options.network, "normalization": "batch", "batch": options.batch, "method": name, "ms": ms,
             "ms_low": min(times[name]), "ms_high": max(times[name]), "ratio": ratio, "work": expected}
        )  # fmt: skip
        words = f"{ratio:6.2f} x natural   work {expected:6.2f} x   time/work {ratio / expected:.2f}"
        print(f"{name:12s} {ms:8.1f} ms   {words}")
    settings = {"precision": options.precision, "compile": not options.no_compile, "rounds": options.rounds}
    write("methods", device, settings, records, options.out)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
