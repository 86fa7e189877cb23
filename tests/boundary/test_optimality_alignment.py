"""How good a point is: alignment, and the coordinates that are pinned."""

import dataclasses
import math

import pytest
import torch
from optimality_cases import DOUBLE, NORMS, at_many_bounds, by_hand, moved
from problems import Ellipsoid, ball, ellipsoid_truth, smooth_network, uniform

import dyart
from dyart.boundary import optimality
from dyart.boundary.margins import boundary_value

# Alignment at converged points.


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("norm", [*NORMS, "l1"])
def test_alignment_of_a_smooth_network_is_one_where_the_search_has_converged(norm, bounds, boundary):
    model, inputs = smooth_network(40, 5, seed=1, gain=1.5), at_many_bounds((30, 40), 1)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=bounds, boundary=boundary, tol=1e-5)
    found = found[found.inside]
    assert found.found.all()
    assert len(found) >= 15
    assert float(found.alignment.median()) > 0.9999
    assert float(found.alignment.min()) > (0.999 if norm != "l1" else 0.95)
    assert float(found.alignment.max()) <= 1
    assert found.optimal.all()
    pinned = float((~found.free).double().mean())
    assert pinned == 0 if bounds is None else pinned > 0.2


@pytest.mark.parametrize("bounds", [None, (0.15, 0.85)])
@pytest.mark.parametrize("norm", NORMS)
def test_alignment_is_one_exactly_at_the_closest_points_of_an_ellipsoid(norm, bounds):
    """The points are the truth here, and no search is involved: on both sides, with and without pinned coordinates."""
    features = 6
    model = Ellipsoid(torch.full((features,), 0.5), torch.linspace(0.3, 0.8, features))
    inputs = uniform((40, features), 5, 0.15, 0.85, DOUBLE)
    labels = model(inputs).argmax(dim=1)
    truth = ellipsoid_truth(model, inputs, norm, bounds)
    known = truth.margin.isfinite()
    found = dyart.closest_boundary_points(model, inputs, labels, norm, bounds=bounds, steps=2)[known]
    exact = moved(found, model, truth.points[known])
    assert set(found.labels.tolist()) == {0, 1}
    assert bounds is None or bool((~exact.free).any())
    torch.testing.assert_close(exact.alignment, torch.ones_like(exact.alignment), rtol=0, atol=1e-6)
    torch.testing.assert_close(exact.margin, truth.margin[known])


@pytest.mark.parametrize("norm", NORMS)
def test_alignment_is_one_for_examples_outside_their_class_too(norm):
    model, inputs = smooth_network(20, 2, seed=3), at_many_bounds((30, 20), 3)
    labels = 1 - model(inputs).argmax(dim=1)
    found = dyart.closest_boundary_points(model, inputs, labels, norm, tol=1e-5, signed=True, steps=100)
    assert bool((found.margin < 0).any())
    assert float(found.alignment[found.found].min()) > 0.99
    assert found.optimal[found.found].all()
    # Seen from the other side the same point answers the mirrored problem.
    wrong_side = dataclasses.replace(found, inside=~found.inside)
    mirrored = optimality.alignment(found.displacement, found.gradient, wrong_side.orientation, found.free, found.norm)
    torch.testing.assert_close(mirrored[found.found], -found.alignment[found.found])


def test_pinned_coordinates_must_be_left_out():
    """With all coordinates counted, points that are as close as the box allows would look bad."""
    model, inputs = smooth_network(40, 5, seed=1, gain=1.5), at_many_bounds((30, 40), 1)
    for norm, loss in (("linf", 0.02), ("l2", 0.01)):
        found = dyart.closest_boundary_points(model, inputs, norm=norm, tol=1e-5)
        everything = torch.ones_like(found.free)
        naive = optimality.alignment(found.displacement, found.gradient, found.orientation, everything, norm)
        assert bool((naive < found.alignment - loss).all())
        assert float(naive.min()) < 0.9 < float(found.alignment.min())


# Alignment elsewhere.


@pytest.mark.parametrize("degrees", [10, 20, 30, 60, 90, 150])
def test_alignment_of_another_point_of_a_sphere_is_the_cosine_of_the_detour(degrees):
    """From the point (1 - h, 0) in the unit disc to the point of the circle at an angle, worked out by hand."""
    height, angle = 0.4, math.radians(degrees)
    model = ball([0.0, 0.0], 1.0)
    inputs = torch.tensor([[1 - height, 0.0]], dtype=DOUBLE)
    found = dyart.closest_boundary_points(model, inputs, norm="l2", bounds=None, tol=1e-9)
    assert found.optimal.all()
    other = moved(found, model, torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=DOUBLE))
    # d = (cos - 1 + h, sin); the gradient points inwards, so that -g.d / (|g| |d|) = (1 - (1 - h) cos) / |d|.
    length = math.hypot(math.cos(angle) - 1 + height, math.sin(angle))
    expected = (1 - (1 - height) * math.cos(angle)) / length
    assert float(other.alignment) == pytest.approx(expected, abs=1e-9)
    assert bool(other.optimal) == (expected > 0.9)
    assert float(other.alignment) < float(found.alignment)
    assert float(other.margin) > float(found.margin)


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("norm", NORMS)
def test_other_boundary_points_of_a_network_are_less_aligned(norm, bounds):
    model = smooth_network(20, 3, seed=2, gain=2.0, dtype=DOUBLE)
    inputs = uniform((20, 20), 6, dtype=DOUBLE)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=bounds, tol=1e-6)
    found = found[found.found]
    # A random direction, mixed into the right one, followed to the boundary by bisection.
    sideways = uniform(found.points.shape, 7, -1, 1, DOUBLE)
    direction = found.displacement + 2 * sideways * found.displacement.abs().amax(dim=1, keepdim=True)
    low, high = torch.zeros(len(found), 1, dtype=DOUBLE), torch.full((len(found), 1), 20.0, dtype=DOUBLE)

    def point(reach):
        there = found.inputs + reach * direction
        return there if bounds is None else there.clamp(*bounds)

    crossed = boundary_value(model(point(high)), found.labels, "exact", 5.0) < 0
    for _ in range(60):
        middle = (low + high) / 2
        across = (boundary_value(model(point(middle)), found.labels, "exact", 5.0) < 0)[:, None]
        low, high = torch.where(across, low, middle), torch.where(across, middle, high)
    other = moved(found, model, point(high).detach())[crossed]
    assert len(other) >= 8
    assert float(other.value.abs().max()) < 1e-6
    assert bool((other.margin > found.margin[crossed]).all())
    assert bool((other.alignment < found.alignment[crossed] - 0.05).all())
    assert not other.optimal.any()
    assert found[crossed].optimal.all()


def test_alignment_by_hand():
    displacement = torch.tensor([[3.0, -4.0]], dtype=DOUBLE)
    gradient = torch.tensor([[-1.0, 2.0]], dtype=DOUBLE)
    plus, free = torch.ones(1, dtype=DOUBLE), torch.ones(1, 2, dtype=torch.bool)

    def alignment(norm, orientation=plus, free=free):
        return float(optimality.alignment(displacement, gradient, orientation, free, norm))

    # -g.d = 3 + 8 = 11, over |g|_1 |d|_inf = 3 x 4, |g|_2 |d|_2 = sqrt(5) x 5, |g|_inf |d|_1 = 2 x 7.
    assert alignment("linf") == pytest.approx(11 / 12)
    assert alignment("l2") == pytest.approx(11 / (5 * 5**0.5))
    assert alignment("l1") == pytest.approx(11 / 14)
    assert alignment("linf", orientation=-plus) == pytest.approx(-11 / 12)
    first = torch.tensor([[True, False]])
    assert alignment("linf", free=first) == pytest.approx(1)
    assert alignment("linf", free=~free) == 0


@pytest.mark.parametrize("norm", [*NORMS, "l1"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_alignment_survives_tiny_and_huge_gradients(norm, size):
    """In float32 the squares of such numbers vanish or overflow."""
    displacement = torch.tensor([[0.1, -0.1], [0.1, 0.1]])
    gradient = size * torch.tensor([[-1.0, 1.0], [-1.0, 1.0]])
    free = torch.ones(2, 2, dtype=torch.bool)
    found = optimality.alignment(displacement, gradient, torch.ones(2), free, norm)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0]))
    # Without a gradient nothing is said, and nothing is nan.
    assert bool((optimality.alignment(displacement, 0 * gradient, torch.ones(2), free, norm) == 0).all())
    assert bool((optimality.alignment(0 * displacement, gradient, torch.ones(2), free, norm) == 0).all())


def test_thresholds_of_optimal_can_be_chosen():
    found = by_hand(
        inputs=[[0.0, 0.0]] * 3, points=[[1.0, -1.0]] * 3, gradient=[[-1.0, 1.0], [-1.0, -0.04], [-1.0, 1.0]],
        value=[-0.05, -0.05, -0.2],
    )  # fmt: skip
    assert found.alignment.tolist() == pytest.approx([1, 0.96 / 1.04, 1])
    assert found.optimal.tolist() == [True, True, False]
    assert found.is_optimal(alignment=0.95).tolist() == [True, False, False]
    assert found.is_optimal(residual=0.01).tolist() == [False, False, False]
    assert found.is_optimal(residual=0.3, alignment=0.95).tolist() == [True, False, True]
    lost = dataclasses.replace(found, found=torch.tensor([False, True, True]))
    assert not lost.optimal[0]


# Which coordinates are pinned.


def test_a_coordinate_is_pinned_only_at_the_bound_ahead_of_it():
    """Inside its class an example moves against the gradient, outside along it."""
    points = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.5]], dtype=DOUBLE)
    gradient = torch.tensor([[1.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0]], dtype=DOUBLE)
    way = torch.full_like(points, 0.3)
    low, high = torch.tensor(0.0, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE)
    inside, outside = torch.ones(1, dtype=DOUBLE), -torch.ones(1, dtype=DOUBLE)
    free = optimality.free_coordinates(way, points, gradient, inside, low, high)
    assert free.tolist() == [[False, True, True, True, False, True, True]]
    free = optimality.free_coordinates(way, points, gradient, outside, low, high)
    assert free.tolist() == [[True, False, True, False, True, True, True]]
    assert optimality.free_coordinates(way, points, gradient, inside, None, None).all()


@pytest.mark.parametrize("span", [1.0, 255.0])
def test_rounding_next_to_a_bound_counts_as_being_there(span):
    points = torch.tensor([[5e-7, 2e-6, 1 - 5e-7, 1 - 2e-6]], dtype=DOUBLE) * span
    gradient = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=DOUBLE)
    way = torch.full_like(points, 0.1 * span)
    bounds = (torch.tensor(0.0, dtype=DOUBLE), torch.tensor(span, dtype=DOUBLE))
    free = optimality.free_coordinates(way, points, gradient, torch.ones(1, dtype=DOUBLE), *bounds)
    assert free.tolist() == [[False, True, False, True]]


def test_an_open_side_pins_nothing():
    points = torch.tensor([[0.0, 7.0]], dtype=DOUBLE)
    gradient = torch.tensor([[1.0, -1.0]], dtype=DOUBLE)
    way = torch.tensor([[-1.0, 2.0]], dtype=DOUBLE)
    bounds = (torch.tensor(0.0, dtype=DOUBLE), torch.tensor(math.inf, dtype=DOUBLE))
    free = optimality.free_coordinates(way, points, gradient, torch.ones(1, dtype=DOUBLE), *bounds)
    assert free.tolist() == [[False, True]]


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e4])
@pytest.mark.parametrize("upper", [1e7, math.inf])
def test_a_box_much_wider_than_what_is_in_it_pins_only_what_is_at_its_sides(unit, upper):
    points = torch.tensor([[0.0, 0.1, 1.0]], dtype=DOUBLE) * unit
    way = torch.tensor([[-0.2, -0.3, -0.3]], dtype=DOUBLE) * unit
    bounds = (torch.tensor(0.0, dtype=DOUBLE), torch.tensor(upper, dtype=DOUBLE))
    free = optimality.free_coordinates(way, points, torch.ones_like(points), torch.ones(1, dtype=DOUBLE), *bounds)
    assert free.tolist() == [[False, True, True]]
