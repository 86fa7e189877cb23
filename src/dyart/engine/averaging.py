"""Exponential averaging of weights, with a warm-up: evaluation uses the average, training the weights themselves."""

import copy
from collections.abc import Iterator

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
        self.limit, self.kind = limit, kind
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module, warmup: float) -> None:
        """Take in the network after a step of the optimizer. No host synchronisation."""
        self.updates += 1
        decay = decay_at(self.updates, warmup, self.limit)
        pairs = list(_pairs(self.model, model, self.kind))
        averaged, current = [a for a, _ in pairs], [c for _, c in pairs]
        if decay:
            torch._foreach_lerp_(averaged, current, 1 - decay)
        else:
            torch._foreach_copy_(averaged, current)
        taken = list(_rest(self.model, model, self.kind))
        for own, other in taken:
            own.copy_(other)

    @torch.no_grad()
    def restart(self, model: nn.Module) -> None:
        """Forget the past: the average is the network as it is."""
        self.updates = 0
        self.model.load_state_dict(model.state_dict())


def _pairs(averaged: nn.Module, model: nn.Module, kind: Averaging) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(averaged.parameters(), (p.detach() for p in model.parameters()), strict=True)
    if kind == "all":
        yield from (pair for pair in _buffers(averaged, model) if pair[0].is_floating_point())


def _rest(averaged: nn.Module, model: nn.Module, kind: Averaging) -> Iterator[tuple[Tensor, Tensor]]:
    yield from (pair for pair in _buffers(averaged, model) if kind == "released" or not pair[0].is_floating_point())


def _buffers(averaged: nn.Module, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(averaged.buffers(), model.buffers(), strict=True)
