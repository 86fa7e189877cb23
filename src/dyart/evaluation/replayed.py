"""A network's passes for one shape of batch, recorded as CUDA graphs and replayed.

Attacks look at what every step has found (which examples are left, whose step is to be halved), and a GPU that was
waited for has nothing queued: the kernels of the next pass would be launched one by one. A graph is one launch.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from dyart.engine import capture

Function = Callable[[Tensor], Tensor]


class Replayed:
    """A function of tensors of one shape, which is that of the first call.

    Recorded at the first call with gradients and at the first without. What cannot be recorded runs as it is. A
    backward pass goes with the last forward pass that had gradients: where ``passes``, which counts those, has changed
    in between, the forward pass must be done again.

    Args:
        function: without host synchronisation; its parameters ask for no gradients.
    """

    def __init__(self, function: Function) -> None:
        """Record nothing yet."""
        self.function, self.passes = function, 0
        self._replays: dict[bool, Function] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value, differentiable where ``x`` asks for that. The next call overwrites the gradient, not it."""
        differentiable = torch.is_grad_enabled() and x.requires_grad
        if differentiable not in self._replays:
            self._replays[differentiable] = self._recorded(x, _both_ways if differentiable else _forwards)
        self.passes += differentiable
        return self._replays[differentiable](x).clone()

    def _recorded(self, x: Tensor, record: Callable[[Function, Tensor], Function]) -> Function:
        try:
            with capture.fastest_convolutions():
                return record(self.function, x)
        except torch.OutOfMemoryError:  # the caller's business: fewer examples at a time
            raise
        except RuntimeError:
            return self.function


def _both_ways(function: Function, x: Tensor) -> Function:
    return cast(Function, torch.cuda.make_graphed_callables(function, (x.detach().clone().requires_grad_(),)))


def _forwards(function: Function, x: Tensor) -> Function:
    given = x.clone()
    graph, result = capture.record(lambda: function(given))

    def replay(x: Tensor) -> Tensor:
        given.copy_(x)
        graph.replay()
        return result

    return replay
