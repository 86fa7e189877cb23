"""The boundary in two dimensions, on a linear model whose boundary is a known line."""

import numpy as np
import pytest
import torch
from torch import nn

from dyart.boundary.search import closest_boundary_points
from dyart.data import load
from dyart.data.augment import Augment
from dyart.data.loader import Loader, as_tensors
from dyart.dynamics.plane import Probe, Stretch, field, grid_logits, moment, moved, watched_training
from dyart.methods.dyart import DyART
from dyart.methods.natural import Natural
from dyart.models import build

NORMAL, OFFSET = np.array([2.0, 1.0]), -1.4


@pytest.fixture
def linear() -> nn.Linear:
    """Class 0 where 2 x + y > 1.4."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(np.stack([NORMAL, -NORMAL]) / 2))
        model.bias.copy_(torch.tensor([OFFSET, -OFFSET], dtype=torch.float64) / 2)
    return model


def test_the_field_is_phi_on_the_grid(linear):
    found = field(linear, 0, 21)
    line = np.linspace(0, 1, 21)
    x, y = np.meshgrid(line, line)  # first index upwards
    np.testing.assert_allclose(found, 2 * x + y - 1.4, atol=1e-12)
    np.testing.assert_allclose(field(linear, 1, 21), -found, atol=1e-12)


def test_for_two_classes_the_soft_boundary_is_the_exact_one(linear):
    np.testing.assert_allclose(field(linear, 0, 9, boundary="soft", beta=0.5), field(linear, 0, 9), atol=1e-12)


def test_of_three_classes_the_soft_boundary_lies_inside():
    model = build("mlp", 3, (2,), seed=0)
    exact, soft = field(model, 0, 15), field(model, 0, 15, boundary="soft", beta=2.0)
    assert (soft <= exact).all()
    assert (exact - soft <= np.log(2) / 2 + 1e-6).all()


def test_the_field_of_other_weights_leaves_the_model_alone(linear):
    before = {name: value.clone() for name, value in linear.state_dict().items()}
    shifted = moved(before, {"bias": torch.tensor([0.1, -0.1], dtype=torch.float64)}, 2.0)
    np.testing.assert_allclose(field(linear, 0, 5, shifted) - field(linear, 0, 5), 0.4, atol=1e-12)
    assert all(torch.equal(before[name], value) for name, value in linear.state_dict().items())
    assert grid_logits(linear, 5, shifted).shape == (25, 2)


def test_points_margins_and_speeds_of_a_linear_model_are_exact(linear):
    inputs = torch.tensor([[0.7, 0.6], [0.2, 0.5], [0.5, 0.5]]).double()
    labels = torch.tensor([0, 1, 0])
    # The line moves by 0.3 / |n| towards larger 2 x + y.
    update = {"bias": torch.tensor([-0.15, 0.15], dtype=torch.float64)}
    now = moment(linear, 7, "natural", Probe(inputs, labels), update)
    value = inputs.numpy() @ NORMAL + OFFSET
    length = np.linalg.norm(NORMAL)
    np.testing.assert_allclose(now.found.margin.numpy(), np.abs(value) / length, atol=5e-5)  # phi to 1e-4
    np.testing.assert_allclose(
        now.found.points.numpy(), inputs.numpy() - (value / length**2)[:, None] * NORMAL, atol=1e-4
    )
    np.testing.assert_allclose(now.speed.numpy(), np.array([-0.3, 0.3, -0.3]) / length, rtol=1e-4)


def test_a_watched_training_predicts_its_own_next_step():
    data = load("moons")
    model = build("mlp", 2, (2,), activation="silu", mean=[0.5, 0.5], std=[0.15, 0.15], seed=0)
    device = torch.device("cpu")
    loader = Loader(data.train, data.fit, 64, 0, device, Augment(), 2)
    probe = Probe(*as_tensors(data.test, slice(0, 24), device))
    stretches = [Stretch(Natural(), 60), Stretch(DyART(norm="l2", r0=0.1, lam=1.0, steps=4), 3)]
    moments = watched_training(model, loader, stretches, probe, every=40, also=(60,), lr=0.02)
    assert [(m.step, m.phase) for m in moments] == [(0, "natural"), (40, "natural"), (60, "dyart"), (62, "dyart")]
    # The model is one step behind the last moment: what that predicted is what happened.
    last = moments[-1]
    found = closest_boundary_points(
        model.eval(), *probe, norm="l2", start=last.found.points, steps=60, tol=1e-5, validate=False
    )
    rows = last.found.optimal & found.optimal
    actual = (found.margin - last.found.margin)[rows]
    assert rows.sum() >= 15
    assert torch.corrcoef(torch.stack([last.speed[rows], actual]))[0, 1] > 0.99
