"""Networks whose ``train()`` does more than set a flag, and modules that keep what they make, are left as they were."""

import pytest
import torch
from torch import Tensor, nn

import dyart
from dyart.boundary.model import training_mode

X = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))


class Adapted(nn.Linear):
    """A layer that adds a small matrix to its weights, which eval mode merges, as adapters do."""

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


class Switching(nn.Module):
    """Noise and a frozen layer by mode."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm, self.noise = network(), nn.BatchNorm1d(3), 0.0

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        self.noise = 1.0 if mode else 0.0
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.net(x + self.noise * torch.randn_like(x)))


class Keeping(nn.Module):
    """Makes a tensor at its first call, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = network(), None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((1,), 2.0)
        return self.net(x) * self.scale


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), Adapted(16, 3))


def state(model: nn.Module) -> dict:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def modes(model: nn.Module) -> dict:
    flags = ("training", "noise", "merged")
    return {(name, flag): vars(one).get(flag) for name, one in model.named_modules() for flag in flags}


def assert_same(model: nn.Module, tensors: dict, flags: dict) -> None:
    assert modes(model) == flags
    for name, tensor in tensors.items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_adapters_that_are_trained_have_their_part_in_the_speed_and_stay_apart():
    model = network().train()
    before = state(model), modes(model)
    found = dyart.closest_boundary_points(model, X, steps=20)
    update = dyart.update_direction(model, loss=lambda: model(X).square().mean())
    update = {name: tensor for name, tensor in update.items() if name.endswith((".a", ".b"))}
    assert len(update) == 2
    speed = dyart.boundary_speed(model, found, update)
    assert (speed[found.found].abs() > 1e-4).all()
    assert_same(model, *before)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_adapters_are_trained_on_margins(statistics):
    model = network().train()
    labels = model(X).argmax(dim=1)
    objective = dyart.DyART(r0=1.0, lam=100.0, steps=5, statistics=statistics)
    objective(model, X, labels)[0].backward()
    assert float(model[2].a.grad.norm()) > 1.0


def test_noise_that_a_train_of_its_own_switches_is_told_in_training_mode_and_off_in_eval_mode():
    model = Switching()
    model.train()
    before = state(model), modes(model)
    with pytest.warns(UserWarning, match="asked twice.*into eval mode"):
        dyart.closest_boundary_points(model, X, steps=2)
    assert_same(model, *before)
    dyart.closest_boundary_points(model.eval(), X, steps=2)


@pytest.mark.parametrize("mode", [True, False])
def test_training_mode_is_left_as_it_was_entered(mode):
    model = Switching()
    model.train(mode)
    before = modes(model)
    with training_mode(model):
        assert model.noise == 1.0
        assert not model.norm.training
        assert not model.net[2].merged
    assert modes(model) == before


def test_what_is_kept_from_the_first_call_may_be_made_in_a_search():
    model = Keeping().eval()
    dyart.closest_boundary_points(model, X, steps=2)
    assert model.scale is None
    model(X)
    assert torch.equal(model.scale, torch.full((1,), 2.0))
    dyart.closest_boundary_points(model, X, steps=2)
    assert torch.equal(model.scale, torch.full((1,), 2.0))
