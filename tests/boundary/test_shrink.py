"""The proximal step for p = 1, the search that is made of it, and the rivals it aims at."""

import pytest
import torch
from problems import linear_model, uniform
from scipy.optimize import minimize
from torch import nn

import dyart
from dyart.boundary.margins import rivals_by_logit
from dyart.boundary.problem import Problem
from dyart.boundary.projections import project_onto_hyperplane, shrink_onto_hyperplane
from dyart.boundary.restarts import nearest_rivals
from dyart.boundary.solvers.schedules import COLD, COLD_L1_MANY, MANY, pace_of
from dyart.boundary.solvers.shrinking import curved
from dyart.boundary.validation import as_bounds

DOUBLE = torch.float64
LOW, HIGH = torch.zeros(1, 5, dtype=DOUBLE), torch.ones(1, 5, dtype=DOUBLE)


def cases(count=6):
    origin, gradient = uniform((count, 5), 1, 0.3, 0.7, DOUBLE), uniform((count, 5), 2, -1, 1, DOUBLE)
    return origin, uniform((count, 5), 3, -0.3, 0.3, DOUBLE), gradient, uniform((count,), 4, 0.1, 0.4, DOUBLE)


@pytest.mark.parametrize("boxed", [True, False])
@pytest.mark.parametrize("threshold", [0.02, 0.2])
def test_no_point_of_the_plane_is_a_better_compromise(threshold, boxed):
    origin, start, gradient, offset = cases()
    box = (LOW, HIGH) if boxed else ()
    z = shrink_onto_hyperplane(start, gradient, offset, torch.full_like(offset, threshold), origin, *box)
    torch.testing.assert_close(offset + (gradient * z).sum(dim=1), torch.zeros_like(offset))
    for row in range(len(z)):
        x, d, g = origin[row].numpy(), start[row].numpy(), gradient[row].numpy()

        # |z| as the sum of its positive and negative parts, so that the solver sees a smooth function.
        def compromise(parts, d=d):
            return parts.sum() + ((parts[:5] - parts[5:] - d) ** 2).sum() / (2 * threshold)

        def beyond(parts, g=g, row=row):
            return -float(offset[row]) - g @ (parts[:5] - parts[5:])

        ends = [(0, end) for end in [*(1 - x), *x]] if boxed else [(0, None)] * 10
        first = torch.cat([z[row].clamp(min=0), -z[row].clamp(max=0)]).numpy()
        solved = minimize(compromise, first, bounds=ends, constraints={"type": "ineq", "fun": beyond}, tol=1e-12)
        assert compromise(first) <= solved.fun + 1e-6


def test_the_two_ends_of_the_threshold():
    origin, start, gradient, offset = cases()
    far = shrink_onto_hyperplane(start, gradient, offset, torch.full_like(offset, 1e4), origin, LOW, HIGH)
    shortest = project_onto_hyperplane(origin, gradient, offset, "l1", LOW, HIGH)
    torch.testing.assert_close(far.abs().sum(dim=1), shortest.abs().sum(dim=1), rtol=1e-3, atol=0)
    near = shrink_onto_hyperplane(start, gradient, offset, torch.full_like(offset, 1e-9), origin)
    ahead = offset + (gradient * start).sum(dim=1)
    from_start = project_onto_hyperplane(origin + start, gradient, ahead, "l2")
    torch.testing.assert_close(near[ahead > 0], (start + from_start)[ahead > 0], rtol=1e-4, atol=1e-5)


def test_beyond_the_plane_it_only_shrinks_and_in_too_small_a_box_it_goes_as_far_as_it_can():
    origin, start, gradient, offset = cases()
    cut = torch.full_like(offset, 0.1)
    across = shrink_onto_hyperplane(start, gradient, offset - 10, cut, origin, LOW, HIGH)
    torch.testing.assert_close(across, start.sign() * (start.abs() - 0.1).clamp(min=0), rtol=0, atol=1e-4)
    corner = origin + shrink_onto_hyperplane(start, gradient, offset + 10, cut, origin, LOW, HIGH)
    torch.testing.assert_close(corner, (gradient < 0).to(corner))


def test_rows_do_not_touch_each_other():
    origin, start, gradient, offset = cases()
    cut = uniform((len(offset),), 6, 0.01, 0.5, DOUBLE)
    together = shrink_onto_hyperplane(start, gradient, offset, cut, origin, LOW, HIGH)
    for i in range(len(offset)):
        row = slice(i, i + 1)
        alone = shrink_onto_hyperplane(start[row], gradient[row], offset[row], cut[row], origin[row], LOW, HIGH)
        torch.testing.assert_close(together[row], alone, rtol=0, atol=1e-12)


def smooth_network(features, classes, activation):
    """Return a network of two hidden layers with random weights."""
    model = nn.Sequential(nn.Linear(features, 64), activation(), nn.Linear(64, 64), activation())
    model.append(nn.Linear(64, classes))
    with torch.no_grad():
        for number, layer in enumerate(model[::2]):
            spread = 3 / layer.in_features**0.5
            layer.weight.copy_(uniform(layer.weight.shape, 2 * number, -spread, spread))
            layer.bias.copy_(uniform(layer.bias.shape, 2 * number + 1, -0.5, 0.5))
    return model


@pytest.mark.parametrize("activation", [nn.SiLU, nn.Tanh])
def test_fifty_steps_are_as_good_as_hundreds(activation):
    """Steps from corner to corner, without their trust in straight places, are 1 % off or more."""
    model, inputs = smooth_network(200, 10, activation), uniform((40, 200), 5)
    found = dyart.closest_boundary_points(model, inputs, norm="l1", steps=50)
    best = dyart.closest_boundary_points(model, inputs, norm="l1", steps=100, restarts=5)
    assert found.found.all()
    assert float((found.margin / torch.minimum(best.margin, found.margin)).mean()) < 1.005
    assert float(found.optimal.float().mean()) > 0.95


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_the_slopes_of_all_coordinates_that_moved_are_equal(bounds):
    """The first-order conditions for p = 1: none of the others is steeper, but those at their bounds."""
    model, inputs = smooth_network(60, 4, nn.Tanh), uniform((30, 60), 5)
    found = dyart.closest_boundary_points(model, inputs, norm="l1", steps=200, tol=1e-4, bounds=bounds)
    moved, slope = found.displacement.abs() > 1e-3, found.gradient.abs()
    inner = (found.points > 1e-6) & (found.points < 1 - 1e-6) if bounds else torch.ones_like(moved)
    level = (slope * inner).amax(dim=1, keepdim=True)
    assert int((moved.sum(dim=1) > 1).sum()) >= 8
    share = (slope / level)[moved & inner]
    assert float(share.quantile(0.1)) > 0.95


@pytest.mark.parametrize(("features", "schedule"), [(MANY - 1, COLD), (MANY, COLD_L1_MANY)])
def test_a_search_in_many_coordinates_looks_farther_and_is_as_exact(features, schedule):
    model, x = linear_model(4, features, seed=1), uniform((8, features), 2)
    problem = Problem(model, x, model(x).argmax(dim=1), "l1", "exact", 5.0, *as_bounds(None, x))
    assert pace_of(problem, 40).cold.threshold == schedule.threshold
    found = dyart.closest_boundary_points(model, x, norm="l1", bounds=None, tol=1e-4)
    others = rivals_by_logit(model(x).detach(), problem.labels)
    values, gradients, _ = problem.linearise(problem.origin, others)
    torch.testing.assert_close(found.margin, (values / gradients.abs().amax(dim=2)).amin(dim=0), rtol=1e-3, atol=0)


class Bent(nn.Module):
    """A margin against one rival that is straight, or convex: less steep the farther one goes."""

    def __init__(self, bend):
        super().__init__()
        self.bend = bend

    def forward(self, x):
        fall = x.sum(dim=1)
        margin = 1 - fall + self.bend * fall**2
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)


@pytest.mark.parametrize(("bend", "share"), [(0.0, 0.0), (0.1, 0.1 * 0.4**2), (-0.1, 0.0)])
def test_the_last_overshoot_grows_with_what_the_step_before_fell_short_by(bend, share):
    """A step from the input to a fall of 0.4 is predicted to leave 0.6 of the margin 1; it leaves bend * 0.4^2 more."""
    origin = torch.zeros(1, 4)
    problem = Problem(Bent(bend), origin, torch.zeros(1, dtype=torch.long), "l1", "exact", 5.0, None, None)
    start, x = problem.origin, problem.origin + 0.1
    got = curved(problem, start, problem.evaluate(start), x, problem.evaluate(x))
    torch.testing.assert_close(got, torch.tensor([share]), rtol=1e-4, atol=1e-6)


class Saturating(nn.Module):
    """Class 1 gets ahead along many features; class 2 seems closer along the first one alone, which saturates."""

    def forward(self, x):
        first = 0.4 * torch.tanh(2.5 * (x[:, :1] - 0.5))
        return torch.cat([torch.ones_like(first), 0.4 * x[:, 1:].sum(dim=1, keepdim=True), first], dim=1)


def test_a_steep_feature_that_saturates_does_not_make_a_rival_the_nearest():
    assert _order(Saturating(), torch.tensor([[0.5, 0.2, 0.2, 0.2, 0.2]])) == ([1, 2], [2, 1])


def _order(model, x):
    """Return the rivals as a search takes them, and by the distances to their hyperplanes at the input."""
    logits = model(x).detach()
    labels = logits.argmax(dim=1)
    problem = Problem(model, x, labels, "l1", "exact", 5.0, *as_bounds(None, x))
    others = rivals_by_logit(logits, labels)
    values, gradients, _ = problem.linearise(problem.origin, others)
    order = (values / gradients.abs().amax(dim=2)).argsort(dim=0)[:, 0]
    return nearest_rivals(problem, logits, 9).classes[0].tolist(), others[0, order].tolist()
