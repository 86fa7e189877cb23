"""Natural training is cross-entropy, adversarial training is cross-entropy at hand-written PGD's points."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from objective_cases import assert_all_close, gradients_of, images, labels_of
from objective_cases import network as resnet
from torch import nn

from dyart.attacks.radius import Radius
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.base import start_key
from dyart.methods.natural import Natural

X = images()


def setting(normalization="batch"):
    model = resnet(normalization).train()
    return model, labels_of(model, X)


def named(labels, key=5):
    return Batch(X, labels, torch.arange(len(X)) * 7, torch.tensor(key))


def test_natural_training_is_cross_entropy():
    model, labels = setting("group")
    loss, metrics = Natural()(model, X, labels)
    wanted = F.cross_entropy(model(X), labels)
    assert torch.equal(loss, wanted)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-12)
    assert metrics["clean_loss"] == wanted
    assert metrics["accuracy"] == (model(X).argmax(dim=1) == labels).float().mean()


def test_natural_training_is_one_pass_in_training_mode():
    model, labels = setting("batch")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(model.training))
    method = Natural()
    method(model, X, labels)
    assert calls == [False, True], "the first call checks the batch"
    calls.clear()
    method(model, X, labels)
    assert calls == [True]


def by_hand(model, labels, radius, steps, step, offset, norm="linf"):
    """PGD as in the papers: eval mode, ascent on the cross-entropy, projected onto ball and box."""
    model.eval()
    points = (X + offset).clamp(0, 1)
    for _ in range(steps):
        points = points.detach().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(model(points), labels, reduction="sum"), points)
        with torch.no_grad():
            if norm == "linf":
                points = points + step * g.sign()
                points = torch.min(torch.max(points, X - radius), X + radius).clamp(0, 1)
            else:
                d = points + step * g / g.flatten(1).norm(dim=1)[:, None, None, None] - X
                length = d.flatten(1).norm(dim=1)[:, None, None, None]
                points = (X + d * (radius / length).clamp(max=1)).clamp(0, 1)
    model.train()
    return points.detach()


def offset_of(batch, radius, start):
    stream = start_key(batch, "at")
    if start == "uniform":
        return radius * (2 * draws.uniform(stream, batch.index, X.shape[1:]).double() - 1)
    return 0.001 * draws.normal(stream, batch.index, X.shape[1:]).double() if start == "normal" else 0.0


@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
@pytest.mark.parametrize("settings", [(8 / 255, 10, 2 / 255), (0.1, 3, 0.07), (Radius("4/255"), 1, Radius("5/255"))])
def test_adversarial_training_is_cross_entropy_at_the_points_of_pgd(settings, start):
    model, labels = setting("batch")
    batch = named(labels)
    method = AT(*settings, start=start)
    points = method.crafted(model, batch)
    wanted = by_hand(model, labels, *settings, offset_of(batch, settings[0], start))
    torch.testing.assert_close(points, wanted, rtol=0, atol=1e-7)
    loss, metrics = method.loss(model, batch, points)
    logits = model(points)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))
    assert_all_close(gradients_of(loss, model), gradients_of(F.cross_entropy(logits, labels), model), 1e-9)
    assert metrics["adversarial_loss"] == loss
    assert metrics["adversarial_accuracy"] == (logits.argmax(dim=1) == labels).float().mean()


def test_adversarial_training_in_l2():
    model, labels = setting("group")
    points = AT(0.5, 4, 0.2, norm="l2", start="input").crafted(model, named(labels))
    torch.testing.assert_close(points, by_hand(model, labels, 0.5, 4, 0.2, 0.0, "l2"), rtol=0, atol=1e-7)


def test_the_defaults_are_the_papers():
    method = AT()
    assert (method.radius, method.steps, method.step_size) == (8 / 255, 10, 2 / 255)
    assert (method.norm, method.start) == ("linf", "uniform")


def test_adversarial_training_costs_its_steps_and_one_more():
    model, labels = setting("batch")
    modes = []
    model.register_forward_hook(lambda *_: modes.append(model.training))
    method = AT(steps=6)
    method(model, X, labels)
    assert modes == [False] * 7 + [True], "the first call checks the batch"
    modes.clear()
    method(model, X, labels)
    assert modes == [False] * 6 + [True]


def test_statistics_see_adversarial_images_alone():
    model, labels = setting("batch")
    twin, _ = setting("batch")
    points = AT().crafted(model, named(labels))
    AT().loss(model, named(labels), points)
    twin(points)
    for (name, one), (_, other) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_crafting_of_one_example_does_not_depend_on_the_others():
    model, labels = setting("batch")
    batch = named(labels)
    whole = AT().crafted(model, batch)
    rows = torch.tensor([7, 2])
    part = Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows], batch.key)
    torch.testing.assert_close(AT().crafted(model, part), whole[rows], rtol=0, atol=1e-9)


def test_plain_values_as_a_recipe_gives_them():
    method = AT(**{"radius": Radius("6/255"), "steps": 7, "step_size": Radius("0.01"), "norm": "l2", "start": "input"})
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    loss, _ = method(model, X.float(), setting()[1])
    assert loss.isfinite()
    assert Natural(**{}).name == "natural"
    assert all(p.annotation is not inspect.Parameter.empty for p in inspect.signature(AT).parameters.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"radius": -1.0}, "radius must be positive"),
        ({"radius": float("nan")}, "radius must be positive"),
        ({"step_size": 0}, "step_size must be positive"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"steps": 1.5}, "got 1.5"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        ({"start": "zero"}, "start must be one of"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        AT(**settings)
