import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dyart.boundary.norms import NORMS, norm
from dyart.boundary.projections import project_onto_hyperplane

INF = math.inf
LEVELLED = ["linf", "l2"]  # solved by rounds


class Problem(NamedTuple):
    """A batch of hyperplanes and boxes; the last two are None without a box."""

    origin: Tensor
    gradient: Tensor
    offset: Tensor
    lower: Tensor | None
    upper: Tensor | None

    def project(self, p, rounds=None):
        return project_onto_hyperplane(*self[:3], p, self.lower, self.upper, rounds)

    def value(self, displacement):
        """Return the affine function after the displacement, [N]."""
        return self.offset + (self.gradient * displacement).sum(dim=1)

    def farthest(self):
        """Return the displacement that moves every coordinate to its bound, towards the plane."""
        direction = -self.offset.sign()[:, None] * self.gradient.sign()
        down, up = self.lower - self.origin, self.upper - self.origin
        return torch.where(direction < 0, down, torch.where(direction > 0, up, 0.0))

    def without_idle_bounds(self):
        """Return the same problem with infinite bounds wherever they do not stop a way towards the plane."""
        direction = -self.offset.sign()[:, None] * self.gradient.sign()
        lower, upper = self.lower.expand_as(self.origin), self.upper.expand_as(self.origin)
        return self._replace(
            lower=torch.where(direction < 0, lower, -INF), upper=torch.where(direction > 0, upper, INF)
        )

    def to(self, dtype):
        return Problem(*(x if x is None else x.to(dtype) for x in self))

    def scaled(self, factors):
        """Return the same hyperplanes, their functions multiplied by one factor for each row or for all."""
        factors = torch.tensor(factors, dtype=self.gradient.dtype)
        return self._replace(gradient=self.gradient * factors[:, None], offset=self.offset * factors)


# A third of the finite rooms are zero: origins at a bound, and boxes of no width, are common.
finite_rooms = st.one_of(st.just(0.0), st.floats(1e-3, 2), st.floats(0.1, 1))
rooms = st.one_of(finite_rooms, st.just(INF))
slopes = st.one_of(st.just(0.0), st.floats(1e-2, 3), st.floats(-3, -1e-2), st.floats(0.5, 1), st.floats(-1, -0.5))
positions = st.floats(-1, 1)
signs = st.sampled_from([-1.0, 1.0])


def assemble(columns, sign, share):
    """Make a float64 problem of one row; the offset is a share of what the box can make up for."""
    origin, gradient, room_below, room_above = torch.tensor(columns, dtype=torch.float64).T[:, None]
    problem = Problem(origin, gradient, torch.tensor([sign]).double(), origin - room_below, origin + room_above)
    reach = (gradient * problem.farthest()).abs().sum().item()
    reach = reach if 0 < reach < INF else 4.0  # nothing can move, or the plane is in reach at any offset
    return problem._replace(offset=torch.tensor([sign * share * reach], dtype=torch.float64))


def problems_of(shares, *kinds_of_room):
    columns = [st.lists(st.tuples(positions, slopes, room, room), min_size=1, max_size=12) for room in kinds_of_room]
    return st.builds(assemble, st.one_of(columns), signs, shares)


near_shares = st.one_of(st.floats(0.01, 0.95), st.floats(0.5, 0.95), st.just(1.0))
far_shares = st.floats(1.05, 3)
problems = problems_of(st.one_of(st.just(0.0), near_shares, far_shares), finite_rooms, rooms)


def in_reach(problem):
    """Tell whether the plane meets the box of a problem of one row."""
    reach = (problem.gradient * problem.farthest()).abs().sum().item()
    return reach >= problem.offset.abs().item() * (1 - 1e-12)


near_problems = problems_of(near_shares, finite_rooms, rooms).filter(in_reach)
far_problems = problems_of(far_shares, finite_rooms)


def image_problem(rows=8, size=3072, share=0.3, seed=0):
    """Pixels of which half are 0, gaussian gradients, offsets of both signs at a share of the box's reach."""
    generator = torch.Generator().manual_seed(seed)
    origin = torch.rand(rows, size, generator=generator, dtype=torch.float64)
    origin[torch.rand(rows, size, generator=generator) < 0.5] = 0
    gradient = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(rows)[:rows]
    problem = Problem(origin, gradient, sign, torch.zeros(()).double(), torch.ones(()).double())
    reach = (gradient * problem.farthest()).abs().sum(dim=1)
    return problem._replace(offset=sign * share * reach)


def row(problem, i):
    return Problem(*(x if x is None or x.ndim == 0 else x[i : i + 1] for x in problem))


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
def test_l2_distance_is_the_optimum_of_a_general_solver(problem):
    displacement = problem.project("l2")
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
    assert norm(displacement, "l2").item() == pytest.approx(np.linalg.norm(optimum.x), abs=1e-5)


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


# --- batches, shapes, dtypes ------------------------------------------------------------------------------------


def mixed_batch():
    """Rows that need few and many rounds, are out of reach, flat, or on the plane already."""
    problem = image_problem(rows=8, size=50)
    share = torch.tensor([0.01, 0.3, 0.6, 0.97, 1.0, 1.5, 0.5, 0.0], dtype=torch.float64) / 0.3
    gradient = problem.gradient.clone()
    gradient[6] = 0
    return problem._replace(offset=problem.offset * share, gradient=gradient)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("rounds", [None, 2, 8])
def test_a_batch_equals_its_rows_one_by_one(p, rounds):
    problem = mixed_batch()
    single = torch.cat([row(problem, i).project(p, rounds) for i in range(8)])
    torch.testing.assert_close(problem.project(p, rounds), single, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("rounds", [None, 8])
def test_a_row_with_nan_does_not_touch_the_others(p, rounds):
    problem = mixed_batch()
    expected = problem.project(p, rounds)
    gradient = problem.gradient.clone()
    gradient[2] = math.nan
    others = [0, 1, 3, 4, 5, 6, 7]
    found = problem._replace(gradient=gradient).project(p, rounds)
    torch.testing.assert_close(found[others], expected[others], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("rounds", [None, 8])
@pytest.mark.parametrize("box", [True, False])
def test_empty_batch(p, rounds, box):
    problem = row(image_problem(rows=1, size=20), 1)
    if not box:
        problem = problem._replace(lower=None, upper=None)
    assert problem.project(p, rounds).shape == (0, 20)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("shape", [(), (1,), (20,), (1, 20), (8, 1), (8, 20)])
def test_bounds_of_any_shape_that_broadcasts(p, shape):
    problem = image_problem(size=20)
    lower, upper = torch.zeros(shape).double(), torch.ones(shape).double()
    assert torch.equal(problem._replace(lower=lower, upper=upper).project(p), problem.project(p))


@pytest.mark.parametrize("p", NORMS)
def test_arguments_are_left_alone(p):
    problem = mixed_batch()
    before = [x.clone() for x in problem]
    problem.project(p)
    assert all(torch.equal(x, y) for x, y in zip(problem, before, strict=True))


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.6, 0.9])
def test_float32_agrees_with_float64_on_images(p, share):
    problem = image_problem(share=share)
    narrow = problem.to(torch.float32)
    found, expected = narrow.project(p), narrow.to(torch.float64).project(p)
    assert found.dtype == torch.float32
    pinned = (expected.abs() >= problem.farthest().abs() - 1e-6).double().mean()
    assert pinned > 0.2  # the problem is one with many coordinates at a bound
    assert (norm(found - expected, p) <= 1e-5 * norm(expected, p)).all()
    torch.testing.assert_close(norm(found, p).double(), norm(expected, p), rtol=1e-5, atol=0)
    assert (narrow.value(found).abs() <= 1e-5 * narrow.offset.abs()).all()


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize(("origin", "other"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_displacement_has_the_dtype_of_the_origin(p, box, origin, other):
    problem = image_problem(rows=2, size=20).to(other)
    problem = problem._replace(origin=problem.origin.to(origin))
    if not box:
        problem = problem._replace(lower=None, upper=None)
    assert problem.project(p).dtype == origin


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("rounds", [None, 8])
@pytest.mark.parametrize("factors", [[1e-20], [1e20], [1e-20, 1e-10, 1e10, 1e20]])
@pytest.mark.parametrize("box", [True, False])
def test_displacement_does_not_depend_on_the_scale_of_the_function(p, rounds, factors, box):
    problem = image_problem(rows=4, size=200).to(torch.float32)
    if not box:
        problem = problem._replace(lower=None, upper=None)
    expected = problem.project(p, rounds)
    found = problem.scaled(factors).project(p, rounds)
    assert (norm(found - expected, p) <= 1e-5 * norm(expected, p)).all()


# The square of 1e-25 is zero in float32.
NEGLIGIBLE = Problem(torch.zeros(1, 2), torch.tensor([[1.0, 1e-25]]), torch.ones(1), -torch.ones(1), torch.ones(1))


@pytest.mark.parametrize("p", ["l2", "l1"])
def test_negligible_gradients_move_nothing_where_the_others_just_reach_the_plane(p):
    torch.testing.assert_close(NEGLIGIBLE.project(p), torch.tensor([[-1.0, 0.0]]))


@pytest.mark.parametrize("p", NORMS)
def test_out_of_reach_coordinates_with_negligible_gradients_go_to_their_bounds_too(p):
    displacement = NEGLIGIBLE._replace(offset=torch.tensor([2.0])).project(p)
    assert torch.equal(displacement, torch.tensor([[-1.0, -1.0]]))


# --- a fixed number of rounds -----------------------------------------------------------------------------------


def assert_rises_without_overshoot(problem, p, most_rounds, tolerance):
    """Every round moves every coordinate at least as far as the one before, and never past the plane."""
    scale = problem.offset.abs()
    before, gap_before = torch.zeros_like(problem.origin), scale
    for rounds in range(1, most_rounds + 1):
        displacement = problem.project(p, rounds)
        gap = problem.value(displacement) * problem.offset.sign()
        assert (gap >= -tolerance * scale).all()
        assert (gap <= gap_before + tolerance * scale).all()
        assert (displacement.abs() >= before.abs() - tolerance).all()
        before, gap_before = displacement, gap
    return before


@pytest.mark.parametrize("p", LEVELLED)
@settings(deadline=None, max_examples=50)
@given(problem=problems)
def test_rounds_rise_towards_the_plane_and_end_on_it(p, problem):
    size = problem.origin.shape[1]
    # Each round but the last stops one more coordinate.
    last = assert_rises_without_overshoot(problem, p, size + 2, tolerance=1e-12)
    torch.testing.assert_close(last, problem.project(p), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("p", LEVELLED)
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eight_rounds_are_enough_on_images(p, share, dtype):
    problem = image_problem(share=share).to(dtype)
    last = assert_rises_without_overshoot(problem, p, 8, tolerance=1e-12 if dtype == torch.float64 else 1e-5)
    expected = problem.project(p)
    assert (norm(last - expected, p) <= 1e-5 * norm(expected, p)).all()


@pytest.mark.parametrize("p", LEVELLED)
def test_one_round_stops_short_where_more_are_needed(p):
    problem = image_problem(share=0.6)
    gaps = [problem.value(problem.project(p, rounds)).abs() / problem.offset.abs() for rounds in (1, 2, 3)]
    assert (gaps[0] > 1e-3).all()
    assert (gaps[1] < gaps[0]).all()
    assert (gaps[2] < gaps[1]).all()


@pytest.mark.parametrize("p", LEVELLED)
def test_without_fixed_rounds_there_are_as_many_as_it_takes(p):
    """A box made so that every round stops one more coordinate of twenty."""
    slope = 4.0 ** -torch.arange(20, dtype=torch.float64)
    pace = torch.ones_like(slope) if p == "linf" else slope
    room, needed, level = torch.zeros_like(slope), 1.0, 0.0
    for i in range(20):
        # Out of reach of the level before, within reach of this round's.
        room[i] = 1.01 * level * pace[i]
        level = needed / (slope * pace)[i:].sum()
        needed -= slope[i] * room[i]
    room[-1] = INF
    origin = torch.zeros(1, 20, dtype=torch.float64)
    problem = Problem(origin, slope[None], torch.ones(1, dtype=torch.float64), -room, room)
    assert problem.value(problem.project(p, 18)).item() > 1e-3
    assert problem.value(problem.project(p)).abs().item() < 1e-12


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("box", [True, False])
def test_fixed_rounds_compile_into_one_graph(p, box):
    problem = image_problem(rows=4, size=50, share=0.6).to(torch.float32)
    if not box:
        problem = problem._replace(lower=None, upper=None)
    torch.compiler.reset()
    compiled = torch.compile(project_onto_hyperplane, fullgraph=True, backend="eager")
    found = compiled(*problem[:3], p, problem.lower, problem.upper, 8)
    assert torch.equal(found, problem.project(p, 8))


class OperationLimit(TorchFunctionMode):
    """Raise after so many tensor operations: turns an endless loop into a failure."""

    def __init__(self, limit):
        super().__init__()
        self.left = limit

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left < 0:
            raise AssertionError("too many operations: the loop does not end")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("p", LEVELLED)
@pytest.mark.parametrize("rounds", [0, -1])
def test_rounds_that_are_not_positive_are_refused(p, rounds):
    problem = image_problem(rows=2, size=5)
    with OperationLimit(1000), pytest.raises(ValueError, match="rounds"):
        problem.project(p, rounds)


# --- other arguments --------------------------------------------------------------------------------------------


def test_norms_without_projection_are_refused():
    """Rather than projected in another norm."""
    with pytest.raises(ValueError, match="l3"):
        image_problem(rows=2, size=5).project("l3")


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("missing", ["lower", "upper"])
def test_a_box_with_one_end_is_refused(p, missing):
    """Rather than ignored."""
    with pytest.raises(ValueError, match=r"lower|upper"):
        image_problem(rows=2, size=5)._replace(**{missing: None}).project(p)
