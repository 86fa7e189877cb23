"""GAIRAT: kappa and weights as in paper and released code, example by example; adversarial training until it begins."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_cases import CrashAt, CrashError, numbers
from objective_cases import assert_all_close, gradients_of
from stepwise_cases import (
    RADIUS,
    STEP,
    STEPS,
    STEPS_PER_EPOCH,
    alone,
    config,
    naive_cross_entropy,
    setting,
    without_values,
)

from dyart.data import draws
from dyart.data.loader import Batch
from dyart.engine.run import prepare, train
from dyart.methods.at import AT
from dyart.methods.base import start_key
from dyart.methods.gairat import GAIRAT

# Raw weights of kappa = 0 .. 10 for Lambda = -1 and K = 10.
TABLE = [0.9997, 0.9975, 0.9820, 0.8808, 0.5000, 0.1192, 0.0180, 0.0025, 0.0003, 0.0, 0.0]
BALL = (RADIUS, STEPS, STEP)


def test_the_table_of_weights():
    weights = GAIRAT().weights(torch.arange(11))
    # All are divided by the same number, and that of kappa = 4 is a half.
    torch.testing.assert_close(0.5 * weights / weights[4], torch.tensor(TABLE), rtol=0, atol=6e-5)
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("kappa", [[0, 10, 10, 3], [10, 10], [5], list(range(11))])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 2.0, -80.0])
def test_weights_sum_to_the_number_of_examples(kappa, shift):
    weights = GAIRAT(shift=shift).weights(torch.tensor(kappa))
    assert weights.sum().item() == pytest.approx(len(kappa), rel=1e-5)
    raw = [1 / (1 + math.exp(-2 * (shift + 5 * (1 - 2 * k / 10)))) for k in kappa]
    wanted = torch.tensor([len(kappa) * w / sum(raw) for w in raw])
    # In float32 and with a shift far below 0 the raw weights would all be 0 and their shares nan.
    torch.testing.assert_close(weights, wanted, rtol=1e-4, atol=1e-6)


def test_the_weights_of_another_number_of_steps():
    weights = GAIRAT(steps=4, shift=0.0).weights(torch.arange(5))
    raw = [(1 + math.tanh(5 * (2 - k) / 2)) / 2 for k in range(5)]
    torch.testing.assert_close(weights, torch.tensor([5 * w / sum(raw) for w in raw]), rtol=1e-4, atol=1e-6)


def by_hand(model, batch, kappa, shift):
    """Points, counts and loss, one example after the other."""
    offsets = 2 * draws.uniform(start_key(batch, "at"), batch.index, batch.inputs.shape[1:]).double() - 1
    points, counts = [], []
    for x, y, offset in zip(batch.inputs, batch.labels.tolist(), offsets, strict=True):
        start = (x + RADIUS * offset).clamp(0, 1)
        point, seen = alone(model, lambda z, y=y: naive_cross_entropy(z, y), x, y, start, tau=STEPS)
        points.append(point)
        counts.append(sum(seen) if kappa == "correct" else [*seen, False].index(False))
    raw = [(1 + math.tanh(shift + 5 * (5 - count) / 5)) / 2 for count in counts]
    loss = sum(
        w / sum(raw) * naive_cross_entropy(model(point[None]), y)
        for w, point, y in zip(raw, points, batch.labels.tolist(), strict=True)
    )
    return torch.stack(points), counts, loss


@pytest.mark.parametrize("kappa", ["correct", "first-error"])
@pytest.mark.parametrize("shift", [-1.0, 0.5])
def test_loss_and_gradient_example_by_example(kappa, shift):
    model, batch = setting("group")
    method = GAIRAT(*BALL, shift=shift, kappa=kappa)
    points, counts, wanted = by_hand(model, batch, kappa, shift)
    crafted = method.crafted(model, batch)
    torch.testing.assert_close(crafted[0], points, rtol=0, atol=1e-7)
    assert crafted[1].tolist() == counts
    loss, metrics = method.loss(model, batch, crafted)
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-5)
    assert metrics["kappa"] == pytest.approx(sum(counts) / len(counts))
    plain = F.cross_entropy(model(points), batch.labels)
    torch.testing.assert_close(metrics["adversarial_loss"], plain.detach())
    weights = method.weights(crafted[1])
    assert metrics["weight_max"] == weights.max()
    assert 1 / len(counts) <= metrics["weight_effective"] < 1
    # The comparison is worth something: counts differ, and so do weights.
    assert len(set(counts)) > 3
    assert abs(loss - plain) > 0.1


def test_the_two_counts_where_an_example_comes_back():
    def model(x):  # right but within 0.1 of the middle, where the ascent goes to and jumps out of
        return torch.stack([(x[:, 0] - 0.5).abs(), torch.full_like(x[:, 0], 0.1)], dim=1)

    batch = Batch(torch.tensor([[0.7]]), torch.tensor([0]), torch.tensor([0]), torch.tensor(0))
    for kappa, wanted in (("correct", 5), ("first-error", 1)):
        points, count = GAIRAT(0.4, 10, 0.25, start="input", kappa=kappa).craft(model, batch)
        assert count.tolist() == [wanted]
        torch.testing.assert_close(points, batch.inputs)


def test_weights_take_no_gradient_and_come_from_eval_mode():
    model, batch = setting("batch")
    crafted = GAIRAT(*BALL).crafted(model, batch)
    assert crafted[1].dtype == torch.int64
    assert not crafted[0].requires_grad
    part = torch.tensor([7, 2])
    fewer = Batch(batch.inputs[part], batch.labels[part], batch.index[part], batch.key)
    points, kappa = GAIRAT(*BALL).crafted(model, fewer)
    torch.testing.assert_close(points, crafted[0][part], rtol=0, atol=1e-9)
    assert torch.equal(kappa, crafted[1][part])


@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
def test_until_it_begins_it_is_adversarial_training(start):
    model, batch = setting("batch")
    method, at = GAIRAT(*BALL, start=start), AT(*BALL, start=start)
    crafted = method.crafted(model, batch)
    assert torch.equal(crafted[0], at.crafted(model, batch))
    wanted = at.loss(model, batch, crafted[0])[0]
    for fraction in (0.0, 0.49):
        method.advance(fraction)
        loss, metrics = method.loss(model, batch, crafted)
        assert torch.equal(loss, wanted)
        assert metrics["weight_max"] == metrics["weight_effective"] == 1
    for fraction in (0.5, 0.99):
        method.advance(fraction)
        assert not torch.equal(method.loss(model, batch, crafted)[0], wanted)


def test_the_begin_of_the_weights_is_a_new_stage():
    method = GAIRAT(begin=0.3)
    stages = []
    for fraction in (0.0, 0.2, 0.3, 0.9):
        method.advance(fraction)
        stages.append(method.stage)
    assert stages == [False, False, True, True]


def test_where_nobody_says_how_far_the_training_is_examples_are_weighted():
    model, batch = setting("group")
    loss, metrics = GAIRAT(*BALL)(model, batch.inputs, batch.labels)
    assert metrics["weight_max"] > 1.1
    assert loss != metrics["adversarial_loss"]


def test_label_distributions_are_used():
    model, batch = setting("group")
    method = GAIRAT(*BALL)
    crafted = method.crafted(model, batch)
    hard = F.one_hot(batch.labels, 4).double()
    soft = 0.7 * hard + 0.3 * hard.roll(1, 0)
    same, mixed = (
        method.loss(model, Batch(batch.inputs, batch.labels, batch.index, batch.key, t), crafted)[0]
        for t in (hard, soft)
    )
    torch.testing.assert_close(same, method.loss(model, batch, crafted)[0])
    log, weights = F.log_softmax(model(crafted[0]), dim=1), method.weights(crafted[1])
    torch.testing.assert_close(mixed, -(weights * (soft * log).sum(dim=1)).mean())


def test_no_value_is_looked_at():
    model, batch = without_values()
    for method in (GAIRAT(), GAIRAT(norm="l2", kappa="first-error")):
        crafted = method.craft(model.eval(), batch)
        loss, metrics = method.loss(model.train(), batch, crafted)
        assert {tensor.device.type for tensor in (*crafted, loss, *metrics.values())} == {"meta"}


def test_the_defaults_and_the_cost():
    method = GAIRAT()
    assert (method.radius, method.steps, method.step_size) == (8 / 255, 10, 2 / 255)
    assert (method.norm, method.start) == ("linf", "uniform")
    assert (method.shift, method.begin, method.kappa) == (-1.0, 0.5, "correct")
    model, batch = setting("batch")
    modes = []
    model.register_forward_hook(lambda *_: modes.append(model.training))
    method(model, batch.inputs, batch.labels)
    assert modes == [False] * 11 + [True], "the first pass of a first call is the check's"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"step_size": -1.0}, "step_size must be positive"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        ({"start": "zero"}, "start must be one of"),
        ({"shift": math.inf}, "shift must be finite, got inf"),
        ({"shift": math.nan}, "shift must be finite, got nan"),
        ({"begin": 1.5}, "begin must be a fraction of the training from 0 to 1, got 1.5"),
        ({"begin": math.nan}, "got nan"),
        ({"kappa": "paper"}, "kappa must be one of 'correct', 'first-error'; got 'paper'"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        GAIRAT(**settings)


def test_a_training(tmp_path):
    method = {"name": "gairat"}
    train(config(tmp_path / "whole", method))
    records = numbers(tmp_path / "whole")
    steps = [record for record in records if record["kind"] == "step"]
    # Two of four epochs are adversarial training.
    assert [record["weight_max"] > 1 for record in steps] == [False] * 2 * STEPS_PER_EPOCH + [
        True
    ] * 2 * STEPS_PER_EPOCH
    assert all(0 <= record["kappa"] <= 5 for record in steps)
    train(config(tmp_path / "at", {"name": "at"}))
    plain = [record for record in numbers(tmp_path / "at") if record["kind"] == "step"]
    same = [one["loss"] == other["loss"] for one, other in zip(steps, plain, strict=True)]
    assert same == [True] * 2 * STEPS_PER_EPOCH + [False] * 2 * STEPS_PER_EPOCH
    with pytest.raises(CrashError):
        train(config(tmp_path / "crashed", method), callbacks=[CrashAt(3 * STEPS_PER_EPOCH + 1)])
    resumed = config(tmp_path / "crashed", method)
    train(resumed, resume=True)
    assert numbers(tmp_path / "crashed") == records
    assert prepare(config(tmp_path / "other", method)).method.state_dict() == {}
