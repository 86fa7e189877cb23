"""The searches of an observation as CUDA graphs: their many small kernels take longer to launch than to run."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from dyart.boundary.model import evaluation_mode, ieee_float32
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.search import static_boundary_points
from dyart.dynamics.movement import Search
from dyart.engine.capture import record

Result = TypeVar("Result")

ROUNDS = 8


class RecordedSearches:
    """The searches of a batch of one shape, recorded at the first call and replayed with the model's current weights.

    The search for the points runs with TF32 where torch allows it; the two that follow them, whose difference is
    measured, in plain float32, both in eval mode.

    Args:
        model: on a GPU, which keeps its weights where they are. No host synchronisation in its forward pass.
        search: how to look for points.
        inputs: ``[N, ...]``, of the shape that all calls have.
        labels: ``[N]``.
    """

    def __init__(self, model: nn.Module, search: Search, inputs: Tensor, labels: Tensor) -> None:
        """Record nothing yet."""
        self.model, self.search = model, search
        self.inputs, self.labels, self.start = inputs.clone(), labels.clone(), inputs.clone()
        self._settled: _Recorded[Tensor] | None = None
        self._followed: _Recorded[BoundaryPoints] | None = None

    def settled(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return closest points, settled."""
        if self._settled is None:
            self._settled = _Recorded(self._settle, nullcontext, self.model)
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        return self._settled().clone()

    def followed(self, inputs: Tensor, labels: Tensor, start: Tensor) -> BoundaryPoints:
        """Return the closest points near ``start``."""
        if self._followed is None:
            self._followed = _Recorded(self._follow, lambda: ieee_float32(self.inputs.device), self.model)
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.start.copy_(start)
        return _copied(self._followed())

    def _settle(self) -> Tensor:
        first = self._search(self.search.steps, None).points
        return self._search(self.search.settling_steps, first).points

    def _follow(self) -> BoundaryPoints:
        return self._search(self.search.follow_steps, self.start)

    def _search(self, steps: int, start: Tensor | None) -> BoundaryPoints:
        search = self.search
        return static_boundary_points(
            self.model,
            self.inputs,
            self.labels,
            search.norm,
            search.boundary,
            search.beta,
            search.bounds,
            steps,
            start,
            ROUNDS,
        )


class _Recorded(Generic[Result]):
    """A function without arguments as a CUDA graph; its result is overwritten by the next call."""

    def __init__(
        self, function: Callable[[], Result], precision: Callable[[], AbstractContextManager[None]], model: nn.Module
    ) -> None:
        with evaluation_mode(model), torch.autocast("cuda", enabled=False), torch.enable_grad(), precision():
            self.graph, self.result = record(function)

    def __call__(self) -> Result:
        self.graph.replay()
        return self.result


def _copied(found: BoundaryPoints) -> BoundaryPoints:
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    copies: dict[str, Any] = {name: value.clone() for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(found, **copies)
