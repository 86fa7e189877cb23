"""MART against a version of it that goes example by example, and the numbers that are known."""

import math

import pytest
import torch
from objective_cases import assert_all_close, gradients_of, images, labels_of
from objective_cases import network as resnet
from run_cases import assert_same_run, run

from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.mart import MART, divergences, missing_probability, wrong_class_costs

X = images()
CLASSES = 4


def setting(normalization="group"):
    model = resnet(normalization).train()
    return model, Batch(X, labels_of(model, X), torch.arange(len(X)) * 7, torch.tensor(5))


def probabilities(logits):
    total = sum(z.exp() for z in logits)
    return [z.exp() / total for z in logits]


def naive(model, batch, points, lam):
    """The two parts and their sum, one example, one class at a time."""
    boosted = weighted = 0.0
    for i in range(len(batch)):
        y = int(batch.labels[i])
        clean = probabilities(model(batch.inputs[i : i + 1])[0])
        other = probabilities(model(points[i : i + 1])[0])
        rival = max((other[k] for k in range(CLASSES) if k != y), key=torch.Tensor.item)
        boosted = boosted - other[y].log() - (1.0001 - rival + 1e-12).log()
        for k in range(CLASSES):
            weighted = weighted + (1.0000001 - clean[y]) * clean[k] * (clean[k].log() - (other[k] + 1e-12).log())
    boosted, weighted = boosted / len(batch), weighted / len(batch)
    return boosted, weighted, boosted + lam * weighted


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("lam", [6.0, 0.5])
def test_loss_and_gradient(lam, joint):
    model, batch = setting()
    method = MART(lam, radius=0.1, joint=joint)
    points = method.crafted(model, batch)
    loss, metrics = method.loss(model, batch, points)
    boosted, weighted, wanted = naive(model, batch, points, lam)
    torch.testing.assert_close(loss, wanted)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-9)
    assert metrics["boosted_loss"] == pytest.approx(boosted.item())
    assert metrics["weighted_kl"] == pytest.approx(weighted.item())
    assert metrics["weighted_kl"] > 0.001
    own = model(X).softmax(dim=1)[torch.arange(len(X)), batch.labels]
    assert metrics["weight"] == pytest.approx(1 - own.mean().item(), abs=1e-6)
    assert metrics["accuracy"] == (model(X).argmax(dim=1) == batch.labels).float().mean()
    assert metrics["adversarial_accuracy"] == (model(points).argmax(dim=1) == batch.labels).float().mean()


def test_the_weight_is_of_clean_and_the_boosted_loss_of_adversarial_images():
    model, batch = setting()
    points = MART(radius=0.1).crafted(model, batch)
    _, one = MART().loss(model, batch, points)
    _, two = MART().loss(model, batch, X)
    assert one["weight"] == two["weight"]
    assert one["boosted_loss"] > two["boosted_loss"] + 0.01


def test_the_points_are_those_of_adversarial_training_from_a_normal_start():
    model, batch = setting("batch")
    assert torch.equal(MART().crafted(model, batch), AT(start="normal").crafted(model, batch))


def test_uniform_predictions():
    logits, labels = torch.zeros(3, 10), torch.tensor([0, 4, 9])
    batch = Batch(torch.zeros(3, 10), labels, torch.arange(3), torch.tensor(0))
    loss, metrics = MART().loss(lambda x: x, batch, logits)
    assert float(metrics["boosted_loss"]) == pytest.approx(2.4078, abs=5e-5)
    assert float(metrics["boosted_loss"]) == pytest.approx(math.log(10) - math.log(0.9001))
    assert metrics["weighted_kl"].abs() < 1e-7
    assert loss == pytest.approx(float(metrics["boosted_loss"]), abs=1e-6)
    assert metrics["weight"] == pytest.approx(0.9)


def test_certain_predictions_stay_finite_in_float32_and_bfloat16():
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.tensor([[300.0, 0.0, -300.0]], dtype=dtype, requires_grad=True)
        right, wrong = torch.tensor([0]), torch.tensor([1])
        # The constants, as far as float32 has them.
        assert wrong_class_costs(logits, wrong).item() == pytest.approx(-math.log(1e-4), rel=1e-3)
        assert wrong_class_costs(logits, right).item() == pytest.approx(-math.log(1.0001), rel=1e-2)
        assert missing_probability(logits, right).item() == 2**-23
        assert missing_probability(logits, wrong).item() == 1 + 2**-23
        value = divergences(logits, logits.flip(1))
        assert value.item() == pytest.approx(-math.log(1e-12), rel=1e-5)
        total = value + wrong_class_costs(logits, wrong) + missing_probability(logits, right)
        (gradient,) = torch.autograd.grad(total.sum(), logits)
        assert gradient.isfinite().all()
        assert value.dtype == torch.float32


def test_clean_images_pass_first():
    model, batch = setting("batch")
    points = MART().crafted(model, batch)
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    MART().loss(model, batch, points)
    assert [torch.equal(one, two) for one, two in zip(seen, (X, points), strict=True)] == [True, True]
    seen.clear()
    MART(joint=True).loss(model, batch, points)
    assert [len(images) for images in seen] == [2 * len(X)]


def test_the_defaults():
    method = MART()
    assert (method.lam, method.joint) == (6, False)
    assert (method.radius, method.steps, method.step_size) == (8 / 255, 10, 2 / 255)
    assert (method.norm, method.start, method.name) == ("linf", "normal", "mart")


def test_a_run_repeats_and_says_what_it_does(tmp_path):
    one, two = (run(tmp_path / name, {"name": "mart", "lam": 2.0}) for name in ("one", "two"))
    assert_same_run(one, two)
    first, *_, last = one.history
    assert last["loss"] == pytest.approx(last["boosted_loss"] + 2 * last["weighted_kl"], rel=1e-5)
    assert last["loss"] < first["loss"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": -1.0}, "lam must be at least 0 and finite, got -1.0"),
        ({"lam": math.nan}, "lam must be at least 0"),
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        ({"start": "zero"}, "start must be one of"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        MART(**settings)


def test_a_masked_class_has_no_part_in_it():
    """A network that never names class 2 gives it the logit -inf."""
    generator = torch.Generator().manual_seed(0)
    clean, other = torch.randn(2, 6, 5, generator=generator)
    kept = [0, 1, 3, 4]
    wanted = divergences(clean[:, kept], other[:, kept])
    clean[:, 2] = other[:, 2] = -torch.inf
    clean.requires_grad_(), other.requires_grad_()
    found = divergences(clean, other)
    torch.testing.assert_close(found, wanted)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), [clean, other]))
