"""Fresh weights: their distribution, the seed, and the random state of the caller."""

import math

import pytest
import torch
from network_cases import BATCH_NORM, of_type
from torch import nn

from dyart.models import NAMES, build


@pytest.mark.parametrize("name", ["wrn28-10", "wrn34-10"])
def test_the_wide_networks_start_from_he_fan_out(name):
    model = build(name, 10, (3, 32, 32), seed=5)
    for key, conv in of_type(model, nn.Conv2d).items():
        area = conv.kernel_size[0] * conv.kernel_size[1]
        wanted = math.sqrt(2 / (area * conv.out_channels))
        weight = conv.weight.detach()
        allowed = 5 / math.sqrt(weight.numel())  # five standard errors, of the mean and of the deviation
        assert abs(weight.mean() / wanted) < allowed, key
        assert abs(weight.std() / wanted - 1) < allowed, key
        # Normal, and neither uniform nor cut off: 4.6 % beyond two deviations.
        if weight.numel() > 20_000:
            assert (weight.abs() > 2 * wanted).float().mean() == pytest.approx(0.0455, abs=0.01), key
    for norm in of_type(model, BATCH_NORM).values():
        assert norm.weight.eq(1).all()
        assert norm.bias.eq(0).all()
    limit = 1 / math.sqrt(model.linear.in_features)  # PyTorch's default: uniform
    assert 0.99 * limit < model.linear.weight.abs().max() <= limit
    assert model.linear.weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert model.linear.bias.eq(0).all()


@pytest.mark.parametrize("name", ["preactresnet18", "resnet18", "cnn", "mlp"])
def test_the_others_start_from_pytorchs_defaults(name):
    model = build(name, 10, (3, 32, 32), seed=5)
    for key, layer in of_type(model, nn.Conv2d | nn.Linear).items():
        limit = 1 / math.sqrt(layer.weight[0].numel())
        assert layer.weight.abs().max() <= limit, key
        assert layer.weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.15), key
    assert model.linear.bias.abs().max() > 0


@pytest.mark.parametrize("name", ["cnn", "mlp", "preactresnet18"])
def test_a_seed_draws_the_same_weights_again_and_another_seed_others(name):
    one, again, other = (build(name, 10, (1, 28, 28), seed=seed) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.linear.weight, other.linear.weight)


@pytest.mark.parametrize("name", ["cnn", "mlp", "preactresnet18"])
def test_a_seed_leaves_the_global_random_state_alone(name):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    weights = build(name, 10, (1, 28, 28), seed=7).linear.weight
    assert torch.equal(torch.get_rng_state(), before)
    # And the global state does not matter for it.
    torch.manual_seed(4)
    assert torch.equal(build(name, 10, (1, 28, 28), seed=7).linear.weight, weights)


def test_the_global_random_state_is_restored_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(TypeError):
        build("builtins:dict", 10, (2,), seed=7)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_the_global_random_state_decides():
    torch.manual_seed(3)
    first, second = build("cnn", 10, (1, 28, 28)), build("cnn", 10, (1, 28, 28))
    torch.manual_seed(3)
    again = build("cnn", 10, (1, 28, 28))
    assert torch.equal(first.linear.weight, again.linear.weight)
    assert not torch.equal(first.linear.weight, second.linear.weight)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_built_in_training_mode_and_its_parameters_are_trainable(name):
    with torch.device("meta"):
        model = build(name, 10, (3, 32, 32), normalization="group")
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
