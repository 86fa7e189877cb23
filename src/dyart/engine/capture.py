"""A piece of GPU work recorded once as a CUDA graph and replayed: no launch overhead, however many kernels it has."""

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

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

    def __call__(self, batch: Batch) -> Result:
        """Return the function's result for a batch."""
        if self.graph is None:
            self._record(batch)
        if any((a is None) != (b is None) or (a is not None and a.shape != b.shape) for a, b in self._pairs(batch)):
            return self.function(batch)
        for static, given in self._pairs(batch):
            if static is not None:
                static.copy_(given)
        assert self.graph is not None
        self.graph.replay()
        return self.result

    def _record(self, batch: Batch) -> None:
        names = [field.name for field in dataclasses.fields(batch)]
        copies = {name: None if getattr(batch, name) is None else getattr(batch, name).clone() for name in names}
        self.batch = Batch(**copies)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.function(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.function(self.batch)

    def _pairs(self, batch: Batch) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
        return [(getattr(self.batch, f.name), getattr(batch, f.name)) for f in dataclasses.fields(batch)]
