"""How the steps of a search are spent: on one rival, or on several; and l1 on networks with kinks."""

import pytest
import torch
from problems import Watched, linear_model, uniform
from torch import nn

import dyart
from dyart.boundary import multistart
from dyart.boundary.norms import dual_norm
from dyart.boundary.problem import Problem
from dyart.boundary.restarts import nearest_rivals
from dyart.boundary.solvers.fast import move, set_out
from dyart.boundary.solvers.race import Entrant, Lap, race
from dyart.boundary.solvers.schedules import pace_of
from dyart.boundary.validation import as_bounds


def relu_network(features, classes, width=64):
    """Return a network of ReLUs with random weights."""
    model = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model.append(nn.Linear(width, classes))
    with torch.no_grad():
        for number, layer in enumerate(model[::2]):
            spread = 3 / layer.in_features**0.5
            layer.weight.copy_(uniform(layer.weight.shape, 2 * number, -spread, spread))
            layer.bias.copy_(uniform(layer.bias.shape, 2 * number + 1, -0.5, 0.5))
    return model


def test_l1_margins_of_a_relu_network_are_found_and_no_longer_than_those_of_the_classic_search():
    model, inputs = relu_network(200, 10), uniform((30, 200), 5)
    fast = dyart.closest_boundary_points(model, inputs, norm="l1", steps=60)
    classic = dyart.closest_boundary_points(model, inputs, norm="l1", steps=60, solver="fab")
    assert fast.found.all()
    assert float((fast.margin / classic.margin).nanmean()) < 1.0
    assert float((fast.margin / classic.margin).nan_to_num(0).max()) < 1.1
    # Few of the features move.
    assert float((fast.displacement.abs() > 1e-3).float().mean()) < 0.2


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("rivals", [1, 9])
@pytest.mark.parametrize("solver", ["fast", "apgd"])
def test_a_long_search_costs_its_steps_also_where_it_is_split(solver, rivals, boundary):
    model = Watched(linear_model(6, 8, seed=3))
    options = {
        "rivals": rivals,
        "solver": solver,
        "boundary": boundary,
        "beta": 50.0,
        "bounds": None,
        "validate": False,
    }
    found = dyart.closest_boundary_points(model, uniform((9, 8), 4, -1, 1), steps=50, **options)
    assert found.cost == (len(model.forward_sizes), model.backward_passes)
    compared = 5 if rivals > 1 else 0
    # The gradient against a target is not the gradient of the exact margin function: one more evaluation.
    renewed = boundary == "exact"
    assert found.cost == (1 + 50 + (compared > 0) + renewed, 50 + compared + renewed)


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_race_of_two_laps_costs_its_steps_as_well(restarts):
    model = Watched(linear_model(6, 8, seed=3))
    inputs, options = uniform((9, 8), 4, -1, 1), {"bounds": None, "validate": False}
    found = dyart.closest_boundary_points(model, inputs, norm="l1", steps=40, restarts=restarts, **options)
    assert found.cost == (len(model.forward_sizes), model.backward_passes)
    # The logits, five rivals in one pass, where the straight way ends, the steps, and the result once more.
    assert found.cost == (1 + 1 + 1 + 40 * restarts + 1, 5 + 40 * restarts + 1)


@pytest.mark.parametrize("boundary", ["exact", "soft"])
def test_a_race_finds_closer_rivals_than_one_search_of_as_many_steps(monkeypatch, boundary):
    model, inputs = relu_network(40, 6), uniform((80, 40), 5)
    options = {"boundary": boundary, "beta": 50.0, "steps": 38}
    raced = dyart.closest_boundary_points(model, inputs, **options)
    monkeypatch.setitem(multistart.RACES, "linf", {})
    monkeypatch.setitem(multistart.SHARES, "linf", {})
    alone = dyart.closest_boundary_points(model, inputs, **options)
    assert raced.cost == alone.cost
    ratio = (raced.margin / alone.margin)[alone.found]
    assert float(ratio.mean()) < 0.995
    assert int((ratio < 0.97).sum()) >= 3
    assert int((ratio > 1.03).sum()) <= 1
    assert int((raced.rival != alone.rival).sum()) >= 3
    points = raced.points.clone().requires_grad_()
    logits = model(points)
    exact, soft = dyart.logit_margin(logits, raced.labels), dyart.soft_logit_margin(logits, raced.labels, 50.0)
    (exact if boundary == "exact" else soft).sum().backward()
    torch.testing.assert_close(raced.gradient[raced.found], points.grad[raced.found], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_an_example_goes_on_with_the_search_that_came_closest(norm):
    """A race of three ends where the best of them alone would have ended, whichever place that one has."""
    model, inputs = relu_network(40, 6), uniform((30, 40), 5)
    with torch.no_grad():
        logits = model(inputs)
    problem = Problem(model, inputs, logits.argmax(dim=1), norm, "exact", 5.0, None, None)
    order = logits.argsort(dim=1, descending=True)[:, 1:4]
    entrants = [Entrant(problem.origin, order[:, place]) for place in range(3)]
    steps, lap = 30, 4
    alone = [_alone(problem, entrant, steps - 2 * lap) for entrant in entrants]
    early = torch.stack([distances[lap - 1] for distances in alone])
    winner = early.argmin(dim=0)
    expected = torch.stack([distances[-1] for distances in alone])[winner, torch.arange(len(inputs))]
    before = problem.backward
    found = race(problem, entrants, steps, [Lap(3, lap)])
    assert problem.backward - before == steps
    # A loser's few steps count, too, if the winner comes no closer in the end.
    torch.testing.assert_close(found.distance, torch.minimum(expected, early.amin(dim=0)))
    assert len(winner.unique()) == 3


def test_of_two_laps_the_first_leaves_two_and_the_second_one():
    model, inputs = relu_network(40, 6), uniform((60, 40), 5)
    with torch.no_grad():
        logits = model(inputs)
    problem = Problem(model, inputs, logits.argmax(dim=1), "l1", "exact", 5.0, None, None)
    order, rows = logits.argsort(dim=1, descending=True)[:, 1:5], torch.arange(len(inputs))
    entrants = [Entrant(problem.origin, order[:, place]) for place in range(4)]
    alone = torch.stack([torch.stack(_alone(problem, entrant, 20)) for entrant in entrants])
    first_two = alone[:, 2].argsort(dim=0)[:2]
    after = alone[first_two, 6, rows]
    winner = first_two[after.argmin(dim=0), rows]
    before = problem.backward
    found = race(problem, entrants, 20 + 3 * 3 + 4, [Lap(4, 3), Lap(2, 4)])
    assert problem.backward - before == 33
    torch.testing.assert_close(found.distance, torch.minimum(alone[winner, -1, rows], after.amin(dim=0)))
    # The second lap did change who goes on.
    assert bool((winner != alone[:, 2].argmin(dim=0)).any())


def _alone(problem, entrant, count):
    """Walk alone, and return the best distance after every evaluation."""
    walk, distances, pace = set_out(problem, entrant.start, entrant.target), [], pace_of(problem, count)
    for step in range(count):
        walk = move(problem, walk, problem.evaluate(walk.x, walk.target, walk.aim), step, pace)
        distances.append(walk.best.distance)
    return distances


@pytest.mark.parametrize(
    ("norm", "steps", "rivals", "runners"),
    [
        ("l2", 17, 9, 1),
        ("l2", 18, 9, 2),
        ("linf", 50, 9, 4),
        ("linf", 50, 2, 2),
        ("l1", 21, 9, 1),
        ("l1", 22, 9, 2),
        ("l1", 36, 9, 3),
    ],
)
def test_more_steps_are_a_race_of_more(norm, steps, rivals, runners):
    laps = multistart._race(norm, steps, rivals)
    assert (laps[0].runners if laps else 1) == runners
    for least, longest in multistart.RACES[norm].items():
        assert least > sum(lap.runners * lap.steps for lap in longest), "nothing is left for the one that goes on"


@pytest.mark.parametrize(
    ("norm", "steps", "rivals", "parts"),
    [
        ("l2", 23, 9, (23,)),
        ("l2", 24, 9, (14, 10)),
        ("l2", 40, 9, (20, 12, 8)),
        ("l2", 40, 2, (24, 16)),
        ("l2", 40, 1, (40,)),
        ("l2", 100, 9, (40, 25, 15, 10, 10)),
        ("l2", 100, 4, (50, 30, 20)),
        ("linf", 40, 9, (24, 16)),
        ("linf", 80, 9, (40, 20, 20)),
    ],
)
def test_more_steps_of_a_search_that_cannot_be_held_up_aim_at_more_rivals(norm, steps, rivals, parts):
    assert multistart._parts(norm, steps, rivals) == parts


def test_from_outside_all_steps_are_one_search():
    """Nothing is aimed at there, and no rivals are compared: one class alone may be nearest."""
    model, inputs = Watched(linear_model(6, 8, seed=3)), uniform((9, 8), 4, -1, 1)
    labels = (model(inputs).argmax(dim=1) + 1) % 6
    model.forward_sizes.clear()
    found = dyart.closest_boundary_points(model, inputs, labels, steps=50, signed=True, bounds=None)
    assert found.cost == (1 + 50, 50)


@pytest.mark.parametrize(("norm", "by_distance"), [("linf", 2), ("l2", 2), ("l1", 1)])
@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_rivals_come_first_then_the_likeliest(norm, by_distance, seed):
    model, x = linear_model(9, 6, seed=seed), uniform((1, 6), seed)
    logits = model(x).detach()
    labels = logits.argmax(dim=1)
    problem = Problem(model, x, labels, norm, "exact", 5.0, *as_bounds(None, x))
    likeliest = logits[0].argsort(descending=True)[1:].tolist()
    weight = model.weight.detach()
    slopes = {rival: float(dual_norm((weight[labels[0]] - weight[rival])[None], norm)) for rival in likeliest}
    nearest = sorted(likeliest, key=lambda rival: float(logits[0, labels[0]] - logits[0, rival]) / slopes[rival])
    first = nearest[:by_distance]
    seen = nearest_rivals(problem, logits, 9).classes[0].tolist()
    assert seen == first + [rival for rival in likeliest if rival not in first]


class Rings(torch.nn.Module):
    """Two classes in turns, in rings around a point: every ring is a locally closest piece of the boundary."""

    def forward(self, x):
        wave = torch.sin(12 * (x - 0.5).norm(dim=1) + 2 * x[:, 0])
        return torch.stack([wave, -wave], dim=1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_restarts_among_few_features_are_more_and_shorter(monkeypatch, norm):
    """At no further pass they find closer points than a few long ones, and none that is farther."""
    model, inputs = Watched(Rings()), uniform((200, 2), 3)
    once = dyart.closest_boundary_points(model, inputs, norm=norm)
    many = dyart.closest_boundary_points(model, inputs, norm=norm, restarts=4, validate=False)
    assert bool((many.margin <= once.margin * (1 + 1e-6))[once.found].all())
    monkeypatch.setattr(multistart, "FEW_FEATURES", 0)
    model = Watched(Rings())
    long = dyart.closest_boundary_points(model, inputs, norm=norm, restarts=4, validate=False)
    assert long.cost == (len(model.forward_sizes), model.backward_passes)
    assert long.cost[1] - 1 <= many.cost[1] <= long.cost[1]
    best = torch.stack([once.margin, many.margin, long.margin]).amin(dim=0)
    far_many, far_long = (int((found.margin > 1.02 * best).sum()) for found in (many, long))
    assert far_many < far_long / 2
    points = many.points.clone().requires_grad_()
    dyart.logit_margin(Rings()(points), many.labels).sum().backward()
    torch.testing.assert_close(many.gradient[many.found], points.grad[many.found], rtol=1e-4, atol=1e-5)
