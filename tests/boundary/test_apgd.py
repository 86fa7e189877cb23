"""Auto-PGD with a search for the radius: a second opinion that agrees with the truth and with the fast search."""

import pytest
import torch
from plane_problems import Patches
from problems import Constant, Watched, ellipsoid_truth, linear_model, linear_truth, smooth_network, uniform
from search_checks import BOUNDARIES, NORMS, around, assert_margins, long_ellipsoid, value_at_points

import dyart


@pytest.mark.parametrize("norm", NORMS)
def test_margins_of_a_linear_classifier(norm):
    model, inputs = linear_model(6, 10, seed=3), uniform((40, 10), 4, -1, 1)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, solver="apgd", steps=150, restarts=2)
    assert_margins(found, linear_truth(model, inputs, found.labels, norm).margin, relative=0.01)
    assert found.solver == "apgd"


@pytest.mark.parametrize("bounds", [None, (0.15, 0.85)])
@pytest.mark.parametrize("norm", NORMS)
def test_margins_of_an_ellipsoid(norm, bounds):
    model = long_ellipsoid(5)
    inputs = around(model, 30)
    inputs = inputs if bounds is None else inputs.clamp(*bounds)
    truth = ellipsoid_truth(model, inputs, norm, bounds)
    known = truth.margin.isfinite()
    found = dyart.closest_boundary_points(
        model, inputs[known], norm=norm, bounds=bounds, solver="apgd", steps=200, tol=1e-6
    )
    assert int(known.sum()) >= 15
    assert_margins(found, truth.margin[known], relative=0.03)
    assert float((found.margin / truth.margin[known] - 1).median()) < 0.005


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_it_agrees_with_the_fast_search(norm, boundary):
    model, inputs = smooth_network(20, 5, seed=0), uniform((40, 20), 3)
    options = {"norm": norm, "boundary": boundary, "restarts": 3, "steps": 60}
    fast = dyart.closest_boundary_points(model, inputs, **options)
    apgd = dyart.closest_boundary_points(model, inputs, solver="apgd", **options)
    both = fast.found & apgd.found
    assert int(both.sum()) >= 35
    ratio = (apgd.margin / fast.margin)[both]
    assert 0.99 < float(ratio.median()) < 1.02
    assert float(ratio.quantile(0.9)) < 1.1
    assert bool((value_at_points(model, apgd)[apgd.found] < 0).all())
    assert bool(((apgd.points >= 0) & (apgd.points <= 1)).all())
    gap = (apgd.points - inputs).flatten(1)
    size = torch.linalg.vector_norm(gap, ord=float("inf") if norm == "linf" else 2, dim=1)
    torch.testing.assert_close(size[apgd.found], apgd.margin[apgd.found])


@pytest.mark.parametrize("rivals", [1, 9])
def test_steps_are_all_of_its_gradient_evaluations(rivals):
    costs = []
    for steps in (7, 12):
        model = Watched(linear_model(5, 6, seed=3))
        found = dyart.closest_boundary_points(
            model, uniform((9, 6), 4, -1, 1), bounds=None, steps=steps, rivals=rivals, solver="apgd", validate=False
        )
        assert found.cost == (len(model.forward_sizes), model.backward_passes)
        costs.append(found.cost)
    assert costs[1].forward - costs[0].forward == costs[1].backward - costs[0].backward == 5


def test_restarts_aim_at_other_rivals():
    model, inputs = Patches(), uniform((60, 2), 7)
    one, two = (
        dyart.closest_boundary_points(model, inputs, solver="apgd", steps=20, restarts=restarts, rivals=2)
        for restarts in (1, 2)
    )
    assert bool((two.margin <= one.margin + 1e-6)[one.found].all())
    assert bool((two.margin < 0.99 * one.margin).any())


def test_nothing_is_found_where_there_is_nothing():
    found = dyart.closest_boundary_points(Constant(), uniform((6, 2, 3), 8), solver="apgd", steps=20)
    assert not found.found.any()
    assert torch.equal(found.points, found.inputs)


def test_l1_and_signed_margins_are_refused():
    model, inputs = Patches(), uniform((4, 2), 7)
    with pytest.raises(ValueError, match="'apgd' knows the norms 'linf', 'l2', got 'l1'"):
        dyart.closest_boundary_points(model, inputs, norm="l1", solver="apgd")
    with pytest.raises(ValueError, match="signed margins need solver='fast', got 'apgd'"):
        dyart.closest_boundary_points(model, inputs, solver="apgd", signed=True)
