"""How one step of a training moved the boundary: as the speed predicts it, and as it is found by searching again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dyart.boundary.margins import Boundary
from dyart.boundary.model import tensors_of
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.speed import boundary_speed
from dyart.boundary.validation import Bounds

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Search:
    """How boundary points are looked for (see ``closest_boundary_points``)."""

    norm: Norm = "linf"
    boundary: Boundary = "exact"
    beta: float = 5.0
    bounds: Bounds = (0.0, 1.0)
    steps: int = 20
    """Of the first search, from the inputs."""
    follow_steps: int = 3
    """Of the searches that follow its points. Longer ones find other, closer points rather than follow these."""
    batch_size: int | None = None

    @property
    def settling_steps(self) -> int:
        """Of the second search, from the points of the first."""
        return max(self.steps // 2, 2)

    def __call__(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, steps: int, start: Tensor | None = None
    ) -> BoundaryPoints:
        """Return closest points. Nothing is validated: a network of NaN has none, and that is no error here."""
        return closest_boundary_points(
            model,
            inputs,
            labels,
            norm=self.norm,
            boundary=self.boundary,
            beta=self.beta,
            bounds=self.bounds,
            steps=steps,
            batch_size=self.batch_size,
            start=start,
            validate=False,
        )


class Searches(Protocol):
    """The searches of an observation, of one model with whatever weights it has at the time."""

    def settled(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return closest points, settled: where the searches that follow them start."""

    def followed(self, inputs: Tensor, labels: Tensor, start: Tensor) -> BoundaryPoints:
        """Return the closest points near ``start``."""


@dataclass(frozen=True)
class PlainSearches:
    """The searches as ``closest_boundary_points`` does them: in plain float32, on any device."""

    model: nn.Module
    search: Search

    def settled(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Search from the inputs, and once more, half as long, from the points found."""
        first = self.search(self.model, inputs, labels, self.search.steps).points
        return self.search(self.model, inputs, labels, self.search.settling_steps, first).points

    def followed(self, inputs: Tensor, labels: Tensor, start: Tensor) -> BoundaryPoints:
        """Search from ``start``."""
        return self.search(self.model, inputs, labels, self.search.follow_steps, start)


class Movement(NamedTuple):
    """What a step did to the boundary near some examples; every tensor has one value per example."""

    found: BoundaryPoints
    """With the weights before the step."""
    followed: BoundaryPoints
    """With the weights after it: the same local points, where they could be followed."""
    speed: Tensor
    """Predicted change of the margin: the closed form, along the whole step. nan where no point was found."""
    change: Tensor
    """Actual change of the margin. nan where there is no point before or after."""

    @property
    def counted(self) -> Tensor:
        """Examples whose speed means something, ``[N]``: correct, with a locally optimal point and a finite speed."""
        return self.found.correct & self.found.optimal & self.speed.isfinite()

    @property
    def compared(self) -> Tensor:
        """Those of them whose point could be followed to a locally optimal one, ``[N]``."""
        return self.counted & self.followed.optimal & self.change.isfinite()


def weights_of(module: nn.Module) -> Weights:
    """Return copies of all that a step may move: parameters and floating-point buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}


def movement(
    model: nn.Module,
    before: Weights,
    inputs: Tensor,
    labels: Tensor,
    search: Search,
    recorded: Searches | None = None,
) -> Movement:
    """Return how the step from the weights ``before`` to those that the model has now moved the boundary.

    A search from the inputs is followed by one from its points, half as long, for them to settle: movements are a
    hundredth of a margin and less. Then two short ones start there, with the weights before and after: what they still
    gain is in both margins and cancels in the difference. A point lies a little across the boundary; its margin is
    taken up to the boundary, to first order.

    The model runs in eval mode (BatchNorm with its running statistics, which the step may have moved) and in plain
    float32, and is left as it was. The old weights are put into its own storage for a while, in place: whatever else
    refers to it (an optimizer, a compiled or captured view) stays valid.

    Cost, for K classes: 1.5 steps + 2 follow_steps + 6 forward and 1.5 steps + 2 follow_steps + min(K - 1, 9) + 1
    backward passes (two fewer of each for K = 2), and one forward pass with tangents (a forward and a backward pass).

    Args:
        model: with the weights after the step.
        before: from ``weights_of`` before the step.
        inputs: ``[N, ...]``, on the model's device.
        labels: ``[N]``.
        search: how to look for points.
        recorded: does these searches in another way, e.g. ``RecordedSearches`` of this model.
    """
    update = {name: now.detach() - before[name] for name, now in _moved(_tensors(model), before).items()}
    searches = PlainSearches(model, search) if recorded is None else recorded
    with _holding(model, {name: before[name] for name in update}):
        start = searches.settled(inputs, labels)
        found = searches.followed(inputs, labels, start)
        speed = boundary_speed(model, found, update)
    followed = searches.followed(inputs, labels, start)
    return Movement(found, followed, speed, _up_to_boundary(followed) - _up_to_boundary(found))


def _up_to_boundary(found: BoundaryPoints) -> Tensor:
    """Return the margin to first order: the point's, less what it lies across; nan where nothing was found."""
    return found.margin + found.value / found.multiplier()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors_of(module).items() if tensor.is_floating_point()}


def _moved(now: Weights, before: Weights) -> Weights:
    """Return those that are not as before: one host synchronisation. Not what is new, or of another size."""
    now = {name: value for name, value in now.items() if name in before and before[name].shape == value.shape}
    if not now:
        return {}
    differs = torch.stack([(value.detach() != before[name]).any() for name, value in now.items()]).tolist()
    return {name: value for (name, value), other in zip(now.items(), differs, strict=True) if other}


@contextmanager
def _holding(module: nn.Module, weights: Weights) -> Iterator[None]:
    """Put weights into a module, in place, and its own back."""
    tensors = _tensors(module)
    kept = {name: tensors[name].detach().clone() for name in weights}
    try:
        _write(tensors, weights)
        yield
    finally:
        _write(tensors, kept)


def _write(tensors: dict[str, Tensor], weights: Weights) -> None:
    for name, value in weights.items():
        # Past autograd's version counter: a graph of the caller's may hold the tensor, which will be as it was.
        tensors[name].data.copy_(value)
