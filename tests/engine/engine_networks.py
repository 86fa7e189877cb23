"""Networks and methods of a user's own, named in configurations as ``engine_networks:NAME``."""

import torch
from torch import nn

from dyart.methods.base import Method, accuracy, classification_loss


def dropout(classes: int, shape: tuple[int, ...]) -> nn.Module:
    features = torch.Size(shape).numel()
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


class Breaks(Method[None]):
    """Natural training whose loss, or only its gradient, is NaN at one step.

    Args:
        step: which, from 1.
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
        if self.count == self.step:
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
