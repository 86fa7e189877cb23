"""A monitor of models whose buffers come and go, and what it says of arguments that do not fit."""

import pytest
import torch
from torch import Tensor, nn

import dyart


class Growing(nn.Module):
    """A network with a buffer that its first pass makes, and one of the size of its last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.register_buffer("scale", torch.ones(1))
            self.seen = torch.zeros(len(x))
        return self.linear(x)


def test_buffers_that_appear_or_change_their_size_are_no_movement():
    torch.manual_seed(0)
    model, x, y = Growing(), torch.rand(12, 4), torch.arange(12) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = dyart.update_direction(model, loss=lambda: model(x).square().sum(), optimizer=optimizer, buffers=True)
    assert update.keys() == {"linear.weight", "linear.bias"}
    monitor = dyart.BoundaryMonitor(x, y, every=1, radius=0.1)
    for size in (5, 7):
        with monitor.watching(model):
            optimizer.zero_grad()
            model(x[:size]).square().sum().backward()
            optimizer.step()
    assert len(monitor.observations) == 2


def test_labels_of_a_probe_of_one_s_own_are_checked():
    model, x = nn.Linear(4, 3), torch.rand(6, 4)
    monitor = dyart.BoundaryMonitor(x, torch.zeros(6, dtype=torch.long), every=1, radius=0.1)
    with pytest.raises(ValueError, match="label 7"), monitor.watching(model, probe=(x, torch.full((6,), 7))):
        pass


def test_a_model_in_place_of_examples_is_explained():
    with pytest.raises(TypeError, match=r"BoundaryMonitor\(images, labels\); watching\(model\)"):
        dyart.BoundaryMonitor(nn.Linear(4, 3), torch.rand(6, 4), torch.zeros(6, dtype=torch.long))
