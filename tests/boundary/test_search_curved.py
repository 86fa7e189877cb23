"""Curved boundaries with known margins, and what every found point keeps."""

import pytest
import torch
from plane_problems import Patches, plane_truth
from problems import (
    Constant,
    Ellipsoid,
    Strip,
    Wave,
    Xor,
    ball,
    ellipsoid_truth,
    smooth_network,
    uniform,
    wave_truth,
    xor_truth,
)
from search_checks import BOUNDARIES, NORMS, around, assert_margins, long_ellipsoid, value_at_points

import dyart
from dyart.boundary.margins import boundary_value

ALL_NORMS = [*NORMS, "l1"]
SQUARES = {
    "no box": None,
    "unit square": (0.0, 1.0),
    "per feature": (torch.tensor([0.1, 0.0]), torch.tensor([0.7, 0.8])),
}


# The zoo itself: two ways to the same truth.


@pytest.mark.parametrize("bounds", [None, (0.12, 0.88), (0.3, 0.8)])
@pytest.mark.parametrize("norm", NORMS)
def test_brute_force_and_secular_equation_agree(norm, bounds):
    model = Ellipsoid([0.55, 0.45], [0.3, 0.45])
    inputs = uniform((12, 2), 1, 0.3, 0.8, torch.float64)
    labels = model(inputs).argmax(dim=1)
    assert set(labels.tolist()) == {0, 1}
    brute = plane_truth(model, inputs, labels, norm, bounds)
    known = ellipsoid_truth(model, inputs, norm, bounds)
    sure = ~known.margin.isnan()
    assert int(sure.sum()) >= 4
    torch.testing.assert_close(brute.margin[sure], known.margin[sure], rtol=1e-5, atol=1e-6)


# Known margins.


def dented_ball(features):
    return ball(torch.full((features,), 0.5), 0.4)


@pytest.mark.parametrize(
    ("bounds", "dtype"),
    [(None, torch.float32), (None, torch.float64), ((0.0, 1.0), torch.float32), ((0.15, 0.85), torch.float64)],
)
@pytest.mark.parametrize("features", [2, 30])
@pytest.mark.parametrize("build", [dented_ball, long_ellipsoid])
@pytest.mark.parametrize("norm", NORMS)
def test_sphere_and_ellipsoid_from_both_sides(norm, build, features, bounds, dtype):
    model = build(features)
    inputs = around(model, 30).to(dtype)
    inputs = inputs if bounds is None else inputs.clamp(*bounds)
    labels = model(inputs).argmax(dim=1)
    assert 5 <= int(labels.sum()) <= 25
    truth = ellipsoid_truth(model, inputs, norm, bounds)
    known = truth.margin.isfinite()
    assert int(known.sum()) >= 15
    inputs, labels, margin = inputs[known], labels[known], truth.margin[known]
    found = dyart.closest_boundary_points(model, inputs, labels, norm, bounds=bounds, restarts=2, tol=1e-6, steps=40)
    assert_margins(found, margin, relative=0.01)
    # Most are far better than that: the rest sit next to a place where a coordinate is about to be pinned.
    assert float((found.margin.double() / margin - 1).median()) < 1e-3
    assert torch.equal(found.rival, 1 - labels)
    if norm == "l2":
        off = (found.points.double() - truth.points[known]).norm(dim=1) / margin
        assert float(off.max()) < 0.1


@pytest.mark.parametrize(
    ("where", "boundary"),
    [("no box", "exact"), ("unit square", "soft"), ("per feature", "exact"), ("per feature", "soft")],
)
@pytest.mark.parametrize("norm", ALL_NORMS)
def test_three_curved_classes_in_the_plane(norm, where, boundary):
    model, bounds = Patches(), SQUARES[where]
    low, high = (0.0, 1.0) if bounds is None else bounds
    inputs = torch.minimum(torch.maximum(uniform((9, 2), 16), torch.as_tensor(low)), torch.as_tensor(high))
    labels = model(inputs).argmax(dim=1)
    assert set(labels.tolist()) == {0, 1, 2}
    truth = plane_truth(model, inputs, labels, norm, bounds, boundary)
    found = dyart.closest_boundary_points(
        model, inputs, labels, norm, boundary, bounds=bounds, restarts=4, tol=1e-5, steps=25
    )
    inside = ~truth.margin.isnan()
    assert torch.equal(found.inside, inside)
    assert_margins(found[inside], truth.margin[inside], relative=5e-3, rounding=2e-5)


@pytest.mark.parametrize("where", ["no box", "per feature"])
@pytest.mark.parametrize("norm", NORMS)
def test_soft_margins_are_at_most_exact_ones(norm, where):
    """Phi <= phi, so that the soft boundary lies nearer: where three classes meet by a lot, unless beta is large."""
    model, bounds = Patches(), SQUARES[where]
    inputs = torch.tensor([0.59, 0.51]) + uniform((10, 2), 8, -0.12, 0.11)
    labels = model(inputs).argmax(dim=1)
    truth = plane_truth(model, inputs, labels, norm, bounds).margin
    options = {"norm": norm, "bounds": bounds, "restarts": 4, "tol": 1e-5, "steps": 25}
    margins = {}
    exact = dyart.closest_boundary_points(model, inputs, labels, **options)
    for beta in (5.0, 500.0):
        soft = dyart.closest_boundary_points(model, inputs, labels, boundary="soft", beta=beta, **options)
        both = soft.inside & exact.inside
        assert bool((soft.margin[both] <= exact.margin[both] + 1e-5).all())
        assert bool((soft.margin[both] <= truth[both] + 1e-5).all())
        margins[beta] = torch.where(soft.inside, soft.margin.double(), 0.0)
    assert int((margins[5.0] < 0.9 * truth).sum()) >= 3
    torch.testing.assert_close(margins[500.0], truth, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("norm", NORMS)
def test_the_nearer_of_two_crossing_lines(norm, bounds):
    inputs = uniform((40, 2), 5)
    found = dyart.closest_boundary_points(Xor(), inputs, norm=norm, bounds=bounds, restarts=4, tol=1e-6)
    # phi is a product: at 1e-6 from the boundary in value the margin is 1e-6 / |other coordinate| too long.
    assert_margins(found, xor_truth(inputs), relative=0.01, rounding=5e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_the_nearer_of_two_parallel_planes(norm):
    model = Strip([1.0, -2.0, 0.5, 1.0], middle=0.1, width=0.3)
    inputs = uniform((40, 4), 6, -0.6, 0.6)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, tol=1e-6)
    assert set(found.labels.tolist()) == {0, 1}
    assert_margins(found, model.truth(inputs, norm), relative=1e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_classes_that_take_turns_on_a_line_of_scalars(norm):
    """From near a crest the first Newton step goes far, over several boundaries: random restarts look nearer."""
    inputs = torch.linspace(-2.94, 2.94, 50)
    found = dyart.closest_boundary_points(Wave(), inputs, norm=norm, bounds=None, restarts=10, tol=1e-6, steps=30)
    assert found.points.shape == (50,)
    assert_margins(found, wave_truth(inputs), relative=1e-3)


@pytest.mark.parametrize(("norm", "margin"), [("l2", 0.4), ("linf", 0.4 / 5**0.5)])
def test_random_restarts_leave_a_place_without_gradient(norm, margin):
    model, inputs = ball(torch.full((5,), 0.5), 0.4), torch.full((3, 5), 0.5)
    assert not dyart.closest_boundary_points(model, inputs, norm=norm, restarts=1).found.any()
    found = dyart.closest_boundary_points(model, inputs, norm=norm, restarts=4, tol=1e-6)
    assert_margins(found, torch.full((3,), margin, dtype=torch.float64), relative=0.02)


class Plateau(torch.nn.Module):
    """Two classes by the mean of the values; without a slope where it is within 0.03 of a half."""

    def forward(self, x):
        away = (x - 0.5).mean(dim=1).abs()
        value = torch.where(away < 0.03, 1 + 0 * away, 1 - 60 * (away - 0.03))
        return torch.stack([value, -value], dim=1)


@pytest.mark.parametrize(("contrast", "bounds"), [(0.01, (0.0, 1.0)), (1.0, (-1e4, 1e4))])
def test_random_restarts_try_the_width_of_the_box_and_that_of_the_input(contrast, bounds):
    inputs = contrast * (uniform((100, 10), 1) - 0.5)
    inputs = 0.5 + inputs - inputs.mean(dim=1, keepdim=True)
    assert not dyart.closest_boundary_points(Plateau(), inputs, bounds=bounds, restarts=1, steps=10).found.any()
    found = dyart.closest_boundary_points(Plateau(), inputs, bounds=bounds, restarts=10, steps=10)
    assert int(found.found.sum()) >= 75


# What every found point keeps.


@pytest.mark.parametrize("tol", [None, 1e-4])
@pytest.mark.parametrize("restarts", [1, 6])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_points_lie_across_the_boundary_and_inside_the_bounds(norm, boundary, restarts, tol):
    model = smooth_network(20, 5, seed=1)
    low, high = uniform((20,), 1, 0.0, 0.4), uniform((20,), 2, 0.6, 1.0)
    inputs = torch.minimum(torch.maximum(uniform((40, 20), 3), low), high)
    found = dyart.closest_boundary_points(
        model, inputs, norm=norm, boundary=boundary, restarts=restarts, bounds=(low, high), tol=tol, steps=25
    )
    assert int(found.found.sum()) >= 30
    assert bool(((found.points >= low) & (found.points <= high)).all())
    value = value_at_points(model, found)[found.found]
    assert float(value.max()) <= 1e-6
    torch.testing.assert_close(value, found.value[found.found], rtol=0, atol=2e-6)
    if boundary == "exact" and tol is None:
        predicted = model(found.points).argmax(dim=1)
        assert torch.equal(predicted[found.found], found.rival[found.found])
    # And not deep in the other class: without tol the last overshoot of 0.5 % is what is left.
    assert bool((value.abs() <= (0.05 * found.input_value[found.found] if tol is None else 2 * tol)).all())


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_gradient_is_the_one_of_the_margin_function_at_the_point(norm, boundary):
    model = smooth_network(20, 5, seed=1)
    found = dyart.closest_boundary_points(
        model, uniform((20, 20), 3), norm=norm, boundary=boundary, restarts=5, steps=15
    )
    points = found.points.clone().requires_grad_()
    boundary_value(model(points), found.labels, boundary, found.beta).sum().backward()
    torch.testing.assert_close(found.gradient[found.found], points.grad[found.found], rtol=1e-4, atol=1e-5)
    assert bool(found.found.any())


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_where_no_boundary_exists_nothing_is_found(norm, boundary):
    inputs = uniform((6, 2, 3), 8)
    found = dyart.closest_boundary_points(Constant(), inputs, norm=norm, boundary=boundary, restarts=4, tol=1e-3)
    assert not found.found.any()
    assert found.inside.all()
    assert torch.equal(found.points, inputs)
    assert found.margin.isnan().all()
    assert found.alignment.isnan().all()
    assert (found.gradient == 0).all()
    assert (found.rival == -1).all()
    assert torch.equal(found.value, found.input_value)
    assert (found.value > 1).all()
    assert not found.optimal.any()


def test_a_boundary_beyond_the_box_is_found_for_those_that_can_reach_it():
    """Half of the examples may not leave the ball: every example has its own verdict."""
    model = ball([0.0, 0.0], 1.0)
    inputs = torch.tensor([[0.1, 0.2], [0.5, 0.1], [0.3, 0.3]])
    bounds = (torch.zeros(2), torch.tensor([0.8, 0.59]))
    assert not dyart.closest_boundary_points(model, inputs, bounds=bounds, restarts=3).found.any()
    assert dyart.closest_boundary_points(model, inputs, bounds=(0.0, 0.72), restarts=3).found.all()
