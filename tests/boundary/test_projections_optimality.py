"""Projections are the closest points: against solvers, closed forms and conditions, and where there is no way."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from projection_problems import (
    INF,
    assemble,
    far_shares,
    finite_rooms,
    image_problem,
    near_shares,
    problems,
    problems_of,
    rooms,
)
from scipy.optimize import linprog, minimize

from dyart.boundary.norms import NORMS, norm


def in_reach(problem):
    """Tell whether the plane meets the box of a problem of one row."""
    reach = (problem.gradient * problem.farthest()).abs().sum().item()
    return reach >= problem.offset.abs().item() * (1 - 1e-12)


near_problems = problems_of(near_shares, finite_rooms, rooms).filter(in_reach)
far_problems = problems_of(far_shares, finite_rooms)


def assert_inside(problem, displacement, tolerance=1e-9):
    assert (problem.origin + displacement >= problem.lower - tolerance).all()
    assert (problem.origin + displacement <= problem.upper + tolerance).all()


# --- optimality -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", ["linf", "l1"])
@settings(deadline=None, max_examples=80)
@given(problem=near_problems)
def test_distance_is_the_optimum_of_the_linear_program(p, problem):
    displacement = problem.project(p)
    assert abs(problem.value(displacement).item()) <= 1e-9
    assert_inside(problem, displacement)

    # Variables (d, t): minimise sum(t) subject to g.d = -offset, -t <= d <= t, d in the box; one t for all for linf.
    size = problem.origin.shape[1]
    cover = np.ones((size, 1)) if p == "linf" else np.eye(size)
    down, up = (problem.lower - problem.origin)[0].numpy(), (problem.upper - problem.origin)[0].numpy()
    optimum = linprog(
        np.r_[np.zeros(size), np.ones(cover.shape[1])],
        A_ub=np.block([[np.eye(size), -cover], [-np.eye(size), -cover]]),
        b_ub=np.zeros(2 * size),
        A_eq=np.r_[problem.gradient[0].numpy(), np.zeros(cover.shape[1])][None],
        b_eq=-problem.offset.numpy(),
        bounds=[*zip(down, up, strict=True), *[(0, None)] * cover.shape[1]],
    )
    assert optimum.success, optimum.message
    assert norm(displacement, p).item() == pytest.approx(optimum.fun, abs=1e-5)


def multiplier_interval(problem, displacement, tolerance):
    """Return the interval of lambda that the optimality conditions of the l2 projection leave.

    Minimise |d|^2 / 2 subject to offset + g.d = 0 and down <= d <= up. With s = d + lambda g, the conditions are:
    s_i = 0 where d_i is strictly between its bounds, s_i <= 0 at the upper and s_i >= 0 at the lower bound
    (the negative and the positive of the bounds' multipliers). The problem is convex: they are sufficient.
    """
    least, most = -INF, INF
    down, up = problem.lower - problem.origin, problem.upper - problem.origin
    for g, d, a, b in torch.stack([problem.gradient, displacement, down, up])[:, 0].T.tolist():
        low = -INF if d >= b - tolerance else -tolerance
        high = INF if d <= a + tolerance else tolerance
        if g == 0:
            assert low <= d <= high
            continue
        ends = sorted([(low - d) / g, (high - d) / g])
        least, most = max(least, ends[0]), min(most, ends[1])
    return least, most


@settings(deadline=None, max_examples=60)
@given(near_problems)
def test_l2_displacement_satisfies_the_kkt_conditions(problem):
    displacement = problem.project("l2")
    assert abs(problem.value(displacement).item()) <= 1e-9
    assert_inside(problem, displacement)
    least, most = multiplier_interval(problem, displacement, tolerance=1e-7)
    assert least <= most


def test_the_kkt_check_notices_a_longer_way_to_the_plane():
    problem = assemble([(0.0, 1.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0), (0.0, 2.0, 0.1, 1.0)], 1.0, 0.5)
    displacement = problem.project("l2")
    least, most = multiplier_interval(problem, displacement, tolerance=1e-7)
    assert least <= most
    displacement[0, :2] += torch.tensor([1e-3, -1e-3])
    least, most = multiplier_interval(problem, displacement, tolerance=1e-7)
    assert least > most


@settings(deadline=None, max_examples=40)
@given(near_problems)
def test_a_general_solver_finds_no_shorter_way_in_l2(problem):
    displacement = problem.project("l2")
    assert abs(problem.value(displacement).item()) <= 1e-9
    assert_inside(problem, displacement)
    gradient, offset = problem.gradient[0].numpy(), problem.offset.item()
    assume(gradient.any())  # the solver does not take an empty constraint
    down, up = (problem.lower - problem.origin)[0].numpy(), (problem.upper - problem.origin)[0].numpy()
    optimum = minimize(
        lambda d: d @ d / 2,
        np.zeros(len(gradient)),
        jac=lambda d: d,
        method="SLSQP",
        bounds=list(zip(down, up, strict=True)),
        constraints={"type": "eq", "fun": lambda d: gradient @ d + offset, "jac": lambda d: gradient},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assume(optimum.success)
    # It may stop too early and call that a success, then with a longer way.
    assert norm(displacement, "l2").item() <= np.linalg.norm(optimum.x) + 1e-5


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_box_the_projection_has_a_closed_form(dtype, sign):
    problem = image_problem(size=20).to(dtype)._replace(lower=None, upper=None)
    problem = problem._replace(offset=sign * problem.offset)
    g, offset = problem.gradient, problem.offset[:, None]
    torch.testing.assert_close(problem.project("linf"), -offset * g.sign() / norm(g, "l1")[:, None])
    torch.testing.assert_close(problem.project("l2"), -offset * g / norm(g, "l2")[:, None].square())
    steepest = torch.nn.functional.one_hot(g.abs().argmax(dim=1), g.shape[1])
    torch.testing.assert_close(problem.project("l1"), -offset * g.sign() * steepest / norm(g, "linf")[:, None])


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("width", [1e6, INF])
def test_a_box_that_is_wide_enough_does_not_matter(p, width):
    problem = image_problem(size=20)
    free = problem._replace(lower=None, upper=None).project(p)
    wide = torch.tensor(width, dtype=torch.float64)
    torch.testing.assert_close(problem._replace(lower=-wide, upper=wide).project(p), free)


def test_worked_examples_in_a_box():
    # The first coordinate can lose 0.1 only; the second makes up for it.
    problem = assemble([(0.1, 2.0, 0.1, 0.9), (0.5, 1.0, 0.5, 0.5), (0.5, 0.0, 0.5, 0.5)], 1.0, 0.0)
    problem = problem._replace(offset=torch.tensor([0.5], dtype=torch.float64))
    for p in NORMS:
        torch.testing.assert_close(problem.project(p), torch.tensor([[-0.1, -0.3, 0.0]], dtype=torch.float64))
    # Upwards there is room for both: equal steps, steps in proportion to the gradient, the steepest alone.
    problem = problem._replace(offset=-problem.offset)
    torch.testing.assert_close(problem.project("linf"), torch.tensor([[1 / 6, 1 / 6, 0]], dtype=torch.float64))
    torch.testing.assert_close(problem.project("l2"), torch.tensor([[0.2, 0.1, 0]], dtype=torch.float64))
    torch.testing.assert_close(problem.project("l1"), torch.tensor([[0.25, 0, 0]], dtype=torch.float64))


# --- where there is no way, and where none is needed ------------------------------------------------------------


@pytest.mark.parametrize("p", NORMS)
@settings(deadline=None, max_examples=60)
@given(problem=far_problems)
def test_out_of_reach_every_coordinate_goes_to_its_bound(p, problem):
    displacement = problem.project(p)
    farthest = problem.farthest()
    assert torch.equal(displacement, farthest)
    reach = (problem.gradient * farthest).abs().sum()
    torch.testing.assert_close(problem.value(displacement).abs(), problem.offset.abs() - reach)
    assert torch.equal(problem.without_idle_bounds().project(p), farthest)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_out_of_reach_on_images(p, dtype):
    problem = image_problem(share=1.2).to(dtype)
    assert torch.equal(problem.project(p), problem.farthest())


BOXES = {
    "unit": {},
    "infinite": {"lower": torch.tensor(-INF), "upper": torch.tensor(INF)},
    "half open": {"lower": torch.tensor(0.0), "upper": torch.tensor(INF)},
    "none": {"lower": None, "upper": None},
}


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("rounds", [None, 1, 8])
@pytest.mark.parametrize("box", BOXES)
def test_zero_gradient_moves_nothing(p, rounds, box):
    problem = image_problem(rows=4, size=20)._replace(**BOXES[box])
    problem = problem._replace(gradient=torch.zeros_like(problem.gradient))
    assert torch.equal(problem.project(p, rounds), torch.zeros_like(problem.origin))


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("rounds", [None, 1, 8])
@pytest.mark.parametrize("box", BOXES)
def test_offset_zero_moves_nothing(p, rounds, box):
    problem = image_problem(rows=4, size=20)._replace(**BOXES[box])
    problem = problem._replace(offset=torch.zeros_like(problem.offset))
    assert torch.equal(problem.project(p, rounds), torch.zeros_like(problem.origin))


@pytest.mark.parametrize("p", NORMS)
def test_an_origin_in_the_corner_of_the_box_stays(p):
    problem = image_problem(rows=4, size=20)
    corner = (problem.offset[:, None] * problem.gradient < 0).double()
    assert torch.equal(problem._replace(origin=corner).project(p), torch.zeros_like(corner))


@pytest.mark.parametrize("p", NORMS)
@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_coordinates_only_move_against_the_function_and_not_where_it_is_flat(p, problem):
    displacement = problem.project(p)
    assert displacement.isfinite().all()
    assert (displacement[problem.gradient == 0] == 0).all()
    assert (displacement * problem.gradient * problem.offset[:, None] <= 0).all()


@pytest.mark.parametrize("p", NORMS)
@settings(deadline=None, max_examples=50)
@given(problem=problems)
def test_mirrored_problems_have_mirrored_solutions(p, problem):
    mirrored = problem._replace(origin=-problem.origin, lower=-problem.upper, upper=-problem.lower)
    mirrored = mirrored._replace(gradient=-problem.gradient)
    torch.testing.assert_close(mirrored.project(p), -problem.project(p))
    negated = problem._replace(gradient=-problem.gradient, offset=-problem.offset)
    torch.testing.assert_close(negated.project(p), problem.project(p))
