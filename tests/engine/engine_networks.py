"""Networks and methods of a user's own, named in configurations as ``engine_networks:NAME``."""

import torch
from torch import nn

from dyart.methods.base import Method, accuracy, classification_loss


def dropout(classes: int, shape: tuple[int, ...]) -> nn.Module:
    features = torch.Size(shape).numel()
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def scripted(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes)))


def batch_norm(classes: int, shape: tuple[int, ...]) -> nn.Module:
    features = torch.Size(shape).numel()
    return nn.Sequential(nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


class WithSpare(nn.Sequential):
    """A network with a parameter that takes no part."""

    def __init__(self, *layers) -> None:
        super().__init__(*layers)
        self.spare = nn.ParameterList([nn.Parameter(torch.zeros(2))])

    def forward(self, inputs):
        return self[1](self[0](inputs))


def with_spare(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return WithSpare(nn.Linear(torch.Size(shape).numel(), 8), nn.Linear(8, classes))


class OneGradient(Method[None]):
    """Natural training in which the gradient of the network's second parameter is not finite at one step."""

    def __init__(self, step: int = 1) -> None:
        self.step, self.count = step, 0

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        self.count += 1
        loss = classification_loss(model(batch.inputs), batch)
        if self.count == self.step:
            second = list(model.parameters())[1]
            loss = loss + (0 * second.sum()).sqrt()
        return loss, {}


class Breaks(Method[None]):
    """Natural training whose loss, or only its gradient, is NaN at one step.

    Args:
        step: which, from 1; -1: all.
        gradient: only the gradient.
    """

    def __init__(self, step: int = 1, gradient: bool = False) -> None:
        self.step, self.gradient, self.count = step, gradient, 0

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        self.count += 1
        logits = model(batch.inputs)
        loss = classification_loss(logits, batch)
        if self.step in (self.count, -1):
            # The root of zero is zero, its slope is not finite.
            loss = loss + (0 * logits.sum()).sqrt() if self.gradient else loss * float("nan")
        return loss, {"accuracy": accuracy(logits, batch.labels)}


class Scripted(Method[None]):
    """Natural training that logs what it is told to."""

    def __init__(self, changing: bool = False) -> None:
        self.changing, self.count = changing, 0

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        self.count += 1
        name = f"value{self.count}" if self.changing else "value"
        loss = classification_loss(model(batch.inputs), batch)
        return loss, {name: loss.detach()}


def undecided(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A network whose logits differ by so little that no soft margin is positive."""
    layer = nn.Linear(torch.Size(shape).numel(), classes)
    nn.init.constant_(layer.weight, 0.0)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Masked(nn.Linear):
    """A network with a buffer such as attention has."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, inputs):
        return super().forward(inputs) * torch.softmax(self.mask, dim=0)[0]


def masked(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Masked(torch.Size(shape).numel(), classes)


def frozen(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(torch.Size(shape).numel(), classes).requires_grad_(False)


def bare(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Flatten()


class OneElement(Method[None]):
    """Natural training whose loss, and what it logs, have one element and an axis."""

    def __init__(self) -> None:
        pass

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        loss = classification_loss(model(batch.inputs), batch).reshape(1)
        return loss, {"value": loss.detach()}
