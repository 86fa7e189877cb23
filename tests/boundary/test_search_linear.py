"""Linear classifiers, whose closest boundary points have closed forms, or are solved by scipy inside a box."""

import math

import pytest
import torch
from problems import distance, linear_model, linear_truth, linear_truth_in_box, uniform
from scipy.optimize import linprog
from torch import nn

import dyart
from dyart.boundary import optimality

NORMS = ["linf", "l2", "l1"]
DTYPES = [torch.float32, torch.float64]
TOL = 1e-6
"""In value; the slopes here are above 1/4, so that margins are good to 4e-6 plus rounding."""


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("norm", NORMS)
def test_two_classes_give_the_closed_form(norm, boundary, dtype):
    model = linear_model(2, 6, seed=1, dtype=dtype)
    inputs = uniform((50, 6), 2, -1, 1, dtype)
    labels = model(inputs).argmax(dim=1)
    assert set(labels.tolist()) == {0, 1}
    found = dyart.closest_boundary_points(model, inputs, labels, norm, boundary, bounds=None, tol=TOL)
    truth = linear_truth(model, inputs, labels, norm)
    close(found.margin, truth.margin)
    close(found.points, truth.points)
    assert found.found.all()
    assert torch.equal(found.rival, 1 - labels)
    assert found.margin.dtype == found.points.dtype == found.gradient.dtype == dtype
    close(found.gradient, (model.weight[labels] - model.weight[1 - labels]).detach())
    assert (found.alignment > 0.9999).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_ten_classes_give_the_closed_form_when_every_rival_is_tried(norm, dtype):
    model = linear_model(10, 20, seed=3, dtype=dtype)
    with torch.no_grad():
        model.weight.mul_(torch.linspace(0.3, 2, 10, dtype=dtype)[:, None])
    inputs = uniform((60, 20), 4, -1, 1, dtype)
    labels = model(inputs).argmax(dim=1)
    truth = linear_truth(model, inputs, labels, norm)
    # Steep classes are near without being likely; otherwise the first search alone would do.
    likeliest = model(inputs).detach().scatter(1, labels[:, None], -math.inf).argmax(dim=1)
    assert int((truth.rival != likeliest).sum()) >= 6
    found = dyart.closest_boundary_points(model, inputs, labels, norm, bounds=None, tol=TOL, restarts=9)
    close(found.margin, truth.margin)
    close(found.points, truth.points)
    assert torch.equal(found.rival, truth.rival)


@pytest.mark.parametrize("norm", NORMS)
def test_the_distance_itself_is_what_the_margin_says(norm):
    """The margin is the norm of the displacement, measured anew, and no number of the search's own."""
    model = linear_model(4, 5, seed=2)
    inputs = uniform((30, 5), 5, -1, 1)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None)
    close(found.margin, distance(found.points, inputs, norm), 1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_without_tol_the_overshoot_left_over_is_below_one_percent(norm):
    model = linear_model(2, 8, seed=4)
    inputs = uniform((40, 8), 6, -1, 1)
    labels = model(inputs).argmax(dim=1)
    found = dyart.closest_boundary_points(model, inputs, labels, norm, bounds=None)
    ratio = found.margin / linear_truth(model, inputs, labels, norm).margin
    assert (ratio > 1 - 1e-5).all()
    assert (ratio < 1.01).all()


@pytest.mark.parametrize("beta", [0.5, 100.0])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
def test_soft_and_exact_boundary_are_one_for_two_classes(norm, beta, bounds):
    model = linear_model(2, 6, seed=5)
    inputs = uniform((30, 6), 7, -1, 1)
    exact = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=bounds)
    soft = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=bounds, boundary="soft", beta=beta)
    torch.testing.assert_close(soft.margin, exact.margin, equal_nan=True)
    torch.testing.assert_close(soft.points, exact.points)
    torch.testing.assert_close(soft.gradient, exact.gradient)
    torch.testing.assert_close(soft.value, exact.value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("norm", NORMS)
def test_in_a_box_the_margin_is_the_one_that_scipy_finds(norm, classes, dtype):
    features, low, high = 6, 0.0, 1.0
    model = linear_model(classes, features, seed=2, dtype=dtype)
    inputs = uniform((24, features), 9, low, high, dtype)
    # As in images, many features start at a bound.
    inputs = torch.where(uniform(inputs.shape, 10) < 0.3, inputs.round(), inputs)
    labels = model(inputs).argmax(dim=1)
    truth = linear_truth_in_box(model, inputs, labels, norm, low, high)
    found = dyart.closest_boundary_points(
        model, inputs, labels, norm, bounds=(low, high), tol=TOL, restarts=max(classes - 1, 1)
    )
    reachable = truth.margin.isfinite()
    assert torch.equal(found.found, reachable)
    assert torch.equal(found.rival[reachable], truth.rival[reachable])
    excess = (found.margin.double() / truth.margin - 1)[reachable]
    assert float(excess.min()) > -1e-5
    # Where a coordinate is about to reach its bound the search closes in slowly, most of all for l1.
    assert float(excess.max()) < (2e-3 if norm != "l1" else 5e-3)
    assert float((excess < 1e-5).double().mean()) > 0.8
    if norm == "l2":
        close(found.points[reachable], truth.points[reachable], 1e-2)
    # The box must matter, or this is the test without one.
    assert float((~found.free[reachable]).any(dim=1).double().mean()) > 0.4
    farther = truth.margin > 1.01 * linear_truth(model, inputs, labels, norm).margin
    assert int(farther[reachable].sum()) >= 4


@pytest.mark.parametrize("norm", NORMS)
def test_a_plane_partly_outside_the_box_is_met_where_the_box_allows(norm):
    """phi = 1.2 - x_1 - x_2 in the unit square: where x_1 reaches its bound before the plane, x_2 does the rest."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, -1.0], [0.0, 0.0]]))
        model.bias.copy_(torch.tensor([1.2, 0.0]))
    inputs = torch.tensor([[0.9, 0.0], [1.0, 0.1], [0.5, 0.5], [0.0, 0.0]])
    points = torch.tensor([[1.0, 0.2], [1.0, 0.2], [0.6, 0.6], [0.6, 0.6]])
    found = dyart.closest_boundary_points(model, inputs, norm=norm, tol=TOL)
    if norm != "l1":
        # For l1 both features are equally good.
        close(found.points, points)
    close(found.margin, distance(points, inputs, norm))


@pytest.mark.parametrize("norm", NORMS)
def test_a_plane_outside_the_box_is_not_found(norm):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]]))
        model.bias.copy_(torch.tensor([3.01, 0.0]))
    inputs = uniform((5, 3), 11)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, restarts=3)
    assert found.inside.all()
    assert not found.found.any()
    assert dyart.closest_boundary_points(model, inputs, norm=norm, bounds=(0.0, 1.01)).found.all()


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", [(), (1,), (12,), (3, 4), (3, 2, 2)])
def test_any_shape_of_input_gives_what_the_flat_one_gives(shape, norm, bounds):
    features = math.prod(shape)
    flat_model = linear_model(3, features, seed=6)
    seen = set()

    def model(x):
        seen.add(tuple(x.shape[1:]))
        return flat_model(x.reshape(len(x), features))

    flat_inputs = uniform((15, features), 12, -1, 1)
    found = dyart.closest_boundary_points(model, flat_inputs.reshape(15, *shape), norm=norm, bounds=bounds, tol=TOL)
    flat = dyart.closest_boundary_points(flat_model, flat_inputs, norm=norm, bounds=bounds, tol=TOL)
    assert seen == {shape}
    assert found.points.shape == found.gradient.shape == (15, *shape)
    assert flat.found.any()
    torch.testing.assert_close(found.points.reshape(15, features), flat.points)
    torch.testing.assert_close(found.margin, flat.margin, equal_nan=True)


@pytest.mark.parametrize("bounds", [None, (-2.0, 2.0)])
@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("norm", NORMS)
def test_signed_margins_are_minus_the_distance_for_misclassified_examples(norm, boundary, bounds):
    model = linear_model(2, 6, seed=7)
    inputs = uniform((30, 6), 13, -1, 1)
    predicted = model(inputs).argmax(dim=1)
    wrong = torch.arange(30) % 3 == 0
    labels = torch.where(wrong, 1 - predicted, predicted)
    found = dyart.closest_boundary_points(model, inputs, labels, norm, boundary, bounds=bounds, tol=TOL, signed=True)
    truth = linear_truth(model, inputs, labels, norm)
    close(found.margin, torch.where(wrong, -truth.margin, truth.margin))
    close(found.points, truth.points)
    assert torch.equal(found.inside, ~wrong)
    assert torch.equal(found.correct, ~wrong)
    # Values and gradients are those of the margin function itself, not of its mirror image.
    with torch.no_grad():
        close(found.value, dyart.logit_margin(model(found.points), labels))
    close(found.gradient, (model.weight[labels] - model.weight[1 - labels]).detach())
    assert (found.value[wrong] >= 0).all()
    assert (found.value[~wrong] <= 0).all()
    assert (found.alignment > 0.9999).all()


def test_unsigned_search_leaves_misclassified_examples_alone():
    model = linear_model(2, 6, seed=7)
    inputs = uniform((30, 6), 13, -1, 1)
    labels = 1 - model(inputs).argmax(dim=1)
    found = dyart.closest_boundary_points(model, inputs, labels, bounds=None)
    assert found.margin.isnan().all()
    assert torch.equal(found.points, inputs)
    assert not found.found.any()


@pytest.mark.parametrize("classes", [3, 4])
def test_signed_margin_among_several_classes_is_the_distance_to_the_class(classes):
    """The region of a class is a polytope here; a linear program gives the distance to it.

    Where the closest point lies in a corner, between two rivals, a search that linearises one at a time stays short
    of it: most distances are right, none is too small, and those that are off are not called optimal.
    """
    model = linear_model(classes, 6, seed=3, dtype=torch.float64)
    inputs = uniform((30, 6), 4, -1, 1, torch.float64)
    labels = torch.arange(30) % classes
    truth = torch.stack([distance_to_class(model, x, int(y)) for x, y in zip(inputs, labels, strict=True)])
    found = dyart.closest_boundary_points(model, inputs, labels, bounds=None, tol=TOL, signed=True, restarts=3)
    outside = model(inputs).argmax(dim=1) != labels
    assert int(outside.sum()) >= 10
    assert int((outside & ~found.found).sum()) <= 1
    reached = outside & found.found
    ratio = -found.margin[reached] / truth[reached]
    assert float(ratio.min()) > 1 - 1e-6
    assert float(ratio.median()) < 1.01
    assert float(ratio.max()) < 1.6
    assert not bool((found.optimal[reached] & (ratio > 1.15)).any())


def distance_to_class(model, x, label):
    """Return the linf distance from ``x`` to where ``label`` has the largest logit."""
    weight, bias = model.weight.detach(), model.bias.detach()
    others = [k for k in range(len(bias)) if k != label]
    normals, offsets = weight[others] - weight[label], bias[others] - bias[label]
    eye, ones = torch.eye(len(x), dtype=x.dtype), torch.ones(len(x), 1, dtype=x.dtype)
    rows = [torch.cat([eye, -ones], 1), torch.cat([-eye, -ones], 1), torch.cat([normals, 0 * offsets[:, None]], 1)]
    limits = torch.cat([torch.zeros(2 * len(x), dtype=x.dtype), -(offsets + normals @ x)])
    solved = linprog([0.0] * len(x) + [1.0], A_ub=torch.cat(rows).numpy(), b_ub=limits.numpy(), bounds=(None, None))
    assert solved.status == 0
    return torch.tensor(solved.fun, dtype=x.dtype)


def hidden_class_model(distance, angle):
    """Return three classes around the origin: class 1 lies at distance 1, and class 2, steep, right behind it."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [10 * math.cos(angle), 10 * math.sin(angle)]]))
        model.bias.copy_(torch.tensor([0.0, -1.0, -10 * distance]))
    return model


@pytest.mark.parametrize(("distance", "angle"), [(1.02, 0.15), (1.024, 0.2)])
def test_a_closer_class_is_refined_even_where_another_takes_over_right_behind_it(distance, angle):
    """The first crossing overshoots by 5 % and lands in class 2: the closest point is still the one of class 1."""
    model = hidden_class_model(distance, angle)
    found = dyart.closest_boundary_points(model, torch.zeros(1, 2), norm="l2", bounds=None, restarts=3, tol=1e-5)
    close(found.margin, torch.ones(1), 5e-3)


def test_bounds_keep_the_precision_of_double_inputs():
    """0.1 rounded to float32 is larger than 0.1: a float64 point at that bound would lie outside."""
    model = nn.Linear(4, 2, dtype=torch.float64)
    with torch.no_grad():
        # The third feature is steeper, so that it goes to its bound for every norm.
        model.weight.copy_(torch.tensor([[-1.0, -1.0, -2.0, -1.0], [0.0, 0.0, 0.0, 0.0]]))
        model.bias.copy_(torch.tensor([0.489, 0.0]))
    inputs = torch.tensor([[0.0, 0.0, 0.099, 0.05]], dtype=torch.float64)
    for norm in NORMS:
        found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=(-0.1, 0.1))
        assert found.found.all()
        assert 0.1 - 1e-12 <= float(found.points.max()) <= 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_a_box_with_one_open_side_pins_on_the_other_side_only(norm):
    model = linear_model(2, 6, seed=9)
    inputs = uniform((20, 6), 15, 0.0, 0.6)
    labels = model(inputs).argmax(dim=1)
    bounds = (torch.zeros(6), torch.full((6,), math.inf))
    found = dyart.closest_boundary_points(model, inputs, labels, norm, bounds=bounds, tol=TOL, steps=100)
    truth = linear_truth_in_box(model, inputs, labels, norm, 0.0, 1e3)
    close(found.margin, truth.margin, 1e-4)
    assert bool((found.points >= 0).all())
    assert bool((found.points == 0).any())
    assert norm == "l1" or bool((found.points > 0.6).any())
    assert bool((~found.free).any())


def test_dual_norms_pair_up():
    """The closed form divides by the dual norm: the multiplier must be that number, for both norms."""
    model = linear_model(2, 6, seed=10)
    inputs = uniform((5, 6), 16, -1, 1)
    for norm, order in (("linf", 1), ("l2", 2), ("l1", math.inf)):
        found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, tol=TOL)
        slope = torch.linalg.vector_norm(model.weight[0] - model.weight[1], ord=order).detach()
        close(found.multiplier(), slope.expand(5))
        close(found.multiplier(box_aware=False), slope.expand(5))
        everything = torch.ones(5, 6, dtype=torch.bool)
        close(optimality.multiplier(found.displacement, found.gradient, everything, norm), slope.expand(5))
        close(found.input_value / slope, found.margin)
