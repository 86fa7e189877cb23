"""A piece of GPU work recorded once as a CUDA graph and replayed: no launch overhead, however many kernels it has."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from dyart.data.loader import Batch

Result = TypeVar("Result")

WARM_UP = 2


class CaptureError(RuntimeError):
    """The work cannot be recorded; nothing has changed, and it runs as it is."""


class Pool:
    """Memory that CUDA graphs share: they never run at the same time, and one's results are used before the next runs.

    The first graph that is recorded allocates it.
    """

    def __init__(self) -> None:
        """Have none yet."""
        self.handle: Any = None


class Captured(Generic[Result]):
    """A function of a batch as one CUDA graph; other shapes than the recorded one run as they are.

    The first call runs as it is, so that whatever is made in a first call is there; the second one records. The
    result's tensors are overwritten by the next call.

    Args:
        function: without host synchronisation, copies from the host, or shapes that depend on values.
        changed: the tensors besides the result that a call changes, e.g. running statistics: recording, which runs the
            function, leaves them as they were.
        pool: of the memory that it takes, if it shares that with others.
    """

    def __init__(
        self,
        function: Callable[[Batch], Result],
        changed: Callable[[], Iterable[Tensor]] = tuple,
        pool: Pool | None = None,
    ) -> None:
        """Record at the second call."""
        self.function, self.changed, self.pool = function, changed, Pool() if pool is None else pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self.begun = self.idle = False

    def __call__(self, batch: Batch) -> Result:
        """Return the function's result for a batch.

        Raises:
            CaptureError: at the second call, if the function cannot be recorded.
        """
        if self.idle or not self.begun:
            self.begun = True
            with fastest_convolutions():
                result = self.function(batch)
            self.idle = result is None  # a function that returns nothing has nothing to record
            return result
        if self.graph is None:
            self._record(batch)
        given = _tensors(batch)
        assert self.graph is not None
        if {name: tensor.shape for name, tensor in given.items()} != self.shapes:
            return self.function(batch)
        for name, tensor in given.items():
            self.static[name].copy_(tensor)
        self.graph.replay()
        return self.result

    def _record(self, batch: Batch) -> None:
        self.static = {name: tensor.clone() for name, tensor in _tensors(batch).items()}
        self.shapes = {name: tensor.shape for name, tensor in self.static.items()}
        static = dataclasses.replace(batch, **cast(dict[str, Any], self.static))
        kept = [(tensor, tensor.clone()) for tensor in self.changed()]
        try:
            self.graph, self.result = record(lambda: self.function(static), self.pool)
        except RuntimeError as error:
            raise CaptureError(str(error)) from error
        finally:
            for tensor, before in kept:
                tensor.copy_(before)


def record(function: Callable[[], Result], pool: Pool | None = None) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Run a function a few times, record it as a CUDA graph, and return that with its result, which replays overwrite.

    Args:
        function: without arguments.
        pool: memory to share; None: the graph has its own.

    Raises:
        RuntimeError: it synchronises with the host, or fails by itself.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with fastest_convolutions():
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, pool=None if pool is None else pool.handle):
            result = function()
    if pool is not None and pool.handle is None:
        pool.handle = graph.pool()
    return graph, result


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms out for every new shape instead of guessing: a graph has one and runs often.

    From the first call on: what it has once guessed for a shape, it keeps.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _tensors(batch: Batch) -> dict[str, Tensor]:
    named = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}
