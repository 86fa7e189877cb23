"""AWP in a loop of one's own leaves unusual layers as they were."""

import torch
from torch import Tensor, nn

from dyart.methods.at import AT
from dyart.methods.awp import with_awp


def test_a_layer_under_two_names_keeps_its_parameters():
    class Handle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
            self.stem = self.features[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.features(x)

    model, x, y = Handle(), torch.rand(6, 4), torch.arange(6) % 3
    before = dict(model.named_parameters(remove_duplicate=False))
    method = with_awp(AT)(radius=0.05, step_size=0.02, steps=2)
    method.advance(0.5)
    loss, _ = method(model, x, y)
    loss.backward()
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())
    assert all(parameter.grad is not None for parameter in model.parameters())
