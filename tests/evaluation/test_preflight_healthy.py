"""Models with which nothing is wrong raise nothing, and nothing about them is changed."""

import copy
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dyart.data import load
from dyart.data.loader import as_tensors
from dyart.evaluation.preflight import preflight, stop_on_fatal
from dyart.models import build

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images():
    """The embedded images, all classes."""
    return as_tensors(load("fashion-mini").test, slice(0, 600), CPU)


@pytest.fixture(scope="module")
def trained(images):
    """A small CNN with BatchNorm after a few steps: far better than guessing."""
    model = build("cnn", 10, (1, 28, 28), seed=0)
    x, y = as_tensors(load("fashion-mini").train, slice(0, 2000), CPU)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    for _ in range(2):
        for rows in torch.randperm(2000, generator=torch.Generator().manual_seed(0)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


class Scaled(nn.Module):
    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x):
        return self.factor * self.model(x)


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_trained_network_with_batch_norm_raises_nothing(trained, images, norm):
    x, y = images
    assert preflight(trained, x, y, norm=norm, bounds=(0.0, 1.0), expected_accuracy=accuracy(trained, x, y)) == []


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("margin", [0.01, 5.0, 18.0])
def test_neither_timid_nor_confident_models_are_suspected(trained, images, margin, norm):
    """At a median margin of 18 half of the losses are exactly zero in float32; attacks on them lose nothing."""
    x, y = images
    with torch.no_grad():
        median = trained(x).topk(2).values.diff().abs().median()
    assert preflight(Scaled(trained, margin / median), x, y, norm=norm, bounds=(0.0, 1.0)) == []


def test_a_saturated_model_is_noted_though(trained, images):
    x, y = images
    (finding,) = preflight(Scaled(trained, 1000.0), x, y, norm="linf", bounds=(0.0, 1.0))
    assert finding.kind == "saturated loss"
    assert not finding.fatal


def test_a_linear_model_fresh_from_its_constructor_raises_nothing():
    torch.manual_seed(0)
    x = torch.rand(300, 2)
    model = nn.Linear(2, 4)  # in train mode, which changes nothing here
    y = model(x).argmax(1)
    assert preflight(model, x, y, norm="l2", bounds=(0.0, 1.0)) == []
    assert preflight(model, x, y, norm="l2", bounds=None) == []


@pytest.mark.parametrize("name", ["resnet18", "preactresnet18", "mlp"])
@pytest.mark.parametrize("normalization", ["batch", "group"])
def test_untrained_networks_of_this_package_are_at_most_no_better_than_guessing(name, normalization):
    x = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = build(name, 10, (3, 8, 8), normalization=normalization, seed=0).eval()
    y = torch.arange(40) % 10
    findings = preflight(model, x, y, norm="linf", bounds=(0.0, 1.0))
    assert {finding.kind for finding in findings} <= {"accuracy"}


def test_logits_in_16_bit_and_models_in_float64_raise_nothing(trained, images):
    x, y = images
    assert preflight(lambda z: trained(z).bfloat16(), x, y, norm="linf", bounds=(0.0, 1.0)) == []
    assert preflight(copy.deepcopy(trained).double(), x.double(), y, norm="linf", bounds=(0.0, 1.0)) == []


def test_round_off_outside_the_box_is_forgiven(trained, images):
    x, y = images
    assert preflight(trained, x - 3e-8, y, norm="linf", bounds=(0.0, 1.0)) == []


def test_a_hugging_face_output_is_understood(trained, images):
    class Output:
        def __init__(self, logits):
            self.logits = logits

    x, y = images
    assert preflight(lambda z: Output(trained(z)), x, y, norm="linf", bounds=(0.0, 1.0)) == []


def test_nothing_changes(trained, images):
    x, y = images
    model = nn.Sequential(copy.deepcopy(trained), nn.Dropout(0.5), nn.Linear(10, 10))
    model.train()
    model[0].layers[0].eval()  # a mixture, to be restored as it is
    F.cross_entropy(model(x[:20]), y[:20]).backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    inputs = x.clone()
    preflight(model, x, y, norm="linf", bounds=(0.0, 1.0))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, inputs)
    assert not x.requires_grad


def test_it_takes_seconds_at_most(trained, images):
    x, y = (part.repeat(10, *[1] * (part.ndim - 1)) for part in images)
    started = time.monotonic()
    preflight(trained, x, y, norm="linf", bounds=(0.0, 1.0))
    assert time.monotonic() - started < 5


def test_nothing_fatal_does_not_stop():
    stop_on_fatal([])
