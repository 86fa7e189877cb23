"""The size of every network, and what changes between BatchNorm and GroupNorm."""

import math

import pytest
import torch
from network_cases import BATCH_NORM, IMAGES, count, of_type
from torch import nn

from dyart.models import NAMES, build

PARAMETERS = {
    ("wrn28-10", 10, (3, 32, 32)): 36_479_194,
    ("wrn34-10", 10, (3, 32, 32)): 46_160_474,
    ("preactresnet18", 10, (3, 32, 32)): 11_172_170,
    ("resnet18", 10, (3, 32, 32)): 11_173_962,
    # 190 more rows of 512 weights and a bias
    ("preactresnet18", 200, (3, 64, 64)): 11_172_170 + 190 * 513,
    # a stem of 3x3 kernels with two channels less
    ("wrn28-10", 10, (1, 28, 28)): 36_479_194 - 2 * 9 * 16,
    ("resnet18", 10, (1, 28, 28)): 11_173_962 - 2 * 9 * 64,
    # convolutions, norms, linear
    ("cnn", 10, (1, 28, 28)): 9 * (16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64) + (1024 + 1) * 10,
    ("mlp", 2, (2,)): (2 + 1) * 128 + (128 + 1) * 128 + (128 + 1) * 2,
}


def on_meta(*args, **options) -> nn.Module:
    with torch.device("meta"):
        return build(*args, **options)


@pytest.mark.parametrize("normalization", ["batch", "group"])
@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_the_number_of_parameters(case, normalization):
    assert count(on_meta(*case, normalization=normalization)) == PARAMETERS[case]


@pytest.mark.parametrize("name", NAMES)
def test_neither_activation_nor_input_normalisation_adds_parameters(name):
    plain = on_meta(name, 10, (3, 32, 32))
    for activation in ("silu", "relu"):
        other = on_meta(name, 10, (3, 32, 32), activation=activation, mean=(0.5,) * 3, std=(0.2,) * 3)
        assert count(other) == count(plain)


def test_the_small_network_is_small():
    for shape in ((1, 28, 28), (3, 32, 32), (3, 64, 64)):
        assert count(on_meta("cnn", 10, shape)) < 100_000


# GroupNorm


@pytest.mark.parametrize("name", IMAGES)
def test_every_batch_norm_becomes_a_group_norm_of_the_same_name(name):
    batch, group = (on_meta(name, 10, (3, 32, 32), normalization=kind) for kind in ("batch", "group"))
    norms, groups = of_type(batch, BATCH_NORM), of_type(group, nn.GroupNorm)
    assert len(norms) > 2
    assert norms.keys() == groups.keys()
    assert not of_type(group, BATCH_NORM)
    assert not of_type(batch, nn.GroupNorm)
    for key, norm in groups.items():
        assert norm.num_channels == norms[key].num_features
        assert norm.num_groups == math.gcd(32, norm.num_channels)
        assert norm.affine
        assert norm.eps == 1e-5
    shapes = [{key: value.shape for key, value in model.named_parameters()} for model in (batch, group)]
    assert shapes[0] == shapes[1]


def test_the_first_norm_of_a_wide_network_has_sixteen_groups_and_all_others_thirty_two():
    norms = list(of_type(on_meta("wrn28-10", 10, (3, 32, 32), normalization="group"), nn.GroupNorm).values())
    assert [norm.num_groups for norm in norms] == [16] + [32] * (len(norms) - 1)
    assert len(norms) == 3 * 4 * 2 + 1


@pytest.mark.parametrize("name", ["preactresnet18", "cnn"])
def test_group_norm_changes_no_other_weight_and_starts_as_the_identity(name):
    batch, group = (build(name, 10, (3, 32, 32), normalization=kind, seed=3) for kind in ("batch", "group"))
    norms = tuple(of_type(group, nn.GroupNorm))
    for key, value in group.state_dict().items():
        if key.startswith(norms):
            assert torch.equal(value, torch.full_like(value, key.endswith("weight")))
        else:
            assert torch.equal(value, batch.state_dict()[key])


def test_every_parameter_outside_a_norm_belongs_to_a_convolution_or_a_linear_layer():
    for name in NAMES:
        for kind in ("batch", "group"):
            model = on_meta(name, 10, (3, 32, 32), normalization=kind)
            known = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.GroupNorm)
            assert all(isinstance(module, known) for module in model.modules() if module._parameters)


def test_the_perceptron_has_no_norms_and_ignores_their_kind():
    batch, group = (build("mlp", 3, (2, 5), normalization=kind, seed=1) for kind in ("batch", "group"))
    assert not of_type(batch, BATCH_NORM | nn.GroupNorm)
    assert not of_type(group, BATCH_NORM | nn.GroupNorm)
    assert all(torch.equal(a, b) for a, b in zip(batch.parameters(), group.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "momentum"), [("wrn28-10", 0.01), ("wrn34-10", 0.1), ("preactresnet18", 0.1), ("resnet18", 0.1)]
)
def test_momentum_and_epsilon_of_batch_norm(name, momentum):
    norms = of_type(on_meta(name, 10, (3, 32, 32)), BATCH_NORM).values()
    assert {(norm.momentum, norm.eps) for norm in norms} == {(momentum, 1e-5)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("momentum", [0.03, 1])
def test_a_given_momentum_is_that_of_every_batch_norm_and_of_no_group_norm(name, momentum):
    norms = of_type(on_meta(name, 10, (3, 32, 32), bn_momentum=momentum), BATCH_NORM).values()
    assert {norm.momentum for norm in norms} == (set() if name == "mlp" else {momentum})
    group = on_meta(name, 10, (3, 32, 32), normalization="group", bn_momentum=momentum)
    assert not of_type(group, BATCH_NORM)


# Activation


@pytest.mark.parametrize("name", NAMES)
def test_the_activation_is_the_networks_own_unless_asked_for(name):
    own = nn.SiLU if name == "wrn28-10" else nn.ReLU
    for activation, wanted in ((None, own), ("silu", nn.SiLU), ("relu", nn.ReLU)):
        model = on_meta(name, 10, (3, 32, 32), activation=activation)
        found = of_type(model, nn.SiLU | nn.ReLU)
        assert found
        assert {type(module) for module in found.values()} == {wanted}
        assert not any(module.inplace for module in found.values())
