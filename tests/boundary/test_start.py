"""Where a search starts: at given points, which it never makes worse, or at random ones."""

import copy

import pytest
import torch
from plane_problems import Patches
from problems import Watched, smooth_network, uniform
from search_checks import BOUNDARIES, value_at_points

import dyart

NORMS = ["linf", "l2", "l1"]


def after_a_small_step(model, size=0.02):
    """Return the model with every parameter changed by a few per cent."""
    generator = torch.Generator().manual_seed(1)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1 + size * torch.randn(parameter.shape, generator=generator))
    return changed


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_five_warm_steps_reach_what_fifteen_cold_ones_do(norm, boundary):
    old, inputs = smooth_network(20, 5, seed=0), uniform((60, 20), 3)
    options = {"norm": norm, "boundary": boundary}
    before = dyart.closest_boundary_points(old, inputs, restarts=4, **options)
    model = after_a_small_step(old)
    warm = dyart.closest_boundary_points(model, inputs, before.labels, steps=5, start=before.points, **options)
    cold = dyart.closest_boundary_points(model, inputs, before.labels, steps=15, **options)
    both = cold.found & before.found
    assert int(both.sum()) >= 40
    assert bool(warm.found[both].all())
    ratio = (warm.margin / cold.margin)[both]
    assert float(ratio.median()) < 1.0001
    # A few have a closer place elsewhere now, which the warm search does not look for.
    assert float(ratio.mean()) < 1.01
    # No rivals are compared.
    assert warm.cost == (6, 5)
    assert cold.cost.backward > 15


@pytest.mark.parametrize("solver", ["fast", "apgd", "fab"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_start_across_the_boundary_is_never_made_worse(norm, solver):
    model, inputs = smooth_network(20, 5, seed=0), uniform((40, 20), 3)
    good = dyart.closest_boundary_points(model, inputs, norm=norm, steps=100, restarts=4)
    again = dyart.closest_boundary_points(
        model, inputs, good.labels, norm, steps=3, start=good.points, solver=solver, batch_size=16
    )
    assert bool(again.found[good.found].all())
    assert bool((again.margin <= good.margin + 1e-7)[good.found].all())
    assert bool((value_at_points(model, again)[again.found] < 0).all())


@pytest.mark.parametrize("steps", [12, 40])  # alone, and in a race
@pytest.mark.parametrize("norm", NORMS)
def test_with_one_more_restart_it_is_never_worse_than_without(norm, steps):
    """The restarts after the first are the searches without a start."""
    model, inputs = smooth_network(20, 5, seed=0), uniform((40, 20), 3)
    options = {"norm": norm, "steps": steps}
    without = dyart.closest_boundary_points(model, inputs, **options)
    poor = (inputs + 0.3).clamp(0, 1)
    start = dyart.closest_boundary_points(model, inputs, restarts=2, start=poor, **options)
    assert bool((start.margin <= without.margin + 1e-6)[without.found].all())


def test_a_random_start_is_another_way_that_depends_on_the_seed_alone():
    model, inputs = smooth_network(20, 5, seed=0), uniform((40, 20), 3)

    def points(**options):
        found = dyart.closest_boundary_points(model, inputs, steps=20, **options)
        assert bool((value_at_points(model, found)[found.found] < 0).all())
        return found

    at_input, drawn = points(), points(start="random")
    assert torch.equal(points(start="random").points, drawn.points)
    assert torch.equal(points(start="random", batch_size=7).found, drawn.found)
    assert not torch.equal(points(start="random", seed=1).points, drawn.points)
    assert float((drawn.margin / at_input.margin).nanmedian()) < 1.05
    assert bool(drawn.found[at_input.found].all())


def test_a_random_start_without_compared_rivals_costs_one_evaluation_more():
    model = Watched(smooth_network(12, 4, seed=2))
    found = dyart.closest_boundary_points(
        model, uniform((10, 12), 4), steps=6, rivals=1, start="random", validate=False
    )
    assert found.cost == (len(model.forward_sizes), model.backward_passes) == (8, 7)


@pytest.mark.parametrize(
    ("start", "error", "words"),
    [
        ("far", TypeError, "None, 'random' or a tensor of points like inputs, got 'far'"),
        (torch.zeros(3, 2), ValueError, r"\(4, 2\).*got \(3, 2\)"),
        (torch.zeros(4, 2, dtype=torch.long), ValueError, "floating point.*int64"),
        (torch.full((4, 2), torch.nan), ValueError, "start: .*NaN"),
        (torch.full((4, 2), 1.5), ValueError, "start: .*outside the bounds"),
    ],
)
def test_bad_starts_are_named(start, error, words):
    with pytest.raises(error, match=words):
        dyart.closest_boundary_points(Patches(), uniform((4, 2), 7), start=start)
