"""What the search promises whatever the model: restarts, chunks, tol, cost, labels, precision, progress."""

import math

import pytest
import torch
from plane_problems import Patches
from problems import (
    Shaped,
    Watched,
    Wave,
    ball,
    distance,
    ellipsoid_truth,
    kinked,
    linear_model,
    smooth_network,
    uniform,
)
from search_checks import BOUNDARIES, NORMS, around, assert_margins, long_ellipsoid, value_at_points

import dyart

# Restarts, chunks, seeds.


@pytest.mark.parametrize("tol", [None, 1e-5])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_more_restarts_never_make_the_margin_larger(norm, boundary, tol):
    model, inputs = smooth_network(20, 5, seed=0), uniform((60, 20), 3)
    options = {"norm": norm, "boundary": boundary, "tol": tol, "steps": 12}
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
        options = {"boundary": boundary, "beta": 50.0, "restarts": restarts, "rivals": rivals, "validate": False}
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
        found = dyart.closest_boundary_points(
            model, uniform((10, 12), 4), norm=norm, steps=6, restarts=2, tol=tol, validate=False
        )
        assert found.cost == (len(model.forward_sizes), model.backward_passes)
        costs.append(found.cost)
    # A few gradient evaluations, and forward passes until the slowest example is there.
    assert 1 <= costs[1].backward - costs[0].backward <= 3
    assert 3 <= costs[1].forward - costs[0].forward <= 43


def test_cost_is_per_example_and_not_per_chunk():
    model = Watched(smooth_network(12, 4, seed=2))
    found = dyart.closest_boundary_points(model, uniform((10, 12), 4), steps=6, batch_size=5, validate=False)
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
    options = {"steps": 5, "tol": 1e-4, "batch_size": batch_size, "validate": False}
    found = dyart.closest_boundary_points(model, inputs, labels, **options)
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
