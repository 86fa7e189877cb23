"""Networks whose ``train()`` does more than set a flag are searched in their eval mode, and left as they were."""

import pytest
import torch
from torch import Tensor, nn

import dyart
from dyart.dynamics.step import training_mode

X = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))


class Switching(nn.Module):
    """What a mode may change: noise, frozen layers, and merged weights, as adapters have them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.first, self.norm, self.last = nn.Linear(4, 16), nn.BatchNorm1d(16), Adapted(16, 3)
        self.noise = 0.0

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        self.noise = 1.0 if mode else 0.0
        self.first.weight.requires_grad_(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x + self.noise * torch.randn_like(x)))))


class Adapted(nn.Linear):
    """A layer that adds a small matrix to its weights, which eval mode merges."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.a, self.b = nn.Parameter(torch.randn(2, features)), nn.Parameter(torch.randn(classes, 2))
        self.merged = False

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * (self.b @ self.a)
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.merged else y + x @ self.a.T @ self.b.T


def state(model: nn.Module) -> dict:
    found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found |= {f"{name}: {key}": value for name, module in model.named_modules() for key, value in vars(module).items()
              if isinstance(value, bool | float)}  # fmt: skip
    return found | {f"{name}: flag": parameter.requires_grad for name, parameter in model.named_parameters()}


def assert_same(model: nn.Module, before: dict) -> None:
    now = state(model)
    assert now.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(now[name], value) if isinstance(value, Tensor) else now[name] == value, name


def mixed(model: nn.Module) -> nn.Module:
    model.train()
    model.last.eval()
    return model


MODES = {"train": nn.Module.train, "train of its own": Switching.train, "eval": Switching.eval, "mixed": mixed}


@pytest.mark.filterwarnings("ignore:.*training mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fails", [False, True])
def test_it_is_searched_in_eval_mode_and_left_as_it_was(mode, fails):
    model = Switching()
    MODES[mode](model)
    before = state(model)
    if fails:
        with pytest.raises(ValueError, match="label 7"):
            dyart.closest_boundary_points(model, X, torch.full((8,), 7), steps=5)
    else:
        found = dyart.closest_boundary_points(model, X, steps=5)
        expected = dyart.closest_boundary_points(Switching().eval(), X, found.labels, steps=5)
        torch.testing.assert_close(found.margin, expected.margin, rtol=1e-3, atol=1e-5, equal_nan=True)
    assert_same(model, before)


def test_a_loss_from_before_the_search_can_still_be_differentiated():
    model = Switching()
    model.train()
    loss = model(X).square().sum()
    dyart.closest_boundary_points(model, X, steps=2)
    loss.backward()
    assert model.first.weight.grad.abs().sum() > 0


def test_training_mode_is_left_in_the_same_way():
    model = Switching().eval()
    before = state(model)
    with training_mode(model):
        assert model.noise == 1.0
        assert not model.last.merged
        assert not model.norm.training
    assert_same(model, before)
