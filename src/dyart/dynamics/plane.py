"""A training on points of the plane, watched: where the boundary is, and how fast it moves, at many moments."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dyart.boundary.margins import Boundary, boundary_value
from dyart.boundary.model import by_all_names, evaluation_mode, logits_of, unchanged
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.speed import boundary_speed
from dyart.data.loader import Batch, Loader
from dyart.dynamics.step import method_update
from dyart.methods.base import Method

SEARCH_STEPS = 60
# On the boundary to a fraction of a pixel of any picture.
TOLERANCE = 1e-4

Weights = dict[str, Tensor]


class Stretch(NamedTuple):
    """Some steps with one method."""

    method: Method[Any]
    steps: int


class Probe(NamedTuple):
    """Examples to watch."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Moment:
    """A network in training, and what its next step does."""

    step: int
    phase: str
    """Name of the method that is trained with."""
    weights: Weights
    found: BoundaryPoints
    """Closest boundary points of the watched examples."""
    speed: Tensor
    """How much the next step adds to every margin, by the closed form, ``[N]``."""


def watched_training(
    model: nn.Module,
    loader: Loader,
    stretches: Sequence[Stretch],
    probe: Probe,
    *,
    every: int,
    also: Collection[int] = (),
    lr: float,
    momentum: float = 0.9,
    norm: Norm = "l2",
    tick: Callable[[], None] = lambda: None,
) -> list[Moment]:
    """Train a network in place with SGD and return its moments: before every ``every``-th step, ``also``, and the last.

    Args:
        model: in training mode; without layers that behave differently in it, such as BatchNorm, its speeds are exact.
        loader: of the batches; epochs follow each other.
        stretches: what to train with, in turn; each has an optimizer of its own.
        probe: the examples to watch.
        every: steps between two moments.
        also: further steps, counted from 0, before which there is a moment.
        lr: learning rate.
        momentum: of SGD.
        norm: of margins and speeds.
        tick: called after every step.
    """
    moments: list[Moment] = []
    batches, step, total = _endless(loader), 0, sum(stretch.steps for stretch in stretches)
    for method, steps in stretches:
        method.prepare(loader.examples, loader.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        for _ in range(steps):
            batch = next(batches)
            if step % every == 0 or step in also or step == total - 1:
                update = method_update(model, method, batch, optimizer=optimizer)
                moments.append(moment(model, step, method.name, probe, update, norm))
            optimizer.zero_grad()
            loss, _ = method.loss_alone(model, batch, method.crafted(model, batch))
            loss.backward()
            optimizer.step()
            step += 1
            tick()
    return moments


def moment(
    model: nn.Module, step: int, phase: str, probe: Probe, update: dict[str, Tensor], norm: Norm = "l2"
) -> Moment:
    """Return where the boundary is now, and its speed under an update."""
    with evaluation_mode(model):
        found = closest_boundary_points(model, *probe, norm=norm, steps=SEARCH_STEPS, tol=TOLERANCE)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Moment(step, phase, weights, found, boundary_speed(model, found, update))


def moved(weights: Weights, update: dict[str, Tensor], time: float) -> Weights:
    """Return theta + t theta'."""
    return {name: value + time * update[name] if name in update else value for name, value in weights.items()}


def field(
    model: nn.Module,
    label: int,
    size: int,
    weights: Weights | None = None,
    boundary: Boundary = "exact",
    beta: float = 5.0,
) -> np.ndarray:
    """Return phi (or Phi) of a class on a grid of the unit square, ``[size, size]``, first index upwards.

    Args:
        model: of two inputs, from 0 to 1.
        label: of the class; where the field is zero is its boundary.
        size: points on a side, the corners included.
        weights: to use instead of the model's own.
        boundary: ``"exact"`` or ``"soft"``.
        beta: inverse temperature of the soft boundary.
    """
    logits = grid_logits(model, size, weights)
    labels = torch.full((len(logits),), label, device=logits.device)
    return np.asarray(boundary_value(logits, labels, boundary, beta).reshape(size, size).cpu().numpy())


def grid_logits(model: nn.Module, size: int, weights: Weights | None = None) -> Tensor:
    """Return the logits on a grid of the unit square, ``[size * size, K]``, row by row upwards."""
    parameter = next(model.parameters())
    line = torch.linspace(0, 1, size, device=parameter.device, dtype=parameter.dtype)
    upwards, across = torch.meshgrid(line, line, indexing="ij")
    points = torch.stack([across.flatten(), upwards.flatten()], 1)
    with torch.no_grad(), evaluation_mode(model), unchanged(model, points.device):
        given = by_all_names(model, weights or {})
        return logits_of(functional_call(model, given, (points,), tie_weights=False))


def _endless(loader: Loader) -> Iterator[Batch]:
    for epoch in count():
        yield from loader.epoch(epoch)
