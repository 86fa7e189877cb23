"""A small network in float64, with GroupNorm or BatchNorm, named in configurations as ``ranks_networks:NAME``."""

import os
import signal
from dataclasses import replace

import torch
from torch import Tensor, nn

from dyart.data import ranks
from dyart.methods.base import Method, accuracy, classification_loss
from dyart.methods.dyart import DyART


class Double(nn.Module):
    """Takes images in any precision, and works in float64: what is left between two runs is no rounding."""

    def __init__(self, classes: int, channels: int, norm: nn.Module) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 8, 5, stride=4)
        self.norm = norm
        self.linear = nn.LazyLinear(classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.convolution(x.double())).relu().flatten(1))


def made(classes: int, shape: tuple[int, ...], norm: nn.Module) -> nn.Module:
    net = Double(classes, shape[0], norm).double()
    net(torch.zeros(2, *shape))
    return net


def grouped(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return made(classes, shape, nn.GroupNorm(2, 8))


def batched(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return made(classes, shape, nn.BatchNorm2d(8))


class Coupled(Method[None]):
    """A user's own: its loss is no mean of the examples', and its gradient goes through all of them."""

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        logits = model(batch.inputs)
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        every = ranks.gathered(losses, batch.shard)
        weights = ranks.own(torch.softmax(every, dim=0) * len(every), batch.shard)
        return (weights * losses).mean(), {"accuracy": accuracy(logits, batch.labels)}


class Fails(Method[None]):
    """Natural training that fails in one process, after some steps.

    Args:
        rank: which process.
        step: which step, from 1.
    """

    def __init__(self, rank: int = 1, step: int = 3) -> None:
        self.where, self.when, self.count = rank, step, 0

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        self.count += 1
        if self.count == self.when and ranks.team_here().rank == self.where:
            raise ValueError(f"the batch of process {self.where} is bad")
        logits = model(batch.inputs)
        return classification_loss(logits, batch), {"accuracy": accuracy(logits, batch.labels)}


class HalfBlind(DyART):
    """DyART that finds no boundary point for the second half of a batch: of two processes, for all that one has."""

    def craft(self, model, batch):
        points = super().craft(model, batch)
        first, total = (0, len(batch)) if batch.shard is None else (batch.shard.first, batch.shard.total)
        seen = torch.arange(first, first + len(batch)) < total // 2
        nothing = {name: torch.where(seen, getattr(points, name), torch.nan) for name in ("margin", "alignment")}
        return replace(points, found=points.found & seen, **nothing)


class Stopped(DyART):
    """DyART with warm starts, which keep something per example, that is sent SIGTERM in one process.

    Args:
        rank: which process.
        step: which of its steps, from 1; 0: none.
    """

    def __init__(self, rank: int = 0, step: int = 0) -> None:
        super().__init__(steps=4, r0=0.2, lam=20.0, warm_start=True)
        self.where, self.when, self.count = rank, step, 0

    def loss(self, model, batch, crafted):
        self.count += 1
        if self.count == self.when and ranks.team_here().rank == self.where:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().loss(model, batch, crafted)
