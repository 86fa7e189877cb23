"""How long a training step takes and how much arithmetic it is, on random images: neither depends on what they show."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dyart.data.sets import DataSet, Split
from dyart.engine.fit import Training
from dyart.engine.run import prepare
from dyart.recipes import resolve

Step = Callable[[], None]

WARM_UP = 4
# Steps in a row of one method before the next has its turn: a training's steps overlap, too.
BURST = 5
MATRIX, PRODUCTS = 8192, 20


def noise(count: int, shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> DataSet:
    """Return a data set of random images."""
    images = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    split = Split(images, np.arange(count) % classes)
    return DataSet("noise", split, split, tuple(str(name) for name in range(classes)), np.arange(count // 10))


def ready(recipe: str, words: Sequence[str], data: DataSet) -> Training:
    """Return a recipe's training on given data, past the burn-in and every schedule: at its full cost."""
    training = prepare(resolve(recipe, [*words, "--train.burn_in", "0"]), data=data)
    training.stepper.advance(0.99)
    return training


def step_of(training: Training) -> Step:
    """Return a function that takes one whole step: data on the device, optimizer and averaging included."""
    batches = list(training.loader.epoch(0))
    taken = 0

    def step() -> None:
        nonlocal taken
        training.position.step = taken % len(batches)  # the schedules' place stays within the first epoch
        training._step(training.phases[-1], batches[taken % len(batches)])
        taken += 1

    return step


def in_turn(steps: Mapping[str, Step], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of every step after the warm-up; bursts of each in turn, round after round.

    On a GPU the times are from the begin of one step to the begin of the next, on its own clock: the host may run
    ahead, as it does in a training.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            times[name] += _burst(step, device)
    return times


def _burst(step: Step, device: torch.device) -> list[float]:
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(BURST):
            step()
            marks.append(time.perf_counter())
        return [1000 * (after - before) for before, after in pairwise(marks)]
    torch.cuda.synchronize(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(BURST + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) for before, after in pairwise(events)]


def operations(training: Training) -> tuple[int, int]:
    """Return floating point operations of one step, and of one forward pass of its batch; of an uncompiled training."""
    batch = next(training.loader.epoch(0))
    training.stepper.gradients(batch)  # once before: what is made in a first step is not counted
    step = _counted(lambda: training.stepper.gradients(batch))
    with torch.no_grad():
        return step, _counted(lambda: training.model(batch.inputs))


def _counted(work: Callable[[], object]) -> int:
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]  # its hooks know no torch.autograd.grad
    with counter:
        work()
    return int(counter.get_total_flops())


class _NoModules(nn.Module):
    """Stands in for the counter's list of the modules that are running."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def matrix_rate(device: torch.device) -> float:
    """Return the rate of a large bf16 matrix product on a GPU, in operations per second: the yardstick."""
    one, two = (torch.randn(MATRIX, MATRIX, device=device).bfloat16() for _ in range(2))
    times = []
    for _ in range(PRODUCTS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        one @ two
        events[1].record()
        torch.cuda.synchronize(device)
        times.append(events[0].elapsed_time(events[1]) / 1000)
    return float(2 * MATRIX**3 / statistics.median(times))
