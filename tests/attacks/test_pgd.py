"""PGD stays where it may, is a function of (key, index), and reaches the optimum where that is known."""

import math

import pytest
import torch
from problems import distance, linear_model, smooth_network, uniform
from scipy import stats
from side_effects import assert_same, batch, in_mode, network, settings, snapshot

from dyart.attacks.pgd import cross_entropy, negative_margin, pgd
from dyart.boundary.margins import logit_margin

FEATURES, CLASSES, COUNT = 10, 4, 40
MODEL = smooth_network(FEATURES, CLASSES)
INPUTS = (1.4 * uniform((COUNT, FEATURES), 1) - 0.2).clamp(0, 1)
LABELS = torch.arange(COUNT) % CLASSES


def images(count=COUNT):
    return uniform((count, 2, 5, 5), 3)


# The ball and the box


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("radius", [0.0, 0.0005, 0.1, 3.0])
def test_points_stay_in_the_ball_and_in_the_box(norm, start, steps, radius):
    points = pgd(MODEL, INPUTS, LABELS, radius, steps, norm=norm, start=start)
    assert points.shape == INPUTS.shape
    assert points.dtype == INPUTS.dtype
    assert distance(points, INPUTS, norm).max() <= radius * (1 + 1e-5) + 1e-7
    assert points.min() >= 0
    assert points.max() <= 1
    assert radius > 0 or torch.equal(points, INPUTS)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_example_may_have_its_own_radius(norm):
    radii = 0.3 * uniform((COUNT,), 5)
    radii[::3] = 0
    together = pgd(MODEL, INPUTS, LABELS, radii, 5, norm=norm, index=torch.arange(COUNT))
    apart = distance(together, INPUTS, norm)
    assert (apart <= radii * (1 + 1e-5) + 1e-7).all()
    assert torch.equal(together[::3], INPUTS[::3])
    assert (apart[radii > 0] > 0).all()
    for row in (1, 2, 4, 6):
        one = slice(row, row + 1)
        alone = pgd(MODEL, INPUTS[one], LABELS[one], float(radii[row]), 5, norm=norm, index=torch.tensor([row]))
        torch.testing.assert_close(alone, together[one], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_no_box_and_another_box(norm):
    free = pgd(MODEL, INPUTS, LABELS, 0.5, 5, norm=norm, bounds=None)
    assert free.min() < 0
    assert free.max() > 1
    boxed = pgd(MODEL, 4 * INPUTS - 2, LABELS, 0.5, 5, norm=norm, bounds=(-2.0, 2.0))
    assert boxed.min() >= -2
    assert boxed.max() <= 2
    assert boxed.min() < -1


def test_a_batch_of_images_keeps_its_shape_and_an_empty_one_is_no_error():
    def model(x):
        return x.flatten(1)[:, :3] * 2

    for norm in ("linf", "l2"):
        assert pgd(model, images(), LABELS % 3, 0.1, 2, norm=norm).shape == images().shape
        assert pgd(model, images(0), LABELS[:0], 0.1, 2, norm=norm).shape == (0, 2, 5, 5)


# The start


def test_no_steps_return_the_start():
    assert torch.equal(pgd(MODEL, INPUTS, LABELS, 0.1, 0, start="input"), INPUTS)


def starts(norm, start, radius, features=6, count=20_000):
    centre = torch.full((count, features), 0.5)
    return pgd(None, centre, torch.zeros(count), radius, 0, norm=norm, start=start) - 0.5


def test_the_uniform_start_is_uniform_in_the_cube():
    offsets = starts("linf", "uniform", 0.25).flatten().double().numpy()
    assert stats.kstest(offsets, "uniform", (-0.25, 0.5)).pvalue > 1e-4


def test_the_uniform_start_is_uniform_in_the_ball():
    offsets = starts("l2", "uniform", 0.25).double()
    length = offsets.norm(dim=1)
    # The share of a ball within a distance is that distance to the power of the dimension.
    assert stats.kstest(((length / 0.25) ** 6).clamp(max=1).numpy(), "uniform").pvalue > 1e-4
    directions = offsets / length[:, None]
    assert directions.mean(dim=0).abs().max() < 5 / math.sqrt(6 * 20_000)
    cosines = directions.T @ directions / 20_000
    assert (cosines - torch.eye(6) / 6).abs().max() < 0.01
    assert abs(torch.corrcoef(torch.stack([length, directions[:, 0].abs()]))[0, 1]) < 0.04


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_normal_start_is_close_to_the_input(norm):
    offsets = starts(norm, "normal", 0.5).flatten().double().numpy()
    assert stats.kstest(offsets / 0.001, "norm").statistic < 0.01  # rounded where they are added to 0.5


# Determinism


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("start", ["uniform", "normal"])
def test_an_example_gets_the_same_point_in_any_batch(norm, start):
    index = torch.arange(COUNT) + 1000

    def attack(rows, key=7):
        return pgd(MODEL, INPUTS[rows], LABELS[rows], 0.1, 3, norm=norm, start=start, key=key, index=index[rows])

    whole = attack(torch.arange(COUNT))
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(attack(order), whole[order], rtol=0, atol=1e-6)
    torch.testing.assert_close(attack(torch.tensor([5])), whole[5:6], rtol=0, atol=1e-6)
    assert torch.equal(attack(torch.arange(COUNT)), whole)
    assert torch.equal(attack(torch.arange(COUNT), torch.tensor(7)), whole)
    assert not torch.equal(attack(torch.arange(COUNT), 8), whole)


def test_without_names_examples_are_named_by_their_place():
    named = pgd(MODEL, INPUTS, LABELS, 0.1, 3, index=torch.arange(COUNT))
    assert torch.equal(pgd(MODEL, INPUTS, LABELS, 0.1, 3), named)


@pytest.mark.parametrize("key", [2**63 - 1, -(2**63)])
def test_every_key_is_a_key(key):
    for norm in ("linf", "l2"):
        assert pgd(MODEL, INPUTS, LABELS, 0.1, 1, norm=norm, key=key).isfinite().all()


# The optimum of a linear model


@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
@pytest.mark.parametrize("objective", [cross_entropy, negative_margin])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_the_optimum_of_a_linear_model_linf(start, objective, bounds):
    model, inputs = linear_model(2, FEATURES), INPUTS
    labels = model(inputs).argmax(dim=1)
    radius = 0.02
    slope = model.weight[1 - labels] - model.weight[labels]
    corner = inputs + radius * slope.sign()
    corner = corner if bounds is None else corner.clamp(*bounds)
    points = pgd(model, inputs, labels, radius, 10, start=start, objective=objective, bounds=bounds)
    right = objective is cross_entropy or logit_margin(model(corner), labels) > 0
    # The margin's ascent ends where the class changes, wherever that is.
    rows = torch.ones(COUNT, dtype=torch.bool) & right
    assert rows.sum() > COUNT / 2
    torch.testing.assert_close(points[rows], corner[rows], rtol=0, atol=1e-6)
    assert (logit_margin(model(points), labels)[~rows] <= 0).all()
    if bounds is None:
        loss = (slope * (points - inputs)).sum(dim=1)
        torch.testing.assert_close(loss[rows], radius * slope.abs().sum(dim=1)[rows], rtol=1e-4, atol=1e-6)


def test_the_optimum_of_a_linear_model_l2():
    model = linear_model(2, FEATURES)
    labels = model(INPUTS).argmax(dim=1)
    slope = model.weight[1 - labels] - model.weight[labels]
    wanted = INPUTS + 0.3 * slope / slope.norm(dim=1, keepdim=True)
    points = pgd(model, INPUTS, labels, 0.3, 40, 0.06, norm="l2", bounds=None)
    loss, best = (slope * (points - INPUTS)).sum(dim=1), 0.3 * slope.norm(dim=1)
    torch.testing.assert_close(loss, best, rtol=1e-3, atol=0)
    torch.testing.assert_close(points, wanted, rtol=0, atol=0.02)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("scale", [1e-30, 1e-37, 1e25])
def test_steps_have_their_length_whatever_the_size_of_the_gradient(scale, norm):
    # A confident network's cross-entropy has gradients whose squares are below the range of float32.
    def tiny(logits, labels):
        return scale * logits[:, 0]

    points = pgd(lambda x: x, INPUTS, LABELS, 1.0, 1, 0.1, norm=norm, objective=tiny, start="input", bounds=None)
    torch.testing.assert_close(distance(points, INPUTS, norm), torch.full((COUNT,), 0.1).double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_where_there_is_no_slope_the_point_stays(norm):
    points = pgd(lambda x: 0 * x, INPUTS, LABELS, 0.2, 3, norm=norm, start="input")
    torch.testing.assert_close(points, INPUTS)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_loses_no_point(norm, lost):
    """In one coordinate of the first example, at every step; it must not reach the others, nor the second example."""
    weights = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    inputs, labels = torch.full((2, 3), 0.5), torch.zeros(2, dtype=torch.int64)

    def model(points):
        if points.requires_grad:
            points.register_hook(lambda g: torch.cat([torch.cat([g[:1, :2], torch.full((1, 1), lost)], 1), g[1:]]))
        return points @ weights.T

    points = pgd(model, inputs, labels, 0.1, 5, norm=norm, start="input")
    whole = pgd(lambda x: x @ weights.T, inputs, labels, 0.1, 5, norm=norm, start="input")
    assert points.isfinite().all()
    assert torch.equal(points[1], whole[1])
    assert (points[0, :2] < inputs[0, :2]).all(), "down the logit, as far as the gradient is known"


def test_the_default_step_is_two_and_a_half_radii_over_the_steps():
    for radius in (0.2, torch.full((COUNT,), 0.2)):
        by_default = pgd(MODEL, INPUTS, LABELS, radius, 5)
        assert torch.equal(by_default, pgd(MODEL, INPUTS, LABELS, 0.2, 5, 0.1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_loss_rises(norm):
    def loss(x):
        return cross_entropy(MODEL(x), LABELS).mean()

    losses = [loss(pgd(MODEL, INPUTS, LABELS, 0.1, steps, 0.02, norm=norm, start="input")) for steps in (0, 1, 5, 20)]
    assert losses == sorted(losses)
    assert losses[-1] > losses[0] + 0.1


def test_fooled_examples_stay_where_they_are():
    points = pgd(MODEL, INPUTS, LABELS, 0.3, 5, objective=negative_margin, start="input")
    wrong = logit_margin(MODEL(INPUTS), LABELS) < 0
    assert 0 < wrong.sum() < COUNT
    torch.testing.assert_close(points[wrong], INPUTS[wrong])


# Side effects


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_the_model_is_left_as_it_was(mode):
    # Called in the mode that it is in: dropout draws, BatchNorm in training mode counts.
    model, frozen = in_mode(network(), mode), mode == "eval"
    x, y = batch()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, world = snapshot(model, buffers=frozen), settings(draws=frozen)
    points = pgd(model, x.requires_grad_(), y, 0.1, 3, bounds=None)
    assert_same(before, snapshot(model, buffers=frozen))
    assert_same(world, settings(draws=frozen))
    assert not points.requires_grad
    assert points.grad_fn is None
    assert x.grad is None


def test_gradients_may_be_off_and_labels_of_any_integer_type():
    wanted = pgd(MODEL, INPUTS, LABELS, 0.1, 3)
    with torch.no_grad():
        assert torch.equal(pgd(MODEL, INPUTS, LABELS, 0.1, 3), wanted)
    for objective in (cross_entropy, negative_margin):
        wanted = pgd(MODEL, INPUTS, LABELS, 0.1, 3, objective=objective)
        assert torch.equal(pgd(MODEL, INPUTS, LABELS.int(), 0.1, 3, objective=objective), wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
def test_the_dtype_is_that_of_the_inputs(dtype, norm, start):
    seen = []

    def model(x):  # no matrix product: not every processor has one for bfloat16
        seen.append(x.dtype)
        return x[:, :CLASSES] * 2

    points = pgd(model, INPUTS.to(dtype), LABELS, 0.1, 3, norm=norm, start=start)
    assert {points.dtype, *seen} == {dtype}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        ({"norm": "max"}, "got 'max'"),
        ({"start": "random"}, "start must be one of 'uniform', 'normal', 'input'; got 'random'"),
        ({"steps": -1}, "steps must be an integer of at least 0, got -1"),
        ({"steps": 2.5}, "got 2.5"),
        ({"radius": -0.1}, "radius must be finite and at least 0, got -0.1"),
        ({"radius": math.nan}, "got nan"),
        ({"radius": math.inf}, "got inf"),
    ],
)
def test_bad_settings_raise(options, message):
    with pytest.raises(ValueError, match=message):
        pgd(MODEL, INPUTS, LABELS, **({"radius": 0.1} | options))
