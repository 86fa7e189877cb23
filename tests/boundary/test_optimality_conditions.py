"""How good a point is: multipliers, the paper's conditions and its lemma 2."""

import copy
import math

import pytest
import torch
from optimality_cases import DOUBLE, NORMS, at_many_bounds, by_hand, moved
from problems import Ellipsoid, ball, ellipsoid_truth, linear_model, linear_truth_in_box, smooth_network, uniform

import dyart
from dyart.boundary import optimality

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
    free = optimality.free_coordinates(truth.points - inputs, truth.points, gradient, plus, *bounds)
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
    assert int(rows.sum()) >= 10  # in the box, in l2, the truth is known for 14 of the 40
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
