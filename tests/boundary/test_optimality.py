"""How good a point is: alignment, pinned coordinates, multipliers, the paper's conditions, verdicts."""

import copy
import dataclasses
import math

import pytest
import torch
from problems import (
    Constant,
    Ellipsoid,
    Patches,
    Shaped,
    ball,
    distance,
    ellipsoid_truth,
    flattened,
    linear_model,
    linear_truth_in_box,
    smooth_network,
    uniform,
)

import dyart
from dyart.boundary import optimality
from dyart.boundary.margins import boundary_value
from dyart.boundary.points import BoundaryPoints, Passes
from dyart.boundary.validation import as_bounds

NORMS = ["linf", "l2"]
DOUBLE = torch.float64


def by_hand(inputs, points, gradient, norm="linf", value=0.0, input_value=1.0, bounds=None, found=True):
    """Return BoundaryPoints made of given rows, with margin and alignment as the search would report them."""
    inputs, points, gradient = (torch.as_tensor(rows, dtype=DOUBLE) for rows in (inputs, points, gradient))
    count = len(inputs)
    value, input_value = (torch.as_tensor(x, dtype=DOUBLE).expand(count) for x in (value, input_value))
    found = torch.as_tensor(found).expand(count)
    inside = input_value > 0
    orientation = torch.where(inside, 1.0, -1.0).to(DOUBLE)
    free = optimality.free_coordinates(points, gradient, orientation, *as_bounds(bounds, inputs))
    alignment = optimality.alignment(points - inputs, gradient, orientation, free, norm)
    return BoundaryPoints(
        inputs=inputs,
        labels=torch.zeros(count, dtype=torch.long),
        norm=norm,
        boundary="exact",
        beta=5.0,
        bounds=bounds,
        points=points,
        margin=torch.where(found, orientation * distance(points, inputs, norm), torch.nan),
        value=value,
        gradient=gradient,
        correct=inside,
        inside=inside,
        found=found,
        alignment=torch.where(found, alignment, torch.nan),
        rival=torch.where(found, 1, -1),
        input_value=input_value,
        cost=Passes(1, 0),
    )


def moved(found, model, points):
    """Return ``found`` with other points: value, gradient, margin and alignment measured anew."""
    leaf = points.clone().requires_grad_()
    value = boundary_value(model(leaf), found.labels, found.boundary, found.beta)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    margin = distance(points, found.inputs, found.norm).to(found.margin) * found.orientation
    changed = dataclasses.replace(found, points=points, value=value.detach(), gradient=gradient, margin=margin)
    alignment = optimality.alignment(changed.displacement, gradient, changed.orientation, changed.free, changed.norm)
    return dataclasses.replace(changed, alignment=alignment)


def at_many_bounds(shape, seed, dtype=torch.float32):
    """Return inputs in the unit box, half of whose features lie at a bound, as the pixels of many images do."""
    inputs = uniform(shape, seed, dtype=dtype)
    return torch.where(uniform(shape, seed + 1) < 0.5, inputs.round(), inputs)


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
    low, high = torch.tensor(0.0, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE)
    inside, outside = torch.ones(1, dtype=DOUBLE), -torch.ones(1, dtype=DOUBLE)
    free = optimality.free_coordinates(points, gradient, inside, low, high)
    assert free.tolist() == [[False, True, True, True, False, True, True]]
    free = optimality.free_coordinates(points, gradient, outside, low, high)
    assert free.tolist() == [[True, False, True, False, True, True, True]]
    assert optimality.free_coordinates(points, gradient, inside, None, None).all()


@pytest.mark.parametrize("span", [1.0, 255.0])
def test_rounding_next_to_a_bound_counts_as_being_there(span):
    points = torch.tensor([[5e-7, 2e-6, 1 - 5e-7, 1 - 2e-6]], dtype=DOUBLE) * span
    gradient = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=DOUBLE)
    bounds = (torch.tensor(0.0, dtype=DOUBLE), torch.tensor(span, dtype=DOUBLE))
    free = optimality.free_coordinates(points, gradient, torch.ones(1, dtype=DOUBLE), *bounds)
    assert free.tolist() == [[False, True, False, True]]


def test_an_open_side_pins_nothing():
    points = torch.tensor([[0.0, 7.0]], dtype=DOUBLE)
    gradient = torch.tensor([[1.0, -1.0]], dtype=DOUBLE)
    bounds = (torch.tensor(0.0, dtype=DOUBLE), torch.tensor(math.inf, dtype=DOUBLE))
    free = optimality.free_coordinates(points, gradient, torch.ones(1, dtype=DOUBLE), *bounds)
    assert free.tolist() == [[False, True]]


# Multipliers.


@pytest.mark.parametrize("norm", [*NORMS, "l1"])
def test_multiplier_is_how_the_distance_to_a_moved_plane_changes(norm):
    """In a box, dR / d(offset) = 1 / lambda; R is solved anew by scipy for two neighbouring offsets."""
    model = linear_model(2, 8, seed=5, dtype=DOUBLE)
    inputs = at_many_bounds((16, 8), 8, DOUBLE)
    labels = model(inputs).argmax(dim=1)
    truth = linear_truth_in_box(model, inputs, labels, norm, 0.0, 1.0)
    step = 1e-3
    shifted = []
    for sign in (1, -1):
        neighbour = copy.deepcopy(model)
        with torch.no_grad():
            neighbour.bias[0] += sign * step
        shifted.append(linear_truth_in_box(neighbour, inputs, labels, norm, 0.0, 1.0).margin)
    # A larger bias of class 0 moves the plane away from its own examples and towards those of class 1.
    rate = (shifted[0] - shifted[1]) / (2 * step) * torch.where(labels == 0, 1.0, -1.0)
    reachable = truth.margin.isfinite() & shifted[0].isfinite() & shifted[1].isfinite()
    assert int(reachable.sum()) >= 12
    gradient = (model.weight[labels] - model.weight[1 - labels]).detach()
    plus, bounds = torch.ones(16, dtype=DOUBLE), (torch.tensor(0.0), torch.tensor(1.0))
    free = optimality.free_coordinates(truth.points, gradient, plus, *bounds)
    slope = optimality.multiplier(truth.points - inputs, gradient, free, norm)
    # Where a coordinate reaches its bound between the two offsets the rate has a jump: leave such rows out.
    smooth = reachable & ((rate * slope - 1).abs() < 1e-4)
    assert int(smooth.sum()) >= int(reachable.sum()) - 2
    # The paper's formula does not know the box, and would be off.
    naive = torch.linalg.vector_norm(gradient, ord={"linf": 1, "l2": 2, "l1": math.inf}[norm], dim=1)
    assert int(((rate * naive - 1).abs()[smooth] > 0.05).sum()) >= 5
    # The search reports the same number.
    found = dyart.closest_boundary_points(model, inputs, labels, norm, tol=1e-9, steps=200)
    reported = (found.multiplier() / slope - 1).abs()[smooth] < 1e-2
    assert float(reported.double().mean()) > 0.7
    torch.testing.assert_close(found.multiplier(box_aware=False)[smooth], naive[smooth])


@pytest.mark.parametrize("bounds", [None, (0.25, 0.7)])
@pytest.mark.parametrize("norm", NORMS)
def test_multiplier_is_how_the_distance_to_a_curved_boundary_changes(norm, bounds):
    """phi + t is an ellipsoid too, larger by sqrt(1 + t): the truth is known for every t."""
    features = 5
    axes = torch.linspace(0.35, 0.6, features, dtype=DOUBLE)
    model = Ellipsoid(torch.full((features,), 0.5), axes)
    inputs = 0.5 + uniform((40, features), 9, -0.2, 0.2, DOUBLE)
    step = 1e-5
    up, down = (
        ellipsoid_truth(Ellipsoid(model.center, axes * (1 + t) ** 0.5), inputs, norm, bounds).margin
        for t in (step, -step)
    )
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=bounds, tol=1e-9, steps=200)
    assert (found.labels == 0).all()
    rate = (up - down) / (2 * step)
    rows = rate.isfinite() & found.found & (found.alignment > 0.9999)
    assert int(rows.sum()) >= 12
    error = (rate * found.multiplier() - 1).abs()[rows]
    assert float(error.median()) < 1e-3
    assert float(error.max()) < 0.05
    naive = (rate * found.multiplier(box_aware=False) - 1).abs()[rows]
    assert float(naive.median()) < 1e-3 if bounds is None else float(naive.median()) > 0.05


def test_multiplier_by_hand():
    displacement = torch.tensor([[1.0, 2.0, 2.0]], dtype=DOUBLE)
    gradient = torch.tensor([[-3.0, -4.0, 12.0]], dtype=DOUBLE)
    free = torch.tensor([[True, True, False]])

    def multiplier(norm, free):
        return float(optimality.multiplier(displacement, gradient, free, norm))

    assert multiplier("linf", free) == pytest.approx(7)
    assert multiplier("l2", free) == pytest.approx(5 * 3 / 5**0.5)
    assert multiplier("l1", free) == pytest.approx(4)
    everything = torch.ones_like(free)
    assert multiplier("linf", everything) == pytest.approx(19)
    assert multiplier("l2", everything) == pytest.approx(13)
    assert multiplier("l1", everything) == pytest.approx(12)
    # Only pinned coordinates moved: the slope itself, not a division by zero.
    still = torch.tensor([[0.0, 0.0, 2.0]], dtype=DOUBLE)
    assert float(optimality.multiplier(still, gradient, free, "l2")) == pytest.approx(5)


# The paper's conditions.


def test_condition_a_is_the_residual():
    found = by_hand([[0.0]] * 4, [[1.0]] * 4, [[-1.0]] * 4, value=[-0.05, -0.1, 0.1, -0.11])
    assert found.conditions.a.tolist() == [True, True, True, False]
    assert found.check_conditions(residual=0.05).a.tolist() == [True, False, False, False]


def test_conditions_b_and_c_for_linf_by_hand():
    """R = 1 and J = {0, 1, 2}; two of J move against the gradient, one of the two others has a small gradient."""
    found = by_hand([[0.0] * 5], [[1.0, -1.0, 0.9, 0.5, 0.0]], [[-2.0, 1.0, 0.5, 0.05, 0.3]])

    def check(**thresholds):
        conditions = found.check_conditions(**thresholds)
        return bool(conditions.b), bool(conditions.c)

    assert check() == (False, False)
    assert check(opposed=0.6) == (True, False)
    assert check(opposed=2 / 3) == (False, False)
    # J = {0, 1}, both right; then the third is one of three others, of which one is small.
    assert check(full=0.95) == (True, False)
    assert check(full=0.95, small_share=0.3) == (True, True)
    assert check(small_share=0.4) == (False, True)
    assert check(small=0.31) == (False, True)
    # J = {0, 1, 2, 3} leaves one other, with gradient 0.3.
    assert check(full=0.5, small=0.2) == (False, False)
    assert check(full=0.5, small=0.4) == (False, True)


def test_condition_b_needs_more_than_the_share():
    gradient = -torch.ones(2, 10)
    gradient[0, 0] = 1.0
    found = by_hand(torch.zeros(2, 10), torch.ones(2, 10), gradient)
    assert found.conditions.b.tolist() == [False, True]
    # A zero gradient is not against it.
    gradient[0, 0] = 0.0
    assert by_hand(torch.zeros(2, 10), torch.ones(2, 10), gradient).conditions.b.tolist() == [True, True]


def test_condition_c_holds_when_every_coordinate_is_at_the_full_distance():
    assert by_hand([[0.0, 0.0]], [[1.0, -0.9]], [[-1.0, 1.0]]).conditions.c.all()


def test_condition_b_for_l2_is_the_cosine():
    """d = (3, 4) and g = -(4, 3): cosine 24/25."""
    found = by_hand([[0.0, 0.0]], [[3.0, 4.0]], [[-4.0, -3.0]], norm="l2")
    assert found.conditions.b.all()
    assert found.check_conditions(cosine=0.95).b.all()
    assert not found.check_conditions(cosine=0.97).b.any()
    assert found.conditions.c.all()
    worse = by_hand([[0.0, 0.0]], [[3.0, 4.0]], [[-4.0, -1.0]], norm="l2")
    # 16 / (sqrt(17) 5) = 0.776.
    assert not worse.conditions.b.any()


def test_conditions_leave_pinned_coordinates_out():
    """The third feature sits at the bound ahead of it: it could not move, and says nothing."""
    given = {"inputs": [[0.4, 0.4, 0.0]], "points": [[0.6, 0.2, 0.0]], "gradient": [[-1.0, 1.0, 9.0]]}
    assert by_hand(**given, bounds=(0.0, 1.0)).conditions.c.all()
    assert not by_hand(**given).conditions.c.any()
    # At the full distance and pinned, against the gradient or not: the same.
    given = {"inputs": [[0.5, 0.5]], "points": [[0.7, 0.3]], "gradient": [[-1.0, 1.0]]}
    assert by_hand(**given, bounds=(0.3, 1.0)).conditions.b.all()


def test_conditions_are_mirrored_outside_the_class():
    given = {"inputs": [[0.0, 0.0]], "points": [[1.0, -1.0]], "gradient": [[1.0, -1.0]]}
    assert by_hand(**given, input_value=-1.0).conditions.b.all()
    assert not by_hand(**given, input_value=1.0).conditions.b.any()


def test_conditions_are_false_where_nothing_was_found():
    found = by_hand([[0.0, 0.0]] * 2, [[1.0, -1.0]] * 2, [[-1.0, 1.0]] * 2, found=[True, False])
    for condition in found.conditions:
        assert condition.tolist() == [True, False]


def test_conditions_a_and_b_hold_at_converged_points_of_a_network():
    model, inputs = smooth_network(40, 5, seed=1, gain=1.5), at_many_bounds((30, 40), 1)
    for norm in NORMS:
        found = dyart.closest_boundary_points(model, inputs, norm=norm, tol=1e-5)
        assert found.conditions.a.all()
        assert found.conditions.b.all()


# The paper's lemma 2.


def test_lemma_2_at_the_closest_points_of_a_ball_seen_from_outside():
    """Features in J move against the gradient's pull; the others rest where the gradient is zero."""
    model, inputs = ball(torch.zeros(6), 0.3), uniform((30, 6), 4, -1, 1, DOUBLE)
    found = dyart.closest_boundary_points(model, inputs, bounds=None, tol=1e-7, steps=300)
    assert (found.labels == 1).all()
    j = found.displacement.abs() >= 0.999 * found.margin[:, None]
    assert int((~j).sum()) >= 60
    assert bool((found.gradient * found.displacement < 0)[j].all())
    relative = found.gradient.abs() / found.gradient.abs().amax(dim=1, keepdim=True)
    assert float(relative[~j].median()) < 0.05
    assert float(relative[~j].quantile(0.9)) < 0.2
    assert float(relative[j].median()) > 0.4
    # At the true closest points it holds to the last digit.
    exact = moved(found, model, ellipsoid_truth(model, inputs, "linf").points)
    j = exact.displacement.abs() >= (1 - 1e-9) * exact.margin[:, None]
    assert float(exact.gradient.abs()[~j].max()) < 1e-9
    assert bool((exact.gradient * exact.displacement < 0)[j].all())


@pytest.mark.parametrize("outside", [False, True])
def test_lemma_2_and_its_remark_at_points_of_a_smooth_network(outside):
    """From inside the class all features in J move against the gradient, from outside along it."""
    model, inputs = smooth_network(30, 2, seed=4, gain=1.5), uniform((30, 30), 10)
    predicted = model(inputs).argmax(dim=1)
    labels = 1 - predicted if outside else predicted
    found = dyart.closest_boundary_points(model, inputs, labels, bounds=None, tol=1e-5, signed=outside)
    assert found.found.all()
    j = found.displacement.abs() >= 0.999 * found.margin.abs()[:, None]
    product = found.gradient * found.displacement * (-1 if outside else 1)
    assert bool((product < 0)[j].all())
    # Here nearly all features have a gradient, and so nearly all are in J.
    assert float(j.double().mean()) > 0.9
    relative = found.gradient.abs() / found.gradient.abs().amax(dim=1, keepdim=True)
    assert not j.all()
    assert float(relative[~j].max()) < 0.1


# Shocks.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("slope", "shock"), [(1e-3, True), (0.1, False), (1.0, False)])
def test_a_margin_function_that_flattens_at_the_boundary_is_a_shock(norm, slope, shock):
    """phi = (1 - s) h^3 + s h: at the boundary its slope is s, on the way there (1 - s) h^2 + s on average."""
    model = Shaped(edge=0.8, shape=flattened(slope))
    inputs = uniform((20, 4), 11, 0.0, 0.4, DOUBLE)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=None, tol=1e-7, steps=100)
    assert found.found.all()
    assert (found.shock == shock).all()
    height = 0.8 - inputs.mean(dim=1)
    ratio = slope / ((1 - slope) * height**2 + slope)
    for row, limit in enumerate(ratio.tolist()):
        assert bool(found[row].is_shock(1.05 * limit))
        assert not bool(found[row].is_shock(0.95 * limit))


def test_ordinary_points_are_no_shocks():
    for norm in NORMS:
        found = dyart.closest_boundary_points(Patches(), uniform((40, 2), 12), norm=norm)
        assert found.found.all()
        assert not found.shock.any()


def test_what_was_not_found_is_no_shock():
    assert not dyart.closest_boundary_points(Constant(), uniform((5, 2), 12)).shock.any()


# Words.


WORDS = ["locally optimal", "not closest", "off the boundary", "flat", "not found", "not inside"]


def one_of_each():
    """Return six examples in the plane, one for every verdict, with phi = 1 at the input where it is inside."""
    up, right = [-1.0, 1.0], [-1.0, -0.5]
    return by_hand(
        inputs=[[0.0, 0.0]] * 6,
        points=[[1.0, -1.0]] * 4 + [[0.0, 0.0]] * 2,
        gradient=[up, right, up, [-1e-3, 1e-3], [0.0, 0.0], [0.0, 0.0]],
        value=[-0.01, -0.01, -0.5, -0.01, 1.0, -2.0],
        input_value=[1.0] * 5 + [-2.0],
        found=[True] * 4 + [False] * 2,
    )


def test_verdict_names_every_kind_of_row():
    assert one_of_each().verdict == WORDS
    assert one_of_each().optimal.tolist() == [True, False, False, True, False, False]


def test_the_worst_reason_is_the_one_that_is_named():
    """Off the boundary and not closest: off the boundary. Flat, too: flat."""
    both = by_hand([[0.0, 0.0]] * 2, [[1.0, -1.0]] * 2, [[-1.0, -1.0], [-1e-3, -1e-3]], value=[-0.5, -0.5])
    assert both.verdict == ["off the boundary", "flat"]


def test_verdict_of_a_signed_margin_is_the_one_of_its_point():
    found = by_hand([[0.0, 0.0]], [[1.0, -1.0]], [[1.0, -1.0]], value=0.01, input_value=-1.0)
    assert found.verdict == ["locally optimal"]
    assert "margin -1 " in found.explain(0)


def test_explain_says_what_is_known():
    found = one_of_each()
    for row, word in enumerate(WORDS):
        assert found.explain(row).startswith(f"example {row}, class 0: {word}; ")
    best = found.explain(0)
    assert "linf margin 1 towards class 1" in best
    assert "phi at the point -0.01" in best
    assert "alignment 1.000" in best
    assert "slope 2" in best
    assert "alignment 0.333" in found.explain(1)
    assert "phi at the point -0.5" in found.explain(2)
    assert "slope 0.002" in found.explain(3)
    assert "more steps or restarts" in found.explain(4)
    assert "margin" not in found.explain(4)
    assert "phi is -2 at the input" in found.explain(5)
    assert "no margin" in found.explain(5)
    soft = dataclasses.replace(found, boundary="soft")
    assert "Phi at the point" in soft.explain(0)
    assert "Phi is -2" in soft.explain(5)


def test_verdicts_of_real_searches():
    model, inputs = Patches(), uniform((12, 2), 12)
    labels = model(inputs).argmax(dim=1)
    labels[3] = (labels[3] + 1) % 3
    found = dyart.closest_boundary_points(model, inputs, labels, tol=1e-4)
    assert found.verdict.count("locally optimal") >= 10
    assert found.verdict[3] == "not inside"
    assert found.explain(3).startswith(f"example 3, class {int(labels[3])}: not inside; phi is -")
    nothing = dyart.closest_boundary_points(Constant(), inputs)
    assert set(nothing.verdict) == {"not found"}
    flat = dyart.closest_boundary_points(Shaped(0.8, flattened(1e-3)), inputs / 2, tol=1e-7, steps=100)
    assert set(flat.verdict) == {"flat"}
    hasty = dyart.closest_boundary_points(ball([0.5, 0.5], 0.4), inputs, steps=2, restarts=3)
    assert "off the boundary" in hasty.verdict or "not closest" in hasty.verdict
