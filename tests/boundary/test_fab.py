"""The classic FAB search: right where the answer is known, at the cost that it states."""

import weakref

import pytest
import torch
from problems import Watched, linear_model, smooth_network, uniform

import dyart
from dyart.boundary.problem import Problem

NORMS = ("linf", "l2", "l1")
DUAL_ORDER = {"linf": 1, "l2": 2, "l1": torch.inf}


@pytest.mark.parametrize("norm", NORMS)
def test_a_linear_margin_is_the_distance_to_the_closest_plane(norm):
    """Every rival is looked at in every step, so that one search is enough."""
    model = linear_model(6, 8, seed=1, dtype=torch.float64)
    inputs = uniform((30, 8), 2, -1, 1, torch.float64)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, solver="fab", steps=30, tol=1e-8)
    weight = model.weight.detach()
    differences = weight[found.labels][:, None] - weight
    gaps = model(inputs).detach().gather(1, found.labels[:, None]) - model(inputs).detach()
    distance = gaps / torch.linalg.vector_norm(differences, ord=DUAL_ORDER[norm], dim=2)
    distance.scatter_(1, found.labels[:, None], torch.inf)
    assert found.found.all()
    torch.testing.assert_close(found.margin, distance.min(dim=1).values, rtol=1e-4, atol=1e-6)
    assert torch.equal(found.rival, distance.argmin(dim=1))


@pytest.mark.parametrize(("boundary", "classes", "pieces"), [("exact", 4, 3), ("exact", 7, 6), ("soft", 7, 1)])
def test_a_step_costs_two_forward_passes_and_one_backward_pass_per_piece(boundary, classes, pieces):
    model = Watched(smooth_network(12, classes, seed=2))
    found = dyart.closest_boundary_points(
        model, uniform((10, 12), 4), boundary=boundary, solver="fab", steps=5, validate=False
    )
    assert found.cost == (len(model.forward_sizes), model.backward_passes)
    assert found.cost == (1 + 2 * 5 + 1, pieces * 5 + 1)


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("norm", NORMS)
def test_it_agrees_with_the_fast_search_on_a_smooth_network(norm, boundary):
    model, inputs = smooth_network(12, 4, seed=2, dtype=torch.float64), uniform((40, 12), 4, dtype=torch.float64)
    options = {"norm": norm, "boundary": boundary, "tol": 1e-6}
    classic = dyart.closest_boundary_points(model, inputs, solver="fab", steps=60, **options)
    fast = dyart.closest_boundary_points(model, inputs, steps=60, restarts=3, **options)
    assert classic.solver == "fab"
    assert fast.solver == "fast"
    both = classic.found & fast.found
    assert int(both.sum()) >= 0.9 * int(classic.inside.sum())
    ratio = (classic.margin / fast.margin)[both]
    assert float(ratio.median()) == pytest.approx(1, abs=0.01)
    # Both are local searches; neither may be far off where the other is not.
    assert float((ratio > 1.2).double().mean()) < 0.1
    assert float((ratio < 0.9).double().mean()) < 0.05


def test_restarts_are_random_and_repeatable():
    network, inputs = smooth_network(12, 4, seed=2), uniform((20, 12), 4)

    def visited(seed):
        points = []
        options = {"solver": "fab", "steps": 2, "restarts": 3, "seed": seed, "validate": False}
        dyart.closest_boundary_points(lambda x: points.append(x.detach()) or network(x), inputs, **options)
        return torch.stack(points)

    assert torch.equal(visited(1), visited(1))
    assert not torch.equal(visited(1), visited(2))


def test_signed_margins_are_refused():
    with pytest.raises(ValueError, match="solver='fast'"):
        dyart.closest_boundary_points(smooth_network(12, 4), uniform((3, 12), 4), solver="fab", signed=True)


def test_many_classes_need_the_memory_of_few_gradients(monkeypatch):
    """Of 40 gradients, those that live at one time."""
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(30, 41), torch.rand(4, 30)
    kept, most, made = weakref.WeakSet(), 0, Problem._gradient

    def watched(*arguments, **named):
        nonlocal most
        gradient = made(*arguments, **named)
        kept.add(gradient)
        most = max(most, len(kept))
        return gradient

    monkeypatch.setattr(Problem, "_gradient", watched)
    found = dyart.closest_boundary_points(model, inputs, solver="fab", steps=2)
    assert bool(found.found.all())
    assert most <= 4
