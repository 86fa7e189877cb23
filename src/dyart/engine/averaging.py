"""Exponential averaging of weights, with a warm-up: evaluation uses the average, training the weights themselves."""

import copy

import torch
from torch import Tensor, nn

from dyart.recipes.config import Averaging


def decay_at(step: int, warmup: float, limit: float) -> float:
    """Return the decay of the average after ``step`` updates: 0 (a copy) in the warm-up, then rising to the limit."""
    if step < warmup:
        return 0.0
    since = step - warmup
    return min(limit, (1 + since) / (10 + since))


class WeightAverage:
    """The averaged copy of a network.

    Args:
        model: the network that is trained.
        limit: the decay; 0: the average is the network itself.
        kind: "all": BatchNorm's running statistics are averaged like weights; "released": taken over as they are.
    """

    def __init__(self, model: nn.Module, limit: float, kind: Averaging = "all") -> None:
        """Begin with a copy."""
        self.limit = limit
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates = 0
        # Both networks keep their tensors for good; walking through the modules at every step would take longer than
        # the arithmetic.
        own, other = self.model.parameters(), (parameter.detach() for parameter in model.parameters())
        pairs: list[tuple[Tensor, Tensor]] = list(zip(own, other, strict=True))
        copied: list[tuple[Tensor, Tensor]] = []
        for pair in zip(self.model.buffers(), model.buffers(), strict=True):
            # The way from an infinite number to the same one, as masks of attention have it, would be nan.
            averaged = kind == "all" and pair[0].is_floating_point() and not bool(pair[0].isinf().any())
            (pairs if averaged else copied).append(pair)
        self._averaged, self._copied = _columns(pairs), _columns(copied)
        self.tensors = (*self._averaged[0], *self._copied[0])

    @torch.no_grad()
    def update(self, warmup: float) -> None:
        """Take in the network after a step of the optimizer. No host synchronisation."""
        self.updates += 1
        decay = decay_at(self.updates, warmup, self.limit)
        if decay:
            torch._foreach_lerp_(*self._averaged, 1 - decay)
        else:
            torch._foreach_copy_(*self._averaged)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the past: the average is the network as it is."""
        self.updates = 0
        for ours, theirs in (self._averaged, self._copied):
            if ours:
                torch._foreach_copy_(ours, theirs)


def _columns(pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    return [own for own, _ in pairs], [other for _, other in pairs]
