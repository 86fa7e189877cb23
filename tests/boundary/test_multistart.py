"""How the steps of a search are spent: on one rival, or on several; and l1 on networks with kinks."""

import dataclasses

import pytest
import torch
from problems import Watched, linear_model, uniform
from torch import nn

import dyart
from dyart.boundary.multistart import _parts
from dyart.boundary.problem import Problem


def relu_network(features, classes, width=64):
    """Return a network of ReLUs with random weights."""
    model = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model.append(nn.Linear(width, classes))
    with torch.no_grad():
        for number, layer in enumerate(model[::2]):
            spread = 3 / layer.in_features**0.5
            layer.weight.copy_(uniform(layer.weight.shape, 2 * number, -spread, spread))
            layer.bias.copy_(uniform(layer.bias.shape, 2 * number + 1, -0.5, 0.5))
    return model


def test_l1_margins_of_a_relu_network_are_found_and_no_longer_than_those_of_the_classic_search():
    model, inputs = relu_network(200, 10), uniform((30, 200), 5)
    fast = dyart.closest_boundary_points(model, inputs, norm="l1", steps=60)
    classic = dyart.closest_boundary_points(model, inputs, norm="l1", steps=60, solver="fab")
    assert fast.found.all()
    assert float((fast.margin / classic.margin).nanmean()) < 1.0
    assert float((fast.margin / classic.margin).nan_to_num(0).max()) < 1.1
    # Few of the features move.
    assert float((fast.displacement.abs() > 1e-3).float().mean()) < 0.2


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("rivals", [1, 9])
@pytest.mark.parametrize("solver", ["fast", "apgd"])
def test_a_long_search_costs_its_steps_also_where_it_is_split(solver, rivals, boundary):
    model = Watched(linear_model(6, 8, seed=3))
    options = {"rivals": rivals, "solver": solver, "boundary": boundary, "beta": 50.0, "bounds": None}
    found = dyart.closest_boundary_points(model, uniform((9, 8), 4, -1, 1), steps=50, **options)
    assert found.cost == (len(model.forward_sizes), model.backward_passes)
    compared = 5 if rivals > 1 else 0
    # The gradient against a target is not the gradient of the exact margin function: one more evaluation.
    renewed = boundary == "exact"
    assert found.cost == (1 + 50 + (compared > 0) + renewed, 50 + compared + renewed)


@pytest.mark.parametrize("boundary", ["exact", "soft"])
def test_the_second_part_of_a_long_search_finds_closer_rivals(boundary):
    """38 steps are 23 and 15: better than 23 alone, and by more than the steps of one aim give."""
    model, inputs = relu_network(40, 6), uniform((80, 40), 5)
    options = {"boundary": boundary, "rivals": 1, "beta": 50.0}
    long = dyart.closest_boundary_points(model, inputs, steps=38, **options)
    first = dyart.closest_boundary_points(model, inputs, steps=23, **options)
    assert bool((long.margin <= first.margin + 1e-6)[first.found].all())
    assert int((long.margin < 0.97 * first.margin).sum()) >= 3
    assert int((long.rival != first.rival).sum()) >= 3
    points = long.points.clone().requires_grad_()
    logits = model(points)
    exact, soft = dyart.logit_margin(logits, long.labels), dyart.soft_logit_margin(logits, long.labels, 50.0)
    (exact if boundary == "exact" else soft).sum().backward()
    torch.testing.assert_close(long.gradient[long.found], points.grad[long.found], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("norm", "steps", "rivals", "parts"),
    [
        ("l2", 23, 9, (23,)),
        ("l2", 24, 9, (14, 10)),
        ("l2", 40, 9, (20, 12, 8)),
        ("l2", 40, 2, (24, 16)),
        ("l2", 40, 1, (40,)),
        ("l2", 100, 9, (40, 25, 15, 10, 10)),
        ("l2", 100, 4, (50, 30, 20)),
        ("linf", 40, 9, (24, 16)),
        ("linf", 80, 9, (40, 20, 20)),
        ("l1", 39, 9, (39,)),
        ("l1", 50, 9, (30, 20)),
    ],
)
def test_more_steps_aim_at_more_rivals(norm, steps, rivals, parts):
    labels = torch.zeros(2).long()
    inside = Problem(linear_model(6, 8, seed=3), uniform((2, 8), 4), labels, norm, "exact", 5.0, None, None)
    assert _parts(inside, steps, rivals) == parts
    from_outside = dataclasses.replace(inside, orientation=torch.ones(2))
    assert _parts(from_outside, steps, rivals) == (steps,)
