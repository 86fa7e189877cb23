"""Projections of batches, shapes and dtypes, in a fixed number of rounds, and arguments that are refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from projection_problems import INF, Problem, image_problem, problems
from torch.overrides import TorchFunctionMode

from dyart.boundary.norms import NORMS, norm
from dyart.boundary.projections import project_onto_hyperplane, shrink_onto_hyperplane

LEVELLED = ["linf", "l2"]  # solved by rounds


def row(problem, i):
    return Problem(*(x if x is None or x.ndim == 0 else x[i : i + 1] for x in problem))


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
@pytest.mark.parametrize("box", [True, False])
def test_several_origins_of_one_hyperplane(p, rounds, box):
    problem = mixed_batch()._replace(**({} if box else {"lower": None, "upper": None}))
    nearer = problem._replace(origin=problem.origin * 0.9, offset=-0.5 * problem.offset)
    origins, offsets = (torch.stack([getattr(one, name) for one in (problem, nearer)]) for name in ("origin", "offset"))
    stacked = problem._replace(origin=origins, offset=offsets).project(p, rounds)
    expected = torch.stack([problem.project(p, rounds), nearer.project(p, rounds)])
    torch.testing.assert_close(stacked, expected, rtol=1e-9, atol=1e-12)


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


# --- values far larger than slopes ------------------------------------------------------------------------------

TINY = 1e-45  # the smallest float32


@pytest.mark.parametrize("p", LEVELLED)
def test_a_plane_beyond_all_numbers_leads_to_the_end_of_the_box(p):
    """As networks that have saturated see it: a value of 1 and next to no slope, on one coordinate of two."""
    origin, gradient = torch.tensor([[0.3, 0.6]]), torch.tensor([[0.0, TINY]])
    way = project_onto_hyperplane(origin, gradient, torch.ones(1), p, torch.zeros(()), torch.ones(()))
    torch.testing.assert_close(way, torch.tensor([[0.0, -0.6]]))


def test_so_it_does_for_l1():
    origin, gradient = torch.tensor([[0.3, 0.6]]), torch.tensor([[0.0, 1e-35]])
    threshold = torch.full((1,), 0.5)
    still = torch.zeros_like(origin)
    way = shrink_onto_hyperplane(still, gradient, torch.ones(1), threshold, origin, torch.zeros(()), torch.ones(()))
    torch.testing.assert_close(way, torch.tensor([[0.0, -0.6]]))


def test_a_projection_ends_where_its_level_overflows():
    """In a box far wider than any data: the rise beyond the largest number is none."""
    gradient = torch.tensor([[-0.892, -1.509, 0.370, 1.457, 1e-20]])
    wide = torch.tensor(1e30)
    way = project_onto_hyperplane(torch.zeros(1, 5), gradient, torch.tensor([-3e38]), "l2", -wide, wide)
    assert way.isfinite().all()
    assert (way.abs() <= wide).all()
