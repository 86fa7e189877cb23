"""A piece of GPU work recorded once as a CUDA graph and replayed: no launch overhead, however many kernels it has."""

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from dyart.data.loader import Batch

Result = TypeVar("Result")

WARM_UP = 3


class Captured(Generic[Result]):
    """A function of a batch as one CUDA graph; other shapes than the first run as they are.

    The result's tensors are overwritten by the next call.

    Args:
        function: without host synchronisation, allocation on the host, or shapes that depend on values.
    """

    def __init__(self, function: Callable[[Batch], Result]) -> None:
        """Record at the first call."""
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        self.idle = False

    def __call__(self, batch: Batch) -> Result:
        """Return the function's result for a batch."""
        if self.graph is None and not self.idle:
            self._record(batch)
        if self.idle:
            return self.function(batch)
        given = _tensors(batch)
        assert self.graph is not None
        if {name: tensor.shape for name, tensor in given.items()} != self.shapes:
            return self.function(batch)
        for name, tensor in given.items():
            self.static[name].copy_(tensor)
        self.graph.replay()
        return self.result

    def _record(self, batch: Batch) -> None:
        """Record the work, unless there is none: a function that returns None crafts nothing."""
        self.static = {name: tensor.clone() for name, tensor in _tensors(batch).items()}
        self.shapes = {name: tensor.shape for name, tensor in self.static.items()}
        static = dataclasses.replace(batch, **self.static)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            results = [self.function(static) for _ in range(WARM_UP)]
        torch.cuda.current_stream().wait_stream(side)
        if results[-1] is None:
            self.idle = True
            return
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.function(static)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    named = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: tensor for name, tensor in named.items() if tensor is not None}
