"""A boundary search of one's own: called with what it takes, and believed nothing that was not verified."""

import functools
import math

import pytest
import torch
from problems import Watched, distance, linear_model, linear_truth, smooth_network, uniform
from side_effects import FailureError, assert_intact_after_failure, in_mode, network
from side_effects import batch as side_effects_batch
from torch import Tensor

import dyart
from dyart.boundary.solvers import Best, Problem
from dyart.boundary.solvers.apgd import apgd_search

MODEL, X = smooth_network(12, 4, seed=2), uniform((24, 12), 4, 0.2, 0.8)


def straight(problem: Problem, start: Tensor, steps: int) -> Best:
    """One step onto the boundary as linearised at the start, and a little across."""
    now = problem.evaluate(start)
    x = problem.into_box(start + 1.001 * problem.project(start, now.gradient, now.value))
    return problem.candidate(x, problem.evaluate(x))


def claims(points: Tensor, of: float = 0.01):
    """A solver that returns the same points for whatever problem, and says that all were found at a small distance."""

    def claimed(problem: Problem, start: Tensor, steps: int) -> Best:
        nothing = problem.nothing()
        return nothing._replace(points=points.flatten(1), distance=torch.full_like(nothing.distance, of))

    return claimed


@pytest.fixture(scope="module")
def known():
    """What a search of ours finds."""
    found = dyart.closest_boundary_points(MODEL, X, steps=20)
    assert found.found.all()
    return found


def search(solver, inputs=X, **options):
    return dyart.closest_boundary_points(MODEL, inputs, solver=solver, **{"steps": 20, **options})


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_function_of_three_arguments_is_a_solver(norm):
    model, x = linear_model(2, 10), uniform((30, 10), 4, -1, 1)
    found = dyart.closest_boundary_points(model, x, norm=norm, bounds=None, solver=straight)
    truth = linear_truth(model, x, found.labels, norm).margin
    torch.testing.assert_close(found.margin.double(), truth, rtol=0.002, atol=1e-6)
    assert found.optimal.all()
    assert found.solver == "straight"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "l2", "boundary": "soft", "restarts": 2},
        {"restarts": 5, "rivals": 2, "seed": 3},
        {"tol": 1e-4, "batch_size": 7, "bounds": None},
        {"start": X.clamp(0.25, 0.75)},
        {"start": "random", "steps": 40},
    ],
    ids=str,
)
def test_one_of_ours_given_as_a_function_finds_what_it_finds_by_its_name(options):
    ours, own = search("apgd", **options), search(apgd_search, **options)
    assert ours.found.any()
    for field in ("points", "margin", "value", "gradient", "rival", "found"):
        torch.testing.assert_close(getattr(own, field), getattr(ours, field), rtol=0, atol=0, equal_nan=True)
    assert own.solver == "apgd_search"


def test_points_that_are_not_across_do_not_count_and_are_told(known):
    wrong = torch.arange(len(X)) % 3 == 1
    points = torch.where(wrong[:, None], X + 0.5 * known.displacement, known.points)
    with pytest.warns(UserWarning, match="claimed: the points of 8 of 24 examples, the first of example 1, were not"):
        found = search(claims(points))
    assert torch.equal(found.found, ~wrong)
    assert torch.equal(found.lost, wrong)
    assert found.margin[wrong].isnan().all()
    torch.testing.assert_close(found.points[wrong], X[wrong])
    assert "the point that claimed returned was not across" in found.explain(1)
    torch.testing.assert_close(found.margin[~wrong], known.margin[~wrong])
    assert found.verdict[0] == "locally optimal"
    assert not search(claims(points), validate=False).found[wrong].any(), "and without a warning"


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
def test_points_that_are_no_numbers_are_not_found(known, value, bounds):
    points = known.points.clone()
    points[2, 3] = value
    with pytest.warns(UserWarning, match="the points of 1 of 24 examples, the first of example 2"):
        found = search(claims(points), bounds=bounds)
    assert (~found.found).nonzero().flatten().tolist() == [2]
    assert found.points.isfinite().all()
    assert found.gradient.isfinite().all()


def test_points_outside_the_box_are_put_into_it(known):
    outside = X + 2 * uniform(X.shape, 9, -1).sign()
    inside = outside.clamp(0, 1)
    across = MODEL(inside).argmax(dim=1) != known.labels
    assert 0 < across.sum() < len(X), "both kinds"
    with pytest.warns(UserWarning, match="inside the bounds"):
        found = search(claims(outside))
    assert torch.equal(found.found, across)
    torch.testing.assert_close(found.points[across], inside[across])


def test_what_a_solver_says_of_its_points_is_not_believed(known):
    def wrong(problem: Problem, start: Tensor, steps: int) -> Best:
        row, rows = torch.full_like(problem.nothing().distance, 1e-6), torch.ones_like(problem.origin)
        return Best(row, known.points.flatten(1), -row, rows, torch.zeros_like(problem.labels))

    found = search(wrong)
    torch.testing.assert_close(found.margin.double(), distance(known.points, X, "linf"), rtol=1e-5, atol=0)
    for field in ("value", "gradient", "rival"):
        torch.testing.assert_close(getattr(found, field), getattr(known, field))


def test_a_false_claim_of_one_restart_does_not_hide_what_another_finds(known):
    calls = []

    def second(problem: Problem, start: Tensor, steps: int) -> Best:
        calls.append(start)
        points = X if len(calls) == 1 else known.points
        return problem.nothing()._replace(distance=torch.zeros(len(X)), points=points)

    found = search(second, restarts=2)
    torch.testing.assert_close(calls[0], X)
    assert not torch.equal(calls[1], X), "the second starts at random"
    torch.testing.assert_close(found.margin, known.margin)
    assert not found.lost.any(), "found in the end"


def result_of(**fields):
    return lambda problem, start, steps: problem.nothing()._replace(**fields)


@pytest.mark.parametrize(
    ("solver", "error", "words"),
    [
        (result_of(points=X[:5]), ValueError, r"must return points of shape \(24, 12\), it returned \(5, 12\)"),
        (
            result_of(points=X[:, None]),
            ValueError,
            r"must return points of shape \(24, 12\), it returned \(24, 1, 12\)",
        ),
        (result_of(distance=X), ValueError, r"must return distance of shape \(24,\), it returned \(24, 12\)"),
        (lambda problem, start, steps: start, TypeError, "solver lambda must return a dyart.* it returned Tensor"),
        (lambda problem, start, steps: None, TypeError, "it returned NoneType: begin with problem.nothing"),
        (lambda problem, start, steps: start.add_(0.1), ValueError, "in place.*begin with x = start.clone"),
        (lambda problem, start, steps: problem.origin.add_(0.1), ValueError, "in place"),
    ],
    ids=["rows", "dimensions", "distance", "tensor", "nothing", "start in place", "inputs in place"],
)
def test_a_result_of_another_kind_is_named(solver, error, words):
    with pytest.raises(error, match=words):
        search(solver)


def test_inputs_changed_in_place_are_seen_whatever_the_start():
    with pytest.raises(ValueError, match="changes the inputs or its start in place"):
        search(lambda problem, start, steps: problem.origin.add_(0.1), start=X.clamp(0.3, 0.7))


def fast(problem: Problem, start: Tensor, steps: int) -> Best:
    return problem.nothing()


@pytest.mark.parametrize(
    ("solver", "error", "words"),
    [
        (3, ValueError, "solver must be one of 'fast', 'fab', 'apgd', or a function.*got 3"),
        ("halving:halving", ValueError, "a function .*got 'halving:halving'"),
        (lambda problem, start: None, TypeError, r"\(problem, start, steps\).* lambda is not: too many positional"),
        (lambda problem, start, steps, radius: None, TypeError, "lambda is not: missing a required argument: 'radius'"),
        (fast, ValueError, "a name of its own in results, and 'fast' is one of ours"),
    ],
)
def test_what_cannot_be_a_solver_is_refused_before_the_model_is_asked(solver, error, words):
    watched = Watched(MODEL)
    with pytest.raises(error, match=words):
        dyart.closest_boundary_points(watched, X, solver=solver)
    assert not watched.forward_sizes


def test_signed_margins_are_refused():
    with pytest.raises(ValueError, match="signed margins need solver='fast', got 'straight'"):
        search(straight, signed=True)


@pytest.mark.parametrize("restarts", [1, 3])
def test_passes_are_counted_with_those_of_the_verification(restarts):
    watched = Watched(MODEL)
    found = dyart.closest_boundary_points(watched, X, solver=straight, restarts=restarts, validate=False)
    assert found.cost == (1 + 3 * restarts, 3 * restarts)
    assert found.cost == (len(watched.forward_sizes), watched.backward_passes)


def test_a_solver_that_aims_costs_the_comparison_of_rivals_besides():
    def aiming(problem: Problem, start: Tensor, steps: int, target: Tensor | None = None) -> Best:
        return straight(problem, start, steps)

    assert search(aiming, validate=False).cost == (1 + 1 + 3, 3 + 3)


def test_a_solver_is_told_what_its_signature_names():
    told = []

    def curious(problem: Problem, start: Tensor, steps: int, *, warm: bool, target: Tensor | None, known=None) -> Best:
        told.append((start, steps, warm, target, known))
        return problem.nothing()

    search(curious, restarts=2, rivals=3)
    (first, *_), (second, *_) = told
    torch.testing.assert_close(first, X)
    torch.testing.assert_close(second, X)
    labels = MODEL(X).argmax(dim=1)
    targets = torch.stack([target for _, _, _, target, _ in told])
    assert (targets != labels).all()
    assert (targets[0] != targets[1]).all(), "another rival each time"
    known = told[0][4]
    logits = MODEL(X)
    against = logits.gather(1, labels[:, None]) - logits.gather(1, targets[:1].T)
    torch.testing.assert_close(known.followed, against[:, 0])
    assert [(steps, warm) for _, steps, warm, *_ in told] == [(20, False)] * 2

    told.clear()
    search(curious, start=X.clamp(0.3, 0.7))
    ((start, _, warm, target, known),) = told
    torch.testing.assert_close(start, X.clamp(0.3, 0.7))
    assert (warm, target, known) == (True, None, None)


def test_settings_of_a_solver_are_given_by_partial():
    def stretched(problem: Problem, start: Tensor, steps: int, stretch: float = 1.0) -> Best:
        best = straight(problem, start, steps)
        return best._replace(points=problem.origin + stretch * (best.points - problem.origin))

    near, far = (search(functools.partial(stretched, stretch=stretch), validate=False) for stretch in (1.0, 1.1))
    both = near.found & far.found
    assert both.sum() > 5
    torch.testing.assert_close(far.margin[both], 1.1 * near.margin[both], rtol=1e-4, atol=0)
    assert near.solver == "stretched"


@pytest.mark.parametrize("ticking", [True, False])
def test_progress_comes_to_its_end(ticking):
    def with_tick(problem: Problem, start: Tensor, steps: int, tick) -> Best:
        assert len(seen) in (0, 20), "nobody else has counted its steps"
        for _ in range(steps):
            tick()
        return problem.nothing()

    seen = []
    solver = with_tick if ticking else straight
    search(solver, progress=lambda done, total: seen.append((done, total)), batch_size=12, validate=False)
    assert seen == [(done, 40) for done in range(1, 41)]


@pytest.mark.parametrize("mode", ["eval", "train", "mixed"])
@pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")
def test_all_is_as_before_when_a_solver_fails(mode):
    def failing(problem: Problem, start: Tensor, steps: int) -> Best:
        problem.evaluate(start + 0.1 * torch.rand(start.shape))
        raise FailureError("in the middle of it")

    def call(model):
        dyart.closest_boundary_points(model, *side_effects_batch(), solver=failing)

    assert_intact_after_failure(call, in_mode(network(), mode))


def test_the_random_state_is_as_before_after_a_solver_that_draws():
    def drawing(problem: Problem, start: Tensor, steps: int) -> Best:
        return straight(problem, problem.into_box(start + 0.01 * torch.rand(start.shape)), steps)

    before = torch.get_rng_state()
    search(drawing, validate=False)
    assert torch.equal(torch.get_rng_state(), before)
