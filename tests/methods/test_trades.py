"""TRADES against a version of it that goes example by example, and the numbers that are known."""

import math

import pytest
import torch
from objective_cases import assert_all_close, gradients_of, images, labels_of
from objective_cases import network as resnet
from run_cases import assert_same_run, run
from torch import nn

from dyart.attacks.radius import Radius
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.methods.base import start_key
from dyart.methods.natural import Natural
from dyart.methods.trades import TRADES, smoothed_loss

X = images()
CLASSES = 4


def setting(normalization="group"):
    model = resnet(normalization).train()
    return model, Batch(X, labels_of(model, X), torch.arange(len(X)) * 7, torch.tensor(5))


def log_probabilities(logits):
    total = sum(z.exp() for z in logits)
    return [z - total.log() for z in logits]


def naive(model, batch, points, beta, smoothing):
    """The loss, one example, one class at a time."""
    total = 0.0
    for i in range(len(batch)):
        clean = log_probabilities(model(batch.inputs[i : i + 1])[0])
        other = log_probabilities(model(points[i : i + 1])[0])
        total = total - (1 - smoothing) * clean[int(batch.labels[i])]
        for k in range(CLASSES):
            total = total - smoothing / CLASSES * clean[k]
            total = total + beta * clean[k].exp() * (clean[k] - other[k])
    return total / len(batch)


def crafted_by_hand(model, batch, radius, steps, step, offset):
    model.eval()
    rows = []
    for i in range(len(batch)):
        x = batch.inputs[i : i + 1]
        clean = [z.detach() for z in log_probabilities(model(x)[0])]
        point = (x + offset[i]).clamp(0, 1)
        for _ in range(steps):
            point = point.detach().requires_grad_()
            other = log_probabilities(model(point)[0])
            total = sum(clean[k].exp() * (clean[k] - other[k]) for k in range(CLASSES))
            (g,) = torch.autograd.grad(total, point)
            point = (point.detach() + step * g.sign()).clamp(x - radius, x + radius).clamp(0, 1)
        rows.append(point)
    model.train()
    return torch.cat(rows)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("beta", "smoothing"), [(6.0, 0.0), (1.5, 0.1), (0.0, 0.0)])
def test_loss_and_gradient(beta, smoothing, joint):
    model, batch = setting()
    method = TRADES(beta, smoothing, radius=0.1, joint=joint)
    points = method.crafted(model, batch)
    loss, metrics = method.loss(model, batch, points)
    wanted = naive(model, batch, points, beta, smoothing)
    torch.testing.assert_close(loss, wanted)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-9)
    assert metrics["clean_loss"] == pytest.approx(naive(model, batch, points, 0.0, smoothing).item())
    kl = naive(model, batch, points, 1.0, 0.0) - naive(model, batch, points, 0.0, 0.0)
    assert metrics["kl"] == pytest.approx(kl.item())
    assert metrics["kl"] > 0.01
    assert metrics["accuracy"] == (model(X).argmax(dim=1) == batch.labels).float().mean()
    assert metrics["adversarial_accuracy"] == (model(points).argmax(dim=1) == batch.labels).float().mean()


@pytest.mark.parametrize("start", ["normal", "uniform"])
def test_the_points(start):
    model, batch = setting("batch")
    stream = start_key(batch, "trades")
    if start == "normal":
        offset = 0.001 * draws.normal(stream, batch.index, X.shape[1:]).double()
    else:
        offset = 0.05 * (2 * draws.uniform(stream, batch.index, X.shape[1:]).double() - 1)
    points = TRADES(radius=0.05, steps=3, step_size=0.02, start=start).crafted(model, batch)
    wanted = crafted_by_hand(model, batch, 0.05, 3, 0.02, offset)
    torch.testing.assert_close(points, wanted, rtol=0, atol=1e-7)


def test_without_weight_and_smoothing_it_is_natural_training():
    model, batch = setting()
    method = TRADES(beta=0.0)
    loss, _ = method.loss(model, batch, method.crafted(model, batch))
    wanted, _ = Natural().loss(model, batch, None)
    assert torch.equal(loss, wanted)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-12)


def test_at_the_images_themselves_the_divergence_is_zero():
    model, batch = setting()
    loss, metrics = TRADES().loss(model, batch, X)
    assert metrics["kl"].abs() < 1e-15
    torch.testing.assert_close(loss, Natural().loss(model, batch, None)[0])


def test_smoothed_cross_entropy_of_uniform_logits():
    batch = Batch(torch.zeros(3, 1), torch.tensor([0, 4, 9]), torch.arange(3), torch.tensor(0))
    assert smoothed_loss(torch.zeros(3, 10), batch, 0.1) == pytest.approx(math.log(10))
    skewed = torch.eye(10)[[0, 4, 9]]
    wanted = math.log(9 + math.e) - 0.9 - 0.1 / 10
    assert smoothed_loss(skewed, batch, 0.1) == pytest.approx(wanted)


def test_label_distributions_are_used_in_the_clean_term_alone():
    model, batch = setting()
    hard = nn.functional.one_hot(batch.labels, CLASSES).double()
    soft = 0.6 * hard + 0.4 * hard.roll(1, 0)
    points = TRADES().crafted(model, batch)
    plain, mixed = (
        TRADES().loss(model, Batch(X, batch.labels, batch.index, batch.key, targets), points)[0]
        for targets in (None, soft)
    )
    wanted = ((hard - soft) * model(X).log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(mixed - plain, wanted)
    assert abs(wanted) > 1e-3


def test_clean_images_pass_first_and_statistics_see_both():
    model, batch = setting("batch")
    twin, _ = setting("batch")
    points = TRADES().crafted(model, batch)
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    TRADES().loss(model, batch, points)
    assert [torch.equal(one, two) for one, two in zip(seen, (X, points), strict=True)] == [True, True]
    twin(X)
    twin(points)
    for (name, one), (_, other) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    seen.clear()
    TRADES(joint=True).loss(model, batch, points)
    assert [len(images) for images in seen] == [2 * len(X)]


def test_logits_of_bfloat16_are_compared_in_float32_and_gradients_flow():
    model, batch = setting()
    loss, metrics = TRADES(steps=2)(lambda x: model(x).bfloat16(), X, batch.labels)
    assert {loss.dtype, *(value.dtype for value in metrics.values())} == {torch.float32}
    assert all(gradient.abs().sum() > 0 for gradient in gradients_of(loss, model))


def test_the_defaults():
    method = TRADES()
    assert (method.beta, method.smoothing, method.joint) == (6, 0, False)
    assert (method.radius, method.steps, method.step_size) == (8 / 255, 10, 2 / 255)
    assert (method.norm, method.start) == ("linf", "normal")


def test_a_run_repeats_and_says_what_it_does(tmp_path):
    settings = {"name": "trades", "smoothing": 0.1, "step_size": Radius("0.02")}
    one, two = (run(tmp_path / name, settings) for name in ("one", "two"))
    assert_same_run(one, two)
    first, *_, last = one.history
    assert last["loss"] == pytest.approx(last["clean_loss"] + 6 * last["kl"], rel=1e-5)
    assert last["loss"] < first["loss"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, "beta must be at least 0 and finite, got -1.0"),
        ({"beta": math.nan}, "beta must be at least 0"),
        ({"beta": math.inf}, "got inf"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1, got 1.0"),
        ({"smoothing": -0.1}, "got -0.1"),
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"step_size": 0}, "step_size must be positive"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        ({"start": "input"}, "start must be one of 'uniform', 'normal'; got 'input'"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        TRADES(**settings)
