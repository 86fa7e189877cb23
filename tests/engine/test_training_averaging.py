"""The average of weights."""

import pytest
import torch
from torch import nn

from dyart.engine.averaging import WeightAverage, decay_at


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def moved(model: nn.Module) -> nn.Module:
    """Change every parameter and running statistic, in place."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(1 if tensor.dtype == torch.int64 else torch.rand_like(tensor))
    return model


@pytest.mark.parametrize(
    ("step", "decay"), [(0, 0.0), (99, 0.0), (100, 0.1), (190, 0.91), (100 + 1790, 0.995), (10**7, 0.995)]
)
def test_decay_at_its_anchors(step, decay):
    assert decay_at(step, 100, 0.995) == pytest.approx(decay, abs=1e-12)


def test_decay_stays_below_the_limit_before_its_step():
    assert decay_at(100 + 1780, 100, 0.995) < 0.995


def test_without_averaging_the_average_is_the_network():
    model = network()
    average = WeightAverage(model, 0.0)
    for _ in range(3):
        average.update(0)
        moved(model)
    average.update(0)
    for own, other in zip(average.model.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("kind", ["all", "released"])
def test_one_update(kind):
    model = network()
    average = WeightAverage(model, 0.995, kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moved(model)
    average.update(warmup=1)  # one step after the warm-up began to count: a tenth is kept
    after = model.state_dict()
    for name, value in average.model.state_dict().items():
        expected = 0.1 * before[name] + 0.9 * after[name] if value.is_floating_point() else after[name]
        if kind == "released" and "running" in name:
            expected = after[name]
        torch.testing.assert_close(value, expected)
    assert int(average.model.state_dict()["1.num_batches_tracked"]) == 1


def test_in_the_warm_up_the_average_follows():
    model = network()
    average = WeightAverage(model, 0.995)
    moved(model)
    average.update(warmup=10)
    for own, other in zip(average.model.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(own, other)


def test_the_average_is_apart_from_gradients_and_from_the_network():
    model = network()
    average = WeightAverage(model, 0.995)
    assert not average.model.training
    assert model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    model(torch.rand(5, 3)).sum().backward()
    average.update(0)
    assert all(parameter.grad is None for parameter in average.model.parameters())
    own = {tensor.data_ptr() for tensor in average.model.state_dict().values()}
    assert not own & {tensor.data_ptr() for tensor in model.state_dict().values()}


def test_restart_forgets():
    model = network()
    average = WeightAverage(model, 0.995)
    for _ in range(4):
        moved(model)
        average.update(0)
    assert average.updates == 4
    average.restart()
    assert average.updates == 0
    for own, other in zip(average.model.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(own, other)


def test_shared_parameters_are_averaged_once():
    model = network()
    model[2].weight = nn.Parameter(torch.zeros(2, 4))
    model.append(nn.Linear(4, 2))
    model[3].weight = model[2].weight
    average = WeightAverage(model, 0.995)
    with torch.no_grad():
        model[2].weight.fill_(1.0)
    average.update(warmup=1)
    assert torch.allclose(average.model[3].weight, torch.full((2, 4), 0.9))
    assert average.model[3].weight is average.model[2].weight


def test_a_mask_with_infinite_numbers_stays_as_it_is():
    model = network()
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    average = WeightAverage(model, 0.995)
    for _ in range(3):
        average.update(warmup=0)
    assert average.model.mask.tolist() == [0.0, -torch.inf]
