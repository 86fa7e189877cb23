"""Curved boundaries with known margins, and what the search promises whatever the model."""

import math

import pytest
import torch
from problems import (
    Constant,
    Ellipsoid,
    Patches,
    Shaped,
    Strip,
    Watched,
    Wave,
    Xor,
    ball,
    distance,
    ellipsoid_truth,
    kinked,
    linear_model,
    plane_truth,
    smooth_network,
    uniform,
    wave_truth,
    xor_truth,
)

import dyart
from dyart.boundary.margins import boundary_value

NORMS = ["linf", "l2"]
BOUNDARIES = ["exact", "soft"]
ALL_NORMS = [*NORMS, "l1"]
SQUARES = {
    "no box": None,
    "unit square": (0.0, 1.0),
    "per feature": (torch.tensor([0.1, 0.0]), torch.tensor([0.7, 0.8])),
}


def assert_margins(found, truth, relative, rounding=1e-5):
    """The margin is an upper bound of the true one up to rounding, and a good one."""
    excess = found.margin.double() - truth
    assert bool(found.found.all())
    assert float(excess.min()) >= -rounding
    assert float((excess - relative * truth).max()) <= rounding


def value_at_points(model, found):
    with torch.no_grad():
        return boundary_value(model(found.points), found.labels, found.boundary, found.beta)


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


def long_ellipsoid(features):
    return Ellipsoid(torch.full((features,), 0.45), torch.linspace(0.25, 1.0, features) * 0.5 * features**0.5)


def around(model, count):
    """Return inputs on rays from the centre, from 0.4 to 1.4 times as far out as the boundary."""
    rays = uniform((count, len(model.axes)), 3, -1, 1, torch.float64)
    share = uniform((count, 1), 4, 0.4, 1.4, torch.float64)
    return model.center + rays * share / (rays / model.axes).norm(dim=1, keepdim=True)


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


# Restarts, chunks, seeds.


@pytest.mark.parametrize("tol", [None, 1e-5])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_more_restarts_never_make_the_margin_larger(norm, boundary, tol):
    model, inputs = smooth_network(20, 5, seed=0), uniform((60, 20), 3)
    options = {"norm": norm, "boundary": boundary, "tol": tol, "steps": 20}
    # With tol the closest point before the polish need not be the closest one after it.
    before = dyart.closest_boundary_points(model, inputs, **options)
    first = before
    for restarts in (2, 4, 7):
        after = dyart.closest_boundary_points(model, inputs, restarts=restarts, **options)
        assert bool(after.found[before.found].all())
        growth = (after.margin - before.margin)[before.found]
        slack = 1e-6 if tol is None else 1e-3 * before.margin[before.found]
        assert bool((growth <= slack).all())
        before = after
    # They are worth their passes, or the test shows nothing.
    assert bool((before.margin < 0.99 * first.margin).any())


@pytest.mark.parametrize("tol", [None, 1e-4])
@pytest.mark.parametrize("restarts", [1, 6])
@pytest.mark.parametrize("norm", NORMS)
def test_chunks_change_nothing(norm, restarts, tol):
    model = smooth_network(12, 4, seed=2, dtype=torch.float64)
    inputs = uniform((7, 12), 4, dtype=torch.float64)
    labels = model(inputs).argmax(dim=1)
    labels[[0, 3]] = (labels[[0, 3]] + 1) % 4
    options = {"norm": norm, "steps": 8, "restarts": restarts, "tol": tol, "seed": 3}
    whole, *parts = (
        dyart.closest_boundary_points(model, inputs, labels, batch_size=size, **options) for size in (None, 1, 3)
    )
    for part in parts:
        for name in ("points", "margin", "value", "gradient", "alignment"):
            one, other = getattr(part, name), getattr(whole, name)
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, equal_nan=True)
        for name in ("rival", "found", "inside", "correct"):
            assert torch.equal(getattr(part, name), getattr(whole, name))


@pytest.mark.parametrize("size", [1, 3])
def test_chunks_change_no_random_start(size):
    """A draw belongs to the example's index, not to its place in a chunk or among the examples with a margin."""
    inputs = torch.linspace(-2.94, 2.94, 20, dtype=torch.float64)
    labels = Wave()(inputs).argmax(dim=1)
    options = {"bounds": None, "steps": 4, "restarts": 3}
    whole = dyart.closest_boundary_points(Wave(), inputs, labels, **options)
    # Without the draws many would be elsewhere: the test sees them.
    assert int((whole.points != dyart.closest_boundary_points(Wave(), inputs, seed=1, **options).points).sum()) >= 4
    chunked = dyart.closest_boundary_points(Wave(), inputs, labels, batch_size=size, **options)
    torch.testing.assert_close(chunked.points, whole.points, rtol=0, atol=1e-12)
    wrong = torch.arange(20) % 4 == 0
    fewer = dyart.closest_boundary_points(Wave(), inputs, torch.where(wrong, 1 - labels, labels), **options)
    torch.testing.assert_close(fewer.points[~wrong], whole.points[~wrong], rtol=0, atol=1e-12)


def test_every_example_of_a_batch_is_searched_as_if_alone():
    """A draw depends on an example's index, so that the first example of a batch is the same batch of one."""
    model = smooth_network(12, 4, seed=2, dtype=torch.float64)
    inputs = uniform((6, 12), 4, dtype=torch.float64)
    many = dyart.closest_boundary_points(model, inputs, steps=12, restarts=6)
    one = dyart.closest_boundary_points(model, inputs[:1], steps=12, restarts=6)
    torch.testing.assert_close(one.points, many.points[:1], rtol=1e-8, atol=1e-10)


def test_the_seed_matters_for_random_starts_alone():
    model, inputs = smooth_network(12, 4, seed=2), uniform((20, 12), 4)

    def points(restarts, seed):
        return dyart.closest_boundary_points(model, inputs, steps=8, restarts=restarts, seed=seed).points

    # Three searches aim at one of the other classes each: nothing is drawn.
    assert torch.equal(points(1, 0), points(1, 1))
    assert torch.equal(points(3, 0), points(3, 1))


def test_random_starts_are_a_function_of_the_seed_alone():
    inputs = torch.linspace(-2.94, 2.94, 50)

    def points(seed):
        return dyart.closest_boundary_points(Wave(), inputs, bounds=None, steps=4, restarts=3, seed=seed).points

    drawn = points(0)
    assert torch.equal(points(0), drawn)
    assert not torch.equal(points(1), drawn)
    # Neither read nor moved: the global generator.
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(points(0), drawn)
    assert torch.equal(torch.get_rng_state(), before)


# tol.


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_tol_brings_the_value_of_a_network_to_the_boundary(norm, boundary, tol, bounds):
    model, inputs = smooth_network(20, 5, seed=1, gain=6.0), uniform((40, 20), 3)
    options = {"norm": norm, "boundary": boundary, "bounds": bounds, "steps": 12}
    rough = dyart.closest_boundary_points(model, inputs, **options)
    found = dyart.closest_boundary_points(model, inputs, tol=tol, **options)
    assert torch.equal(found.found, rough.found)
    has = found.found
    assert bool((rough.value[has] < -1e-4).any())
    assert bool((found.value[has] <= 0).all())
    assert float(found.value[has].min()) >= -tol
    assert bool((found.margin[has] <= rough.margin[has]).all())


@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("gentle", "steep"), [(0.1, 50.0), (0.02, 1.0), (50.0, 0.1)])
@pytest.mark.parametrize("norm", NORMS)
def test_tol_holds_where_the_slope_jumps_at_the_boundary(norm, gentle, steep, tol):
    """Networks of ReLUs have such kinks. A secant through both sides creeps there: it must not stop early."""
    model = Shaped(edge=0.5, shape=kinked(gentle, steep))
    inputs = uniform((40, 3), 9, 0.0, 0.49, torch.float64)
    found = dyart.closest_boundary_points(model, inputs, norm=norm, tol=tol, steps=20)
    assert found.found.all()
    assert float(found.value.max()) <= 0
    assert float(found.value.min()) >= -tol
    assert_margins(found, model.truth(inputs, norm), relative=1e-3, rounding=tol / min(gentle, steep))


@pytest.mark.parametrize("norm", NORMS)
def test_tol_keeps_signed_points_on_their_own_side(norm):
    model = ball(torch.full((4,), 0.5), 0.4)
    inputs = around(model, 30).clamp(0, 1).float()
    labels = torch.zeros(30, dtype=torch.long)
    found = dyart.closest_boundary_points(model, inputs, labels, norm, tol=1e-5, signed=True, restarts=2)
    truth = ellipsoid_truth(model, inputs, norm)
    inside = truth.rival == 1
    assert torch.equal(found.inside, inside)
    assert 5 <= int(inside.sum()) <= 25
    assert bool((found.value[inside] <= 0).all())
    assert bool((found.value[~inside] >= 0).all())
    assert float(found.value.abs().max()) <= 1e-5
    signed = torch.where(inside, truth.margin, -truth.margin)
    torch.testing.assert_close(found.margin.double(), signed, rtol=1e-2, atol=1e-4)


# Cost.


@pytest.mark.parametrize("classes", [2, 3, 50])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("rivals", [1, 9])
def test_a_step_is_one_forward_and_one_backward_pass_whatever_the_number_of_classes(
    classes, boundary, restarts, rivals
):
    costs = []
    for steps in (7, 12):
        model = Watched(linear_model(classes, 6, seed=3))
        options = {"boundary": boundary, "beta": 50.0, "restarts": restarts, "rivals": rivals}
        found = dyart.closest_boundary_points(model, uniform((9, 6), 4, -1, 1), bounds=None, steps=steps, **options)
        assert found.cost == (len(model.forward_sizes), model.backward_passes)
        costs.append(found.cost)
    assert costs[1].forward - costs[0].forward == 5 * restarts
    assert costs[1].backward - costs[0].backward == 5 * restarts
    # Beside the steps: one backward pass per rival compared, if any are, and one evaluation of the result.
    compared = min(rivals, classes - 1)
    compared = compared if compared > 1 else 0
    assert compared <= costs[0].backward - 7 * restarts <= compared + 1
    assert 1 <= costs[0].forward - 7 * restarts <= 2 + (compared > 0)


@pytest.mark.parametrize("norm", NORMS)
def test_cost_counts_the_passes_of_the_polish_too(norm):
    costs = []
    for tol in (None, 1e-5):
        model = Watched(smooth_network(12, 4, seed=2))
        found = dyart.closest_boundary_points(model, uniform((10, 12), 4), norm=norm, steps=6, restarts=2, tol=tol)
        assert found.cost == (len(model.forward_sizes), model.backward_passes)
        costs.append(found.cost)
    # A few gradient evaluations, and forward passes until the slowest example is there.
    assert 1 <= costs[1].backward - costs[0].backward <= 3
    assert 3 <= costs[1].forward - costs[0].forward <= 43


def test_cost_is_per_example_and_not_per_chunk():
    model = Watched(smooth_network(12, 4, seed=2))
    found = dyart.closest_boundary_points(model, uniform((10, 12), 4), steps=6, batch_size=5)
    assert set(model.forward_sizes) == {5}
    assert found.cost == (len(model.forward_sizes) / 2, model.backward_passes / 2)


def test_an_empty_batch_costs_nothing():
    model = Watched(smooth_network(12, 4, seed=2))
    found = dyart.closest_boundary_points(model, torch.zeros(0, 12))
    assert len(found) == 0
    assert found.cost == (0, 0)
    assert found.margin.shape == (0,)


# Labels.


def test_without_labels_the_predictions_count():
    model, inputs = Patches(), uniform((20, 2), 7)
    found = dyart.closest_boundary_points(model, inputs)
    assert torch.equal(found.labels, model(inputs).argmax(dim=1))
    assert found.correct.all()
    assert found.inside.all()
    given = dyart.closest_boundary_points(model, inputs, found.labels)
    assert torch.equal(given.points, found.points)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_misclassified_examples_have_no_margin_and_take_no_part(batch_size):
    model = Watched(Patches())
    inputs = uniform((10, 2), 7)
    right = Patches()(inputs).argmax(dim=1)
    wrong = torch.arange(10) % 3 == 0
    labels = torch.where(wrong, (right + 1) % 3, right)
    found = dyart.closest_boundary_points(model, inputs, labels, steps=5, tol=1e-4, batch_size=batch_size)
    assert torch.equal(found.correct, ~wrong)
    assert torch.equal(found.inside, ~wrong)
    assert torch.equal(found.found, ~wrong)
    assert found.margin[wrong].isnan().all()
    assert torch.equal(found.points[wrong], inputs[wrong])
    assert (found.value[wrong] < 0).all()
    assert (found.gradient[wrong] == 0).all()
    # Ten examples once, and from then on the six that have a margin.
    first, size = (1, 6) if batch_size is None else (3, 4)
    assert sum(model.forward_sizes[:first]) == 10
    assert max(model.forward_sizes[first:]) == size
    rows = [4, 2] if batch_size else [6]
    assert sorted(set(model.forward_sizes[first:]), reverse=True) == rows
    alone = dyart.closest_boundary_points(Patches(), inputs[~wrong], labels[~wrong], steps=5, tol=1e-4)
    torch.testing.assert_close(found.margin[~wrong], alone.margin)


def test_correct_and_inside_differ_near_a_soft_boundary():
    """Phi < 0 < phi happens close to where three classes meet: right, but without a soft margin."""
    model = Patches()
    inputs = uniform((400, 2), 12)
    found = dyart.closest_boundary_points(model, inputs, boundary="soft", beta=2.0, steps=3)
    assert found.correct.all()
    between = ~found.inside
    assert 0 < int(between.sum()) < 200
    assert found.margin[between].isnan().all()
    assert (found.input_value[between] <= 0).all()


# Precision, bounds, progress.


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.125, 0.875)])
def test_bfloat16_models_and_inputs_work_and_stay_inside(norm, boundary, bounds):
    model = Patches().bfloat16()
    inputs = uniform((40, 2), 7, *bounds).bfloat16()
    options = {"norm": norm, "boundary": boundary, "bounds": bounds, "restarts": 3, "steps": 15}
    found = dyart.closest_boundary_points(model, inputs, **options)
    full = dyart.closest_boundary_points(Patches(), inputs.float(), found.labels, **options)
    assert found.points.dtype == torch.bfloat16
    assert found.margin.dtype == found.value.dtype == found.gradient.dtype == torch.float32
    assert float(found.points.min()) >= bounds[0]
    assert float(found.points.max()) <= bounds[1]
    assert bool((value_at_points(model, found)[found.found] < 0).all())
    both = found.found & full.found
    assert int(both.sum()) >= 35
    # Eight bits: coordinates near 1 are 1/256 apart, and logits of size 4 are 1/64 apart, with slopes of about 5.
    assert float((found.margin - full.margin)[both].abs().median()) < 0.01
    # A few land at another place of the boundary.
    assert float((found.margin - full.margin)[both].abs().quantile(0.9)) < 0.05
    torch.testing.assert_close(distance(found.points, inputs, norm)[found.found].float(), found.margin[found.found])


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_may_differ_from_feature_to_feature(norm):
    """Features that may not move keep their value; the others do all the work."""
    model = ball(torch.zeros(3), 1.0)
    inputs = torch.tensor([[0.2, 0.1, 0.3], [0.4, -0.2, 0.3]])
    low, high = torch.tensor([-2.0, -2.0, 0.3]), torch.tensor([2.0, 2.0, 0.3])
    found = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=(low, high), tol=1e-6)
    assert torch.equal(found.points[:, 2], inputs[:, 2])
    assert_margins(found, ellipsoid_truth(model, inputs, norm, (low, high)).margin, relative=1e-3)
    # One number on one side, one per feature on the other.
    mixed = dyart.closest_boundary_points(model, inputs, norm=norm, bounds=(-2.0, high), tol=1e-6)
    assert_margins(mixed, ellipsoid_truth(model, inputs, norm, (-2.0, high)).margin, relative=1e-3)


def test_bounds_broadcast_over_an_image():
    """One bound per channel, as [C, 1, 1]."""
    flat = smooth_network(12, 3, seed=4, gain=1.0)
    low, high = torch.tensor([0.0, 0.2, 0.4])[:, None, None], torch.tensor([0.5, 0.7, 1.0])[:, None, None]
    inputs = low + (high - low) * uniform((10, 3, 2, 2), 5)
    found = dyart.closest_boundary_points(lambda x: flat(x.flatten(1)), inputs, bounds=(low, high))
    assert bool(((found.points >= low) & (found.points <= high)).all())
    assert bool((found.points == high).any())
    assert bool((found.points == low).any())
    assert bool(found.found.any())


@pytest.mark.parametrize(("batch_size", "chunks"), [(None, 1), (4, 3)])
def test_progress_counts_up_to_the_total(batch_size, chunks):
    calls = []
    dyart.closest_boundary_points(
        Patches(),
        uniform((10, 2), 7),
        steps=5,
        restarts=3,
        batch_size=batch_size,
        progress=lambda done, total: calls.append((done, total)),
    )
    total = chunks * 3 * 5
    assert calls == [(done, total) for done in range(1, total + 1)]


def test_progress_line_goes_to_stderr_and_ends(capsys):
    dyart.closest_boundary_points(Patches(), uniform((10, 2), 7), steps=5, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "closest boundary points" in err
    assert "5/5" in err
    assert err.endswith("\n")
    dyart.closest_boundary_points(Patches(), uniform((10, 2), 7), steps=5)
    assert capsys.readouterr() == ("", "")


def test_more_steps_than_needed_do_no_harm():
    """The closest point so far is kept: a longer search of the same kind is not worse by more than its overshoot."""
    model, inputs = long_ellipsoid(5), 0.5 + uniform((20, 5), 3, -0.3, 0.3)
    truth = ellipsoid_truth(model, inputs, "l2").margin
    for steps in (10, 30, 100, 300):
        found = dyart.closest_boundary_points(model, inputs, norm="l2", bounds=None, steps=steps)
        assert_margins(found, truth, relative=0.02)
    assert math.isclose(float((found.margin / truth).median()), 1, abs_tol=6e-3)
