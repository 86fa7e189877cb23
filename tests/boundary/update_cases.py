"""Data, snapshots and steps that are really taken, for the tests of update_direction."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from networks import uniform
from torch import Tensor, nn

X = uniform(16, 12, dtype=torch.float64)
Y = torch.arange(16) % 4


def cross_entropy(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X), Y)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, object]:
    """Everything that must be the same afterwards, as independent copies."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "grad": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "flags": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict()),
        "random": torch.get_rng_state(),
    }


def assert_same(one: object, other: object, where: str = "") -> None:
    """Bitwise equality of nested dictionaries, lists and tensors."""
    assert type(one) is type(other), where
    if isinstance(one, Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert one == other, where


def assert_close(got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert set(got) == set(wanted)
    for name, rate in wanted.items():
        torch.testing.assert_close(got[name], rate, rtol=tolerance, atol=tolerance * float(rate.abs().max()))


def step_of_a_copy(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], Tensor]
) -> dict[str, Tensor]:
    """What really happens: copy both together, step, and see what the copy's tensors did."""
    other, stepped = copy.deepcopy((model, optimizer))
    stepped.zero_grad()
    loss(other).backward()
    stepped.step()
    before = model.state_dict()
    return {name: (tensor - before[name]).detach() for name, tensor in other.state_dict().items()}


def warm_up(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], Tensor], steps: int = 4
) -> None:
    """A few real steps, so that momenta and moments are not at their start."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "sgd, momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "sgd, nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "sgd, decay": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd, dampening": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
    "adam, amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.9, centered=True),
}
