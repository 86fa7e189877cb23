"""A model that counts its gradients, and good examples for it."""

import math

import torch
from torch import Tensor, nn

SHAPE, CLASSES, EXAMPLES = (3, 2, 2), 10, 6


class Counting(nn.Module):
    """Ten classes; counts its forward passes and the gradients that were taken through it."""

    def __init__(self, change=lambda logits: logits) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.change, self.forwards, self.gradients = change, 0, 0

    def forward(self, x: Tensor) -> object:
        self.forwards += 1
        logits = self.net(x)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return self.change(logits)

    def _count(self, gradient: Tensor) -> None:
        self.gradients += 1


def examples() -> Tensor:
    return 0.2 + 0.6 * torch.rand(EXAMPLES, *SHAPE, generator=torch.Generator().manual_seed(1))


def classes() -> Tensor:
    with torch.no_grad():
        return Counting().net(examples()).argmax(dim=1)


def with_batch_norm(*, training: bool) -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3)), Counting())
    return model.train(training)
