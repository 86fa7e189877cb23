"""MAIL-AT and MAIL-TRADES against versions of them that go example by example, and the table of weights."""

import math

import pytest
import torch
from objective_cases import assert_all_close, gradients_of, images, labels_of
from objective_cases import network as resnet
from run_cases import assert_same_run, run

from dyart.data.loader import Batch
from dyart.engine.callbacks import Callback
from dyart.engine.fit import TrainingError
from dyart.methods.at import AT
from dyart.methods.mail import MAILAT, MAILTRADES, Weighting, negative_probability_margin
from dyart.methods.trades import TRADES

X = images()
CLASSES = 4
BOTH = pytest.mark.parametrize("cls", [MAILAT, MAILTRADES])


def setting(normalization="group"):
    model = resnet(normalization).train()
    return model, Batch(X, labels_of(model, X), torch.arange(len(X)) * 7, torch.tensor(5))


def probabilities(logits):
    total = sum(z.exp() for z in logits)
    return [z.exp() / total for z in logits]


def naive_weights(model, batch, points, slope, bias, normalize):
    weights = []
    for i in range(len(batch)):
        p = [q.item() for q in probabilities(model(points[i : i + 1])[0])]
        y = int(batch.labels[i])
        margin = max(p[k] for k in range(CLASSES) if k != y) - p[y]
        weights.append(1 / (1 + math.exp(-slope * (margin + bias))))
    scale = len(batch) / sum(weights) if normalize else 3
    return [scale * weight for weight in weights]


def naive_at(model, batch, points, weights):
    rows = [probabilities(model(points[i : i + 1])[0])[int(batch.labels[i])].log() for i in range(len(batch))]
    return -sum(weight * row for weight, row in zip(weights, rows, strict=True)) / len(batch)


def naive_trades(model, batch, points, weights, beta=5.0):
    total = 0.0
    for i in range(len(batch)):
        clean = probabilities(model(X[i : i + 1])[0])
        other = probabilities(model(points[i : i + 1])[0])
        total = total - clean[int(batch.labels[i])].log()
        for k in range(CLASSES):
            total = total + beta * weights[i] * clean[k] * (clean[k].log() - other[k].log())
    return total / len(batch)


NAIVE = {MAILAT: naive_at, MAILTRADES: naive_trades}


@BOTH
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("slope", "bias"), [(10.0, -0.5), (2.0, 0.0), (1.0, -1.5)])
def test_loss_and_gradient(cls, slope, bias, normalize):
    model, batch = setting()
    method = cls(slope, bias, normalize=normalize, radius=0.1)
    points = method.crafted(model, batch)
    loss, metrics = method.loss(model, batch, points)
    weights = naive_weights(model, batch, points, slope, bias, normalize)
    wanted = NAIVE[cls](model, batch, points, weights)
    torch.testing.assert_close(loss, wanted)
    # The weights are constants: no gradient goes through them, here or there.
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-9)
    assert metrics["weight"] == pytest.approx(sum(weights) / len(weights))
    assert metrics["adversarial_accuracy"] == (model(points).argmax(dim=1) == batch.labels).float().mean()
    ones = [1.0] * len(batch)
    if cls is MAILAT:
        assert metrics["adversarial_loss"] == pytest.approx(naive_at(model, batch, points, ones).item())
    else:
        kl = naive_trades(model, batch, points, ones, 1.0) - naive_trades(model, batch, points, ones, 0.0)
        assert metrics["kl"] == pytest.approx(kl.item())


def logits_with(margins):
    """Two classes, label 0, with these differences of the probabilities."""
    other = (1 + torch.tensor(margins, dtype=torch.float64)) / 2
    return torch.stack([(1 - other).log(), other.log()], dim=1)


@pytest.mark.parametrize(
    ("bias", "slope", "wanted"),
    [
        (-1.5, 1.0, [0.228, 0.358, 0.547, 0.807, 1.133]),
        (0.0, 2.0, [0.358, 0.807, 1.5, 2.193, 2.642]),
        (-0.5, 10.0, [0.0, 0.0, 0.020, 1.5, 2.98]),
    ],
)
def test_the_table_of_weights(bias, slope, wanted):
    margins = [-1.0, -0.5, 0.0, 0.5, 1.0]
    logits, labels = logits_with(margins).clamp(min=-1e3), torch.zeros(5, dtype=torch.int64)
    torch.testing.assert_close(negative_probability_margin(logits, labels).tolist(), margins)
    weights = Weighting(slope, bias, 0.63, normalize=False)(logits, labels)
    assert weights.tolist() == pytest.approx(wanted, abs=6e-4)
    normalized = Weighting(slope, bias, 0.63, normalize=True)(logits, labels)
    assert normalized.sum() == pytest.approx(5)
    torch.testing.assert_close(normalized / normalized[-1], weights / weights[-1])


def test_normalized_weights_of_a_steep_slope_are_finite():
    logits = torch.tensor([[50.0, 0.0], [50.0, 0.0], [2.0, 0.0]])
    weights = Weighting(500.0, -0.5, 0.0, normalize=True)(logits, torch.zeros(3, dtype=torch.int64))
    assert weights.isfinite().all()
    assert weights.sum() == pytest.approx(3)
    assert weights[2] > weights[0]


@BOTH
def test_before_its_time_every_weight_is_one(cls):
    model, batch = setting()
    plain = AT(start="normal") if cls is MAILAT else TRADES(beta=5.0)
    method = cls()
    points = plain.crafted(model, batch)
    assert torch.equal(method.crafted(model, batch), points)
    wanted, _ = plain.loss(model, batch, points)
    method.advance(0.62)
    loss, metrics = method.loss(model, batch, points)
    torch.testing.assert_close(loss, wanted)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-9)
    assert metrics["weight"] == 1
    before = method.stage
    method.advance(0.63)
    assert method.stage != before  # another loss: a captured step is captured anew
    assert abs(method.loss(model, batch, points)[0] - wanted) > 1e-3


@BOTH
def test_the_released_schedule_and_a_loop_without_one(cls):
    model, batch = setting()
    method, points = cls(), X

    def weighted():
        return bool(method.loss(model, batch, points)[1]["weight"] != 1)

    assert weighted()
    begun = []
    for epoch in range(120):
        method.advance(epoch / 120)
        if epoch in (0, 75, 76, 119):
            begun.append(weighted())
    assert begun == [False, False, True, True]


@BOTH
def test_label_distributions(cls):
    model, batch = setting()
    hard = torch.nn.functional.one_hot(batch.labels, CLASSES).double()
    soft = 0.6 * hard + 0.4 * hard.roll(1, 0)
    method = cls()
    points = method.crafted(model, batch)
    plain, same, mixed = (
        method.loss(model, Batch(X, batch.labels, batch.index, batch.key, targets), points)[0]
        for targets in (None, hard, soft)
    )
    torch.testing.assert_close(plain, same)
    weights = torch.ones(len(batch)).double()
    if cls is MAILAT:
        weights = torch.tensor(naive_weights(model, batch, points, 10.0, -0.5, False), dtype=torch.float64)
    at = points if cls is MAILAT else X
    wanted = (weights * ((hard - soft) * model(at).log_softmax(dim=1)).sum(dim=1)).mean()
    torch.testing.assert_close(mixed - plain, wanted)
    assert abs(wanted) > 1e-3


def test_passes_of_the_training_step():
    model, batch = setting("batch")
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    points = (X + 0.01).clamp(0, 1)
    for method, wanted in ((MAILAT(), [points]), (MAILTRADES(), [X, points])):
        seen.clear()
        method.loss(model, batch, points)
        assert [torch.equal(one, two) for one, two in zip(seen, wanted, strict=True)] == [True] * len(wanted)
    seen.clear()
    MAILTRADES(joint=True).loss(model, batch, points)
    assert [len(images) for images in seen] == [2 * len(X)]


@BOTH
def test_bfloat16_logits_are_weighted_in_float32(cls):
    _, batch = setting()
    logits = torch.randn(12, CLASSES, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    loss, metrics = cls().loss(lambda _: logits, batch, X)
    assert {loss.dtype, *(value.dtype for value in metrics.values())} == {torch.float32}


def test_the_defaults():
    at, trades = MAILAT(), MAILTRADES()
    assert (at.weighting.slope, at.weighting.bias, at.name) == (10, -0.5, "mail-at")
    assert (trades.weighting.slope, trades.weighting.bias, trades.name) == (2, 0, "mail-trades")
    assert (trades.beta, trades.smoothing, trades.joint) == (5, 0, False)
    for method in (at, trades):
        assert (method.weighting.begin, method.weighting.normalize) == (0.63, False)
        assert (method.radius, method.steps, method.step_size) == (8 / 255, 10, 2 / 255)
        assert (method.norm, method.start) == ("linf", "normal")


class StopAt(Callback):
    """Asks a training to stop after a step, as a signal does."""

    def __init__(self, step):
        self.step = step

    def on_step(self, training):
        if training.steps_done == self.step:
            training.stop_reason = "stopped"


@BOTH
def test_a_run_begins_to_weight_when_it_should_and_resumes(cls, tmp_path):
    settings = {"name": cls.name, "slope": 2.0, "bias": 0.0}
    whole = run(tmp_path / "one", settings, epochs=4)
    weights = [line["weight"] for line in whole.history]
    assert weights[:3] == [1, 1, 1]  # at the fractions 0, 0.25, 0.5
    assert abs(weights[3] - 1) > 0.01
    with pytest.raises(TrainingError, match="stopped after step 10"):
        run(tmp_path / "two", settings, epochs=4, callbacks=[StopAt(10)])  # in the last epoch
    assert_same_run(whole, run(tmp_path / "two", settings, epochs=4, resume=True))


@BOTH
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slope": -1.0}, "slope must be at least 0 and finite, got -1.0"),
        ({"bias": math.nan}, "bias must be finite, got nan"),
        ({"begin": 1.5}, "begin is a fraction of the training, from 0 to 1, got 1.5"),
        ({"begin": -0.1}, "got -0.1"),
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"start": "zero"}, "start must be one of"),
    ],
)
def test_bad_settings_raise(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


def test_a_bad_beta_raises():
    with pytest.raises(ValueError, match="beta must be at least 0 and finite, got -1"):
        MAILTRADES(beta=-1.0)
