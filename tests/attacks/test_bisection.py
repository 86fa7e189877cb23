"""Bisection finds the boundary along a direction: the closed form where there is one, scipy's root elsewhere."""

import itertools

import pytest
import torch
from problems import smooth_network, two_logits, uniform
from scipy.optimize import brentq
from side_effects import assert_same, batch, in_mode, network, settings, snapshot

from dyart.attacks.bisection import along, half_probability_margin, inside, margin_bisection

COUNT, FEATURES, CLASSES = 24, 6, 5
WEIGHT = uniform((FEATURES,), 1, -1, 1, torch.float64)


def linear(x):
    """The margin of class 0 is w (x - 1/2)."""
    return two_logits((x - 0.5) @ WEIGHT)


def linear_case():
    x = uniform((COUNT, FEATURES), 2, 0.35, 0.65, torch.float64)
    side = linear(x)[:, 0].sign()
    labels = (side < 0).long()
    distance = ((x - 0.5) @ WEIGHT).abs() / WEIGHT.abs().sum()
    return x, labels, -side[:, None] * WEIGHT.sign(), distance


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 25])
@pytest.mark.parametrize("tried_first", [False, True])
def test_two_linear_classes(steps, tried_first):
    x, labels, directions, distance = linear_case()
    cap = 0.3
    assert 0.01 < distance.max() < cap
    first = uniform((COUNT,), 3, 0, cap) if tried_first else None
    e = margin_bisection(linear, x, labels, directions, cap, steps, first=first)
    assert (e - distance).abs().max() <= cap / 2**steps + 1e-12
    assert steps > 5 or (e - distance).abs().max() > cap / 2 ** (steps + 4), "no more than what was asked for"


def test_directions_of_any_length():
    x, labels, directions, distance = linear_case()
    e = margin_bisection(linear, x, labels, 4 * directions, 0.3, 20)
    torch.testing.assert_close(4 * e, distance, rtol=0, atol=1e-5)


def test_no_boundary_on_the_way_ends_at_the_cap_and_one_behind_at_zero():
    x, labels, directions, _ = linear_case()
    away = margin_bisection(linear, x, labels, -directions, 0.3, 8)
    assert (away >= 0.3 * (1 - 2**-8)).all()
    assert (away <= 0.3).all()
    behind = margin_bisection(linear, x, 1 - labels, -directions, 0.3, 8)
    assert (behind <= 0.3 * 2**-8).all()
    assert (behind >= 0).all()


def curved_case():
    model = smooth_network(FEATURES, CLASSES).double()
    x = uniform((COUNT, FEATURES), 4, 0.05, 0.95, torch.float64)
    labels = model(x).argmax(dim=1)
    directions = uniform((COUNT, FEATURES), 5, -3, 3, torch.float64)
    return model, x, labels, directions


@pytest.mark.parametrize("bounds", [(0.0, 1.0), None, (0.0, 0.97)])
def test_every_example_as_if_it_were_alone(bounds):
    model, x, labels, directions = curved_case()
    low, high = bounds or (-torch.inf, torch.inf)

    def value(row, e):
        logits = model((x[row] + e * directions[row]).clamp(low, high)[None])[0].detach()
        rivals = torch.cat([logits[: labels[row]], logits[labels[row] + 1 :]])
        return float(logits[labels[row]] - rivals.exp().sum().log())

    cap = 2.0
    e = margin_bisection(model, x, labels, directions, cap, 40, bounds=bounds)
    crossing = [row for row in range(COUNT) if value(row, 0) > 0 > value(row, cap)]
    assert len(crossing) >= 5
    for row in crossing:
        assert value(row, float(e[row]) - 1e-9) > 0 > value(row, float(e[row]) + 1e-9)
        signs = [value(row, i * cap / 50) > 0 for i in range(51)]
        if sum(a != b for a, b in itertools.pairwise(signs)) == 1:
            assert float(e[row]) == pytest.approx(brentq(lambda e, row=row: value(row, e), 0, cap), abs=1e-8)


def test_the_boundary_is_where_the_labels_probability_is_one_half():
    model, x, labels, directions = curved_case()
    e = margin_bisection(model, x, labels, directions, 2.0, 40)
    points = along(x, directions, e)
    probability = model(points).softmax(dim=1)[torch.arange(COUNT), labels]
    begins, ends = inside(model, x, labels), inside(model, along(x, directions, torch.full((COUNT,), 2.0)), labels)
    assert (begins & ~ends).sum() >= 5
    torch.testing.assert_close(probability[begins & ~ends], torch.full_like(e, 0.5)[begins & ~ends])
    assert points.min() >= 0
    assert points.max() <= 1


def test_the_margin_and_the_inside():
    logits = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 3.0, 0.0]])
    labels = torch.tensor([0, 1, 0])
    p = logits.softmax(dim=1)[torch.arange(3), labels]
    torch.testing.assert_close(half_probability_margin(logits, labels), (p / (1 - p)).log())
    assert inside(lambda x: x, logits, labels).tolist() == [True, False, False]
    # Correct, and still outside: the label's probability is the largest, and below one half.
    assert not inside(lambda x: x, torch.tensor([[0.2, 0.0, 0.0]]), torch.tensor([0])).any()


def test_it_costs_its_steps_without_gradients():
    x, labels, directions, _ = linear_case()
    gradients = []

    def model(points):
        gradients.append((torch.is_grad_enabled(), points.requires_grad))
        return linear(points)

    margin_bisection(model, x.requires_grad_(), labels, directions.requires_grad_(), 0.3, 7)
    assert gradients == [(False, False)] * 7


def test_nothing_else_changes():
    model, (x, y) = in_mode(network(), "eval"), batch()
    before, world = snapshot(model), settings()
    e = margin_bisection(model, x, y, torch.ones_like(x), 0.1, 3)
    assert_same(before, snapshot(model))
    assert_same(world, settings())
    assert e.shape == y.shape
    assert not e.requires_grad


def test_images_in_bfloat16_networks_and_empty_batches():
    x = uniform((4, 3, 2, 2), 6)

    def model(points):
        return points.flatten(1)[:, :3].bfloat16()

    e = margin_bisection(model, x, torch.tensor([0, 1, 2, 0], dtype=torch.int32), torch.ones_like(x), 0.1)
    assert e.dtype == torch.float32
    none = margin_bisection(model, x[:0], torch.zeros(0, dtype=torch.int64), x[:0], 0.1)
    assert none.shape == (0,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap": 0.0}, "cap must be positive, got 0.0"),
        ({"cap": float("inf")}, "cap must be a positive, finite number"),
        ({"cap": 0.1, "steps": 0}, "steps must be an integer of at least 1, got 0"),
    ],
)
def test_bad_settings_raise(settings, message):
    x, labels, directions, _ = linear_case()
    with pytest.raises(ValueError, match=message):
        margin_bisection(linear, x, labels, directions, **settings)
