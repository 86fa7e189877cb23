"""Ten classes, linear, all rivals tried: margin, point, margin gradient and speed equal their closed forms."""

from functools import cache

import pytest
import torch
from problems import linear_model, uniform

import dyart

CLASSES, FEATURES = 10, 7
DUAL_ORDER = {"linf": 1, "l2": 2, "l1": torch.inf}
COST = dyart.ExponentialCost(alpha=3.0, r0=10.0)


@pytest.fixture(params=["linf", "l2", "l1"])
def norm(request):
    return request.param


@pytest.fixture
def model():
    return linear_model(CLASSES, FEATURES, seed=5, dtype=torch.float64)


@pytest.fixture
def found(norm):
    return searched(norm)


@cache
def searched(norm):
    inputs, model = uniform((40, FEATURES), 6, -1, 1, torch.float64), linear_model(CLASSES, FEATURES, 5, torch.float64)
    return dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, restarts=CLASSES - 1, tol=1e-9)


def margins(weight, bias, inputs, labels, norm):
    """The distance to the closest of nine hyperplanes, differentiable in the parameters."""
    logits = inputs @ weight.T + bias
    gaps = logits.gather(1, labels[:, None]) - logits
    slopes = torch.linalg.vector_norm(weight[labels][:, None] - weight, ord=DUAL_ORDER[norm], dim=2)
    own = torch.nn.functional.one_hot(labels, CLASSES).bool()
    return (gaps / slopes.masked_fill(own, 1.0)).masked_fill(own, torch.inf).min(dim=1)


def test_margin_and_rival(model, found, norm):
    distance, rival = margins(model.weight, model.bias, found.inputs, found.labels, norm)
    assert found.found.all()
    torch.testing.assert_close(found.margin, distance.detach(), rtol=0, atol=1e-5)
    assert torch.equal(found.rival, rival)


def test_point(model, found, norm):
    """The point moves against the gradient: along its signs, itself, or its largest entry."""
    weight = model.weight.detach()
    gradient = weight[found.labels] - weight[found.rival]
    if norm == "linf":
        direction = gradient.sign()
    elif norm == "l2":
        direction = gradient / gradient.norm(dim=1, keepdim=True)
    else:
        largest = gradient.abs() == gradient.abs().amax(dim=1, keepdim=True)
        direction = gradient.sign() * largest
    torch.testing.assert_close(found.points, found.inputs - found.margin[:, None] * direction, rtol=0, atol=1e-5)


def test_margin_gradient(model, found, norm):
    parameters = list(model.parameters())
    ours = torch.autograd.grad(dyart.margin_loss(model, found, COST), parameters)
    exact = COST(margins(model.weight, model.bias, found.inputs, found.labels, norm).values).mean()
    for one, other in zip(ours, torch.autograd.grad(exact, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_speed(model, found, norm):
    torch.manual_seed(7)
    update = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}

    def closed_form(weight, bias):
        return margins(weight, bias, found.inputs, found.labels, norm).values

    start = (model.weight.detach(), model.bias.detach())
    _, exact = torch.func.jvp(closed_form, start, (update["weight"], update["bias"]))
    speed = dyart.boundary_speed(model, found, update)
    torch.testing.assert_close(torch.as_tensor(speed), exact, rtol=1e-5, atol=1e-5)
