"""What one training step of several methods would do to the boundary, on the same model and the same batches.

For every batch: the closest points of the exact boundary, once; then, per method, the points it trains on (crafted in
eval mode), its loss (in training mode, as in a training), the update theta' that follows from it, and the speed of the
boundary at every example under that update. No step is taken: the model is the same afterwards.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dyart.boundary.model import evaluation_mode, training_mode
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints, concat
from dyart.boundary.progress import Counter, Progress
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.speed import boundary_speed
from dyart.boundary.update import update_direction
from dyart.boundary.validation import Bounds
from dyart.data.loader import Batch
from dyart.engine.seeds import seeding
from dyart.methods.base import Method

STEPS = 100


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Margins and speeds of all examples of some batches, on the CPU; every tensor has one row per example."""

    index: Tensor
    """Places in the data set."""
    batch: Tensor
    """Number of the batch; the speeds of one batch come from one update, and are not independent of each other."""
    found: BoundaryPoints
    speeds: dict[str, Tensor]
    """By method, ``[N]``: positive where the boundary moves away; nan where no point was found."""

    def __len__(self) -> int:
        """Return the number of examples, wrongly classified ones included."""
        return len(self.index)

    @property
    def counted(self) -> Tensor:
        """Examples that shares are taken over, ``[N]``: classified correctly, with a locally optimal point."""
        finite = [speed.isfinite() for speed in self.speeds.values()]
        return torch.stack([self.found.correct & self.found.optimal, *finite]).all(dim=0)

    @property
    def counts(self) -> dict[str, int]:
        """How many examples there are, and how many are left out for which reason."""
        found, correct = self.found, self.found.correct
        return {
            "examples": len(self),
            "wrong": int((~correct).sum()),
            "not_found": int((correct & ~found.found).sum()),
            "not_optimal": int((correct & found.found & ~self.counted).sum()),
            "counted": int(self.counted.sum()),
        }


def measure(
    model: nn.Module,
    batches: Sequence[Batch | tuple[Tensor, Tensor]],
    methods: Mapping[str, Method[Any]],
    *,
    norm: Norm = "linf",
    steps: int = STEPS,
    bounds: Bounds = (0.0, 1.0),
    optimizer: Optimizer | None = None,
    clip_norms: Mapping[str, float | None] | None = None,
    progress: Progress = False,
) -> Dynamics:
    """Return the margin of every example and its speed under one step of every method, taken on its own batch.

    Model, methods, optimizer and torch's generators are left as they were. Cost per batch: a search of ``steps``
    forward and backward passes (see ``closest_boundary_points``); per method its crafting, one training step and one
    Jacobian-vector product.

    Args:
        model: on the device of the batches.
        batches: each as large as a batch of a training: a step is an average over it. Or pairs of inputs and labels,
            which are numbered as they come.
        methods: by the name to give their speeds; each works in its own norm and bounds.
        norm: of margins and speeds.
        steps: of the search for the exact boundary.
        bounds: of the inputs; None: none.
        optimizer: None: theta' = -grad of the loss, the paper's continuous time. Otherwise its true next step, with
            momentum, decay and the movement of BatchNorm's statistics in it; speeds are then distances per step.
        clip_norms: largest norm of the gradient by method, for the optimizer's step; of theta' = -grad it would only
            change the length.
        progress: True for a line on stderr, or a callable ``(done, total)``.

    Raises:
        ValueError: there are no batches or no methods.
    """
    if not batches or not methods:
        raise ValueError(f"dynamics need batches and methods, got {len(batches)} and {len(methods)}")
    _check_methods(methods)
    batches = _numbered(batches)
    device = batches[0].inputs.device
    counter = Counter(progress, len(batches) * (1 + len(methods)), "margins and speeds")
    found: list[BoundaryPoints] = []
    speeds: dict[str, list[Tensor]] = {name: [] for name in methods}
    with seeding(device) as seed:
        for batch in batches:
            with evaluation_mode(model):  # else the search warns of BatchNorm in training mode
                points = closest_boundary_points(
                    model, batch.inputs, batch.labels, norm=norm, steps=steps, bounds=bounds
                )
            found.append(points.to("cpu"))
            counter.tick()
            for name, method in methods.items():
                seed(int(batch.key))  # of dropout and the like: the same for every method
                clip = (clip_norms or {}).get(name) if optimizer is not None else None
                update = method_update(model, method, batch, optimizer=optimizer, clip_norm=clip)
                speeds[name].append(boundary_speed(model, points, update).cpu())
                counter.tick()
    numbers = [torch.full((len(batch),), number) for number, batch in enumerate(batches)]
    return Dynamics(
        torch.cat([batch.index.cpu() for batch in batches]),
        torch.cat(numbers),
        concat(found),
        {name: torch.cat(parts) for name, parts in speeds.items()},
    )


def _check_methods(methods: Mapping[str, Method[Any]]) -> None:
    if not isinstance(methods, Mapping):
        raise TypeError(
            "methods are objects of dyart.methods by name, e.g. {'AT': dyart.methods.AT(radius=8 / 255)}, got a "
            f"{type(methods).__name__}"
        )
    for name, method in methods.items():
        if not isinstance(method, Method):
            raise TypeError(
                f"methods are objects of dyart.methods by name, e.g. {{'AT': dyart.methods.AT(radius=8 / 255)}}; "
                f"{name!r} is of type {type(method).__name__}"
            )


def _numbered(batches: Sequence[Batch | tuple[Tensor, Tensor]]) -> list[Batch]:
    """Return batches; of pairs, numbered as they come."""
    made: list[Batch] = []
    for number, batch in enumerate(batches):
        if isinstance(batch, Batch):
            made.append(batch)
            continue
        inputs, labels = batch
        first = sum(map(len, made))
        index = torch.arange(first, first + len(labels), device=inputs.device)
        made.append(Batch(inputs, labels, index, torch.tensor(number, device=inputs.device)))
    return made


def method_update(
    model: nn.Module,
    method: Method[Any],
    batch: Batch,
    *,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
) -> dict[str, Tensor]:
    """Return theta' of one step of a method on a batch (see ``update_direction``), without taking it.

    Points are crafted in eval mode and the loss is taken in training mode, as in a training; modes, buffers and what
    the method keeps per example are put back. With AWP, the gradient is that at the perturbed weights.
    """
    kept = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    own, method = method, copy.copy(method)  # what begins now is the copy's
    try:
        crafted = method.crafted(model, batch)
        with training_mode(model):
            return update_direction(
                model,
                loss=lambda: method.loss_alone(model, batch, crafted)[0],
                optimizer=optimizer,
                clip_norm=clip_norm,
                buffers=optimizer is not None,
            )
    finally:
        if kept:
            own.load_state_dict(kept)
