"""Steps beyond several linearisations at once, for p = 1, and the search that settles with them."""

import pytest
import torch
from problems import uniform
from scipy.optimize import linprog, minimize
from torch import nn

import dyart
from dyart.boundary.problem import Problem
from dyart.boundary.solvers import cuts as cuts_module
from dyart.boundary.solvers.cuts import Cuts, first_cut, mixed, with_cut
from dyart.boundary.solvers.schedules import MANY, SHORT, first_cutting, pace_of
from dyart.boundary.validation import as_bounds

DOUBLE = torch.float64


def problem_of(model, x, bounds=None):
    return Problem(model, x, torch.zeros(len(x), dtype=torch.long), "l1", "exact", 5.0, *as_bounds(bounds, x))


@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
@pytest.mark.parametrize("threshold", [0.05, 0.5])
def test_no_point_beyond_all_cuts_is_a_better_compromise(threshold, bounds):
    problem = problem_of(nn.Identity(), uniform((6, 5), 1, 0.3, 0.7, DOUBLE), bounds)
    start = uniform((6, 5), 2, -0.3, 0.3, DOUBLE)
    cuts = Cuts(uniform((6, 3), 3, 0.05, 0.2, DOUBLE), uniform((6, 1, 5), 4, -1, 1, DOUBLE).repeat(1, 3, 1))
    cuts = cuts._replace(normals=cuts.normals + uniform((6, 3, 5), 5, -0.5, 0.5, DOUBLE))
    cut = torch.full((6,), threshold, dtype=DOUBLE)
    offset, normal = mixed(problem, cuts, start, cut)
    z = problem.shrink(start, normal, offset, cut)
    assert float(cuts.at(z).max()) < 1e-3
    for row in range(len(z)):
        d, g, b = start[row].numpy(), cuts.normals[row].numpy(), cuts.offsets[row].numpy()

        # |z| as the sum of its positive and negative parts, so that the solver sees a smooth function.
        def compromise(parts, d=d):
            return parts.sum() + ((parts[:5] - parts[5:] - d) ** 2).sum() / (2 * threshold)

        def beyond(parts, g=g, b=b):
            return -b - g @ (parts[:5] - parts[5:])

        x = problem.origin[row].numpy()
        ends = [(0, end) for end in [*(1 - x), *x]] if bounds else [(0, None)] * 10
        first = torch.cat([z[row].clamp(min=0), -z[row].clamp(max=0)]).numpy()
        solved = minimize(compromise, first, bounds=ends, constraints={"type": "ineq", "fun": beyond}, tol=1e-12)
        assert compromise(first) <= solved.fun + 1e-3


def test_a_cut_above_the_function_is_lowered_and_one_of_another_function_replaced():
    way, gradient, value = torch.zeros(3, 2), torch.tensor([[-1.0, 0.0]]).expand(3, 2), torch.ones(3)
    cuts = first_cut(way, value, gradient)
    there, steeper = torch.tensor([[0.5, 0.0]]).expand(3, 2), torch.tensor([[-2.0, 0.0]]).expand(3, 2)
    seen = torch.tensor([0.2, 0.8, 0.2])  # the first cut says 0.5
    cuts = with_cut(cuts, there, seen, steeper, torch.tensor([True, True, False]))
    torch.testing.assert_close(cuts.offsets, torch.tensor([[0.7, 1.2], [1.0, 1.8], [1.2, 1.2]]))
    torch.testing.assert_close(cuts.normals[:, :, 0], torch.tensor([[-1.0, -2.0], [-1.0, -2.0], [-2.0, -2.0]]))


def test_the_latest_cuts_are_kept_and_gradients_that_overflowed_are_not_used():
    way, same = torch.zeros(1, 2), torch.tensor([True])
    cuts = first_cut(way, torch.tensor([1.0]), torch.tensor([[torch.inf, 0.0]]))
    for number in range(cuts_module.MOST - 1):
        cuts = with_cut(cuts, way, torch.tensor([1.0]), torch.tensor([[-1.0 - number, 0.0]]), same)
    problem = problem_of(nn.Identity(), torch.zeros(1, 2))
    offset, normal = mixed(problem, cuts, way, torch.tensor([0.1]))
    assert cuts.normals.isfinite().all()
    assert normal.isfinite().all()
    assert float(offset) > 0
    cuts = with_cut(cuts, way, torch.tensor([1.0]), torch.tensor([[-9.0, 0.0]]), same)
    assert cuts.offsets.shape == (1, cuts_module.MOST)
    assert float(cuts.normals[0, -1, 0]) == -9
    assert float(cuts.normals[0, 0, 0]) == -1


class Kinked(nn.Module):
    """A margin that is the largest of several affine functions."""

    def __init__(self, features, count):
        super().__init__()
        common = uniform((1, features), 1, -1, 1)
        self.register_buffer("normals", (common + uniform((count, features), 2, -1, 1)) / 2)

    def forward(self, x):
        margin = (1 + x @ self.normals.T).amax(dim=1)
        return torch.stack([margin, -margin], dim=1)


def test_a_kinked_convex_boundary_is_found_where_a_linear_program_finds_it():
    model, x = Kinked(MANY, 6), torch.zeros(1, MANY)
    normals = model.normals.double().numpy()
    program = linprog([1.0] * (2 * MANY), [[*row, *-row] for row in normals], [-1.0] * 6)
    found = dyart.closest_boundary_points(model, x, norm="l1", bounds=None, steps=40)
    assert program.fun <= float(found.margin) < 1.01 * program.fun


@pytest.mark.parametrize(
    ("features", "evaluations", "warm", "first"),
    [(MANY, 40, False, 17), (MANY, SHORT - 1, False, SHORT - 1), (50, 40, False, 40), (MANY, 40, True, 40)],
)
def test_searches_in_many_coordinates_cut_when_they_settle(features, evaluations, warm, first):
    x = torch.zeros(1, features)
    problem = problem_of(nn.Identity(), x)
    assert first_cutting(problem, warm, pace_of(problem, evaluations)) == first
