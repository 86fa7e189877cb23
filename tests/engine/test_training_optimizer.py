"""Which parameters are decayed."""

import pytest
import torch
from torch import nn

from dyart.engine.optimizer import decay_groups, make_optimizer
from dyart.models import build
from dyart.recipes.config import Optim


class Zoo(nn.Module):
    """Every kind of norm and of bias, a shared weight, a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            [
                nn.BatchNorm1d(4),
                nn.BatchNorm2d(4),
                nn.GroupNorm(2, 4),
                nn.LayerNorm(4),
                nn.RMSNorm(4),
                nn.InstanceNorm1d(4, affine=True),
                nn.InstanceNorm3d(4, affine=True),
            ]
        )
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.attention = nn.MultiheadAttention(4, 2)
        self.series = nn.LSTM(4, 2)
        self.scale = nn.Parameter(torch.ones(1))


def names(model: nn.Module, group: dict) -> set[str]:
    known = {parameter: name for name, parameter in model.named_parameters()}
    return {known[parameter] for parameter in group["params"]}


def test_norms_and_biases_are_spared():
    model = Zoo()
    decayed, plain = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert names(model, decayed) == {
        "first.weight",
        "scale",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "series.weight_ih_l0",
        "series.weight_hh_l0",
    }
    assert {name for name in names(model, plain) if not name.startswith("norms.")} == {
        "first.bias",
        "second.bias",
        "attention.in_proj_bias",
        "attention.out_proj.bias",
        "series.bias_ih_l0",
        "series.bias_hh_l0",
    }


@pytest.mark.parametrize("decay_all", [False, True])
@pytest.mark.parametrize("name", ["zoo", "cnn", "resnet18", "mlp"])
def test_every_parameter_is_in_one_group(name, decay_all):
    model = Zoo() if name == "zoo" else build(name, 10, (3, 32, 32))
    groups = decay_groups(model, 0.1, decay_all)
    assert len(groups) == (1 if decay_all else 2)
    listed = [parameter for group in groups for parameter in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(model.parameters())


def test_only_what_is_decayed_shrinks():
    model = build("cnn", 10, (1, 28, 28))
    optimizer = make_optimizer(model, Optim(lr=0.1, weight_decay=0.5, momentum=0.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        expected = 0.95 if parameter.ndim > 1 else 1.0
        assert torch.allclose(parameter, torch.full_like(parameter, expected)), name


def test_nesterov_needs_momentum():
    model = build("mlp", 2, (2,))
    assert not make_optimizer(model, Optim(momentum=0.0, nesterov=True)).defaults["nesterov"]
    assert make_optimizer(model, Optim(momentum=0.9, nesterov=True)).defaults["nesterov"]
