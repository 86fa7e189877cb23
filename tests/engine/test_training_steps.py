"""The frozen view of a network, and one step's gradients."""

import copy

import pytest
import torch
from engine_cases import METHODS, make_config
from torch import nn

from dyart.data import load
from dyart.engine.fabric import make_fabric
from dyart.engine.run import prepare
from dyart.engine.steps import Stepper, split
from dyart.engine.views import Views, frozen_view
from dyart.models import build
from dyart.recipes import make_method


def test_the_view_shares_storage_and_nothing_else():
    model = build("cnn", 10, (1, 28, 28)).train()
    view = frozen_view(model)
    for (name, own), other in zip(view.state_dict().items(), model.state_dict().values(), strict=True):
        assert own.data_ptr() == other.data_ptr(), name
    assert not view.training
    assert model.training
    assert not any(parameter.requires_grad for parameter in view.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    x = torch.rand(4, 1, 28, 28)
    before = view(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    optimizer.step()
    after = view(x)
    assert not torch.allclose(before, after)
    assert torch.equal(after, copy.deepcopy(model).eval()(x))
    model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    assert float(view(x).abs().max()) == 0


def test_the_view_writes_no_statistics():
    model = build("cnn", 10, (1, 28, 28)).train()
    view = frozen_view(model)
    before = {name: value.clone() for name, value in model.named_buffers()}
    inputs = torch.rand(4, 1, 28, 28, requires_grad=True)
    view(inputs).sum().backward()
    assert inputs.grad is not None
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(parameter.grad is None for parameter in (*view.parameters(), *model.parameters()))
    model(inputs)
    assert not torch.equal(model.layers[0][1].running_mean, before["layers.0.1.running_mean"])


def test_the_view_keeps_shared_layers_shared():
    shared = nn.Linear(3, 3)
    view = frozen_view(nn.Sequential(shared, nn.ReLU(), shared))
    assert view[0] is view[2]


@pytest.fixture(scope="module")
def burnt_in():
    """A network that separates the three blobs, and a batch of them."""
    training = prepare(make_config(data_limit=960, train_epochs=2), data=load("three-blobs")).run()
    assert training.history[-1]["val_clean"] > 0.9
    return training.model, next(training.loader.epoch(0))


def gradients(model, batch, method, accumulate):
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    stepper = Stepper(make_fabric("cpu"), Views(model, compile=False), method, accumulate=accumulate)
    loss, metrics = stepper.gradients(batch)
    assert model.training
    return {name: parameter.grad for name, parameter in model.named_parameters()}, loss, metrics


@pytest.mark.parametrize("parts", [2, 4, 32])
@pytest.mark.parametrize("name", ["natural", "at", "dyart"])
def test_parts_of_a_batch_give_its_gradient(burnt_in, name, parts):
    """Without BatchNorm every loss here is a mean over the batch; starts belong to examples, not to places."""
    settings = METHODS[name] | ({"r0": 0.3, "steps": 10} if name == "dyart" else {})
    method = make_method(make_config(method=settings))
    whole, loss, metrics = gradients(*burnt_in, method, 1)
    apart, sum_of_parts, metrics_of_parts = gradients(*burnt_in, method, parts)
    if name == "dyart":
        assert float(metrics["used"]) > 0.5
    torch.testing.assert_close(loss, sum_of_parts, rtol=1e-4, atol=1e-6)
    for parameter in whole:
        torch.testing.assert_close(apart[parameter], whole[parameter], rtol=1e-3, atol=1e-5)
    assert metrics.keys() == metrics_of_parts.keys()
    for share in set(metrics) & {"accuracy", "adversarial_accuracy", "used", "found", "inside"}:
        torch.testing.assert_close(metrics[share], metrics_of_parts[share])


@pytest.mark.parametrize("name", ["at", "dyart"])
def test_crafting_touches_no_gradients_and_no_statistics(name):
    model = build("cnn", 10, (1, 28, 28)).train()
    fabric, method = make_fabric("cpu"), make_method(make_config(method=name))
    batch = next(prepare(make_config(data_name="fashion-mini", model_name="cnn")).loader.epoch(0))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    Stepper(fabric, Views(model, compile=False), method).craft(batch)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_split_keeps_every_row_once():
    batch = next(prepare(make_config(data_name="fashion-mini", data_cutmix=1.0, model_name="cnn")).loader.epoch(0))
    assert batch.targets is not None
    parts = split(batch, 4)
    assert [len(part) for part in parts] == [8, 8, 8, 8]
    for name in ("inputs", "labels", "index", "targets"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    assert all(part.key is batch.key for part in parts)
