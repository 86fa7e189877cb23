"""MMA is its formula, written out example by example; radii belong to examples and survive a checkpoint."""

import dataclasses
import math

import pytest
import torch
from engine_cases import CrashAt, CrashError
from objective_cases import assert_all_close, gradients_of, images, labels_of
from objective_cases import network as resnet
from problems import two_logits, uniform
from torch import nn

from dyart.data import draws
from dyart.data.loader import Batch
from dyart.engine.run import prepare, train
from dyart.methods.base import start_key
from dyart.methods.mma import MMA, Margins
from dyart.recipes.load import check

X = images()
HINGE = 0.06
CPU = torch.device("cpu")


def sharp(normalization="batch"):
    """A network that is sure enough for probabilities above one half, with boundaries within and beyond the hinge."""
    model = resnet(normalization).train()
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(12)
        last.bias.mul_(12)
    return model, labels_of(model, X)


def named(labels, key=5, rows=None):
    batch = Batch(X, labels, torch.arange(len(X)) * 7, torch.tensor(key))
    if rows is None:
        return batch
    return dataclasses.replace(batch, inputs=X[rows], labels=labels[rows], index=batch.index[rows])


def prepared(**settings):
    method = MMA(**{"hinge": HINGE, **settings})
    method.prepare(100, CPU)
    return method


# An independent version: one example at a time


def slm(model, x, y):
    z = model(x[None])[0]
    return torch.cat([z[:y], z[y + 1 :]]).logsumexp(0) - z[y]


def search(model, x, y, radius, offset, steps, halvings, cap):
    """Return (correct, e, direction): eval mode."""
    if slm(model, x, y) >= 0:
        return False, 0.0, torch.zeros_like(x)
    point = (x + offset).clamp(0, 1)
    for _ in range(steps):
        point = point.detach().requires_grad_()
        (g,) = torch.autograd.grad(slm(model, point, y), point)
        point = point.detach() + 2.5 * radius / steps * g.sign()
        point = torch.min(torch.max(point, x - radius), x + radius).clamp(0, 1)
    u = (point - x) / radius
    low, high, e = 0.0, cap, radius
    for _ in range(halvings):
        if slm(model, (x + e * u).clamp(0, 1), y) < 0:
            low = e
        else:
            high = e
        e = (low + high) / 2
    return True, e, u


def by_hand(model, batch, radii, hinge=HINGE, least=0.005, clean=1 / 3, clip=True, steps=10, halvings=10):
    """Return the loss, and the radius of every example."""
    stream = start_key(batch, "mma")
    noise = 2 * draws.uniform(stream, batch.index, X.shape[1:]).double() - 1
    model.eval()
    points, es, used = [], [], []
    for row in range(len(batch)):
        radius = max(least, float(radii[row]))
        x, y = batch.inputs[row], int(batch.labels[row])
        correct, e, u = search(model, x, y, radius, radius * noise[row], steps, halvings, 1.05 * hinge)
        point = x + e * u
        points.append(point.clamp(0, 1) if clip else point)
        es.append(e)
        used.append(not correct or e < hinge)
    model.train()
    at_inputs = model(batch.inputs).log_softmax(dim=1)
    at_points = model(torch.stack(points).detach()).log_softmax(dim=1)
    own = clean_part = 0.0
    for row, y in enumerate(batch.labels.tolist()):
        clean_part = clean_part - at_inputs[row, y]
        if used[row]:
            own = own - at_points[row, y]
    return ((1 - clean) * own + clean * clean_part) / len(batch), torch.tensor(es), torch.tensor(used), points


@pytest.mark.parametrize("options", [{}, {"clip": False}, {"clean": 0.0}, {"clean": 0.5, "steps": 4, "bisections": 6}])
def test_loss_gradient_and_radii_are_those_of_the_formula(options):
    model, labels = sharp()
    batch = named(labels)
    radii = 0.05 * uniform((len(X),), 3)
    method = prepared(**options)
    method.radii[batch.index] = radii
    renamed = {{"bisections": "halvings"}.get(name, name): value for name, value in options.items()}
    crafted = method.crafted(model, batch)  # first: the losses by hand move the running statistics
    wanted, es, used, points = by_hand(model, batch, radii, **renamed)
    correct = es > 0
    assert correct.sum() >= 4, "the case is worth a test"
    assert (~correct).sum() >= 2
    assert 0 < (correct & ~used).sum() < correct.sum()
    assert torch.equal(crafted.correct, correct)
    torch.testing.assert_close(crafted.radius.double(), es.double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(crafted.points, torch.stack(points), rtol=0, atol=1e-6)
    loss, metrics = method.loss(model, batch, crafted)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-4)
    torch.testing.assert_close(method.radii[batch.index], es.float(), rtol=0, atol=1e-7)
    assert metrics["mean_radius"] == pytest.approx(float(es.double().mean()), abs=1e-6)
    assert metrics["correct"] == pytest.approx(float(correct.float().mean()))
    assert metrics["used"] == pytest.approx(float(used.float().mean()))


def test_points_that_are_trained_on_leave_the_box_in_the_released_form_alone():
    model, labels = sharp()
    kept, free = (MMA(HINGE, clip=clip).crafted(model, named(labels)) for clip in (True, False))
    assert kept.points.min() >= 0
    assert kept.points.max() <= 1
    assert free.points.min() < 0 or free.points.max() > 1
    assert torch.equal(kept.radius, free.radius)


def test_two_linear_classes():
    weight = uniform((12,), 1, -1, 1, torch.float64)
    x = uniform((40, 12), 2, 0.3, 0.7, torch.float64)

    def model(points):
        return two_logits((points - 0.5) @ weight)

    labels = (model(x)[:, 0] < 0).long()
    batch = Batch(x, labels, torch.arange(40), torch.tensor(3))
    method = MMA()
    crafted = method.craft(model, batch)
    distance = ((x - 0.5) @ weight).abs() / weight.abs().sum()
    near = distance < 32 / 255
    assert near.sum() > 20
    assert crafted.correct.all()
    cap = 1.05 * 32 / 255
    assert (crafted.radius - distance)[near].abs().max() <= cap / 2**10
    far = distance > cap
    assert (crafted.radius[far] >= 32 / 255).all()
    # ... and the points are on the boundary, those of wrong examples where they were.
    assert model(crafted.points)[near].abs().max() <= cap / 2**10 * weight.abs().sum()
    wrong = method.craft(model, dataclasses.replace(batch, labels=1 - labels))
    assert not wrong.correct.any()
    assert torch.equal(wrong.points, x)
    assert torch.equal(wrong.radius, torch.zeros_like(distance))


def test_in_l2():
    weight = uniform((12,), 1, -1, 1, torch.float64)
    x = uniform((40, 12), 2, 0.4, 0.6, torch.float64)

    def model(points):
        return two_logits((points - 0.5) @ weight)

    labels = (model(x)[:, 0] < 0).long()
    crafted = MMA(0.3, norm="l2").craft(model, Batch(x, labels, torch.arange(40), torch.tensor(3)))
    distance = ((x - 0.5) @ weight).abs() / weight.norm()
    # A few normalised steps leave some of the random start: not the shortest way, nearly.
    assert (crafted.radius >= distance - 0.315 / 2**10).all()
    assert (crafted.radius / distance).median() < 1.02


def test_a_mixed_batch_after_the_clean_one_or_both_together():
    model, labels = sharp()
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append((model.training, inputs[0])))
    method, batch = MMA(HINGE), named(labels)
    crafted = method.crafted(model, batch)
    assert [mode for mode, _ in seen] == [False] * (10 + 10 + 1)
    seen.clear()
    method.loss(model, batch, crafted)
    MMA(HINGE, joint=True).loss(model, batch, crafted)
    MMA(HINGE, clean=0).loss(model, batch, crafted)
    assert all(mode for mode, _ in seen)
    assert torch.equal(seen[0][1], X)
    assert torch.equal(seen[1][1], crafted.points)
    assert torch.equal(seen[2][1], torch.cat([X, crafted.points]))
    assert torch.equal(seen[3][1], crafted.points)
    assert len(seen) == 4
    plain, _ = sharp("group")
    separate, joint = (MMA(HINGE, joint=joint).loss(plain, batch, crafted)[0] for joint in (False, True))
    torch.testing.assert_close(separate, joint, rtol=1e-6, atol=1e-7)


def test_label_distributions_are_used():
    model, labels = sharp("group")
    batch = named(labels)
    crafted = MMA(HINGE).crafted(model, batch)
    hard = nn.functional.one_hot(labels, 4).double()
    plain, same, mixed = (
        MMA(HINGE).loss(model, dataclasses.replace(batch, targets=targets), crafted)[0]
        for targets in (None, hard, 0.5 * hard + 0.5 * hard.roll(1, 0))
    )
    torch.testing.assert_close(plain, same)
    assert abs(mixed - plain) > 1e-3


# Radii


def test_the_next_visit_starts_from_the_last_radius_and_at_least_from_the_least():
    model, labels = sharp()
    method, batch = prepared(), named(labels)
    assert torch.equal(method.radii, torch.full((100,), 0.005))
    method.loss(model, batch, first := method.crafted(model, batch))
    wrong = ~first.correct
    assert wrong.any()
    assert torch.equal(method.radii[batch.index[wrong]], torch.zeros(int(wrong.sum())))
    others = torch.ones(100, dtype=torch.bool)
    others[batch.index] = False
    assert (method.radii[others] == 0.005).all()
    later = dataclasses.replace(batch, key=torch.tensor(6))
    torch.testing.assert_close(method._radius(later), first.radius.float().clamp(min=0.005), rtol=0, atol=0)
    # A wrong example that has become right is searched like a new one.
    now_right = dataclasses.replace(later, labels=model.eval()(X).argmax(dim=1))
    model.train()
    again, fresh = method.crafted(model, now_right), prepared().crafted(model, now_right)
    assert torch.equal(again.points[wrong], fresh.points[wrong])
    assert not torch.equal(again.points, fresh.points)


def test_crafting_writes_nothing():
    model, labels = sharp()
    method = prepared()
    method.crafted(model, named(labels))
    assert (method.radii == 0.005).all()


def test_radii_belong_to_examples_in_whatever_order_they_come():
    model, labels = sharp("group")
    orders = torch.arange(len(X)), torch.randperm(len(X), generator=torch.Generator().manual_seed(1))
    kept = []
    for order in orders:
        method = prepared()
        for key in (1, 2):
            for rows in order.split(5):
                batch = named(labels, key, rows)
                method.loss(model, batch, method.crafted(model, batch))
        kept.append(method.radii)
    torch.testing.assert_close(*kept, rtol=0, atol=1e-6)
    assert len(set(kept[0].tolist())) > 4


def test_an_example_that_is_twice_in_a_batch_keeps_the_larger_radius():
    method = prepared()
    x = torch.zeros(3, 2)
    batch = Batch(x, torch.zeros(3, dtype=torch.int64), torch.tensor([4, 9, 4]), torch.tensor(0))
    model = nn.Linear(2, 2)
    for radius in ([0.03, 0.01, 0.02], [0.001, 0.002, 0.004]):
        method.loss(model, batch, Margins(x, torch.tensor(radius), torch.ones(3, dtype=torch.bool)))
        assert method.radii[4] == pytest.approx(max(radius[0], radius[2]))
        assert method.radii[9] == pytest.approx(radius[1])


def test_radii_are_saved_and_taken_back_in_place():
    model, labels = sharp()
    method, batch = prepared(), named(labels)
    method.loss(model, batch, method.crafted(model, batch))
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    other = prepared()
    place = other.radii.data_ptr()
    other.load_state_dict(state)
    assert other.radii.data_ptr() == place
    assert torch.equal(other.radii, method.radii)
    state["radii"].zero_()
    assert torch.equal(other.radii, method.radii)
    one, two = (m.crafted(model, batch) for m in (method, other))
    assert torch.equal(one.points, two.points)
    with pytest.raises(ValueError, match=r"keeps \['radii'\], the checkpoint has \[\]"):
        other.load_state_dict({})
    with pytest.raises(ValueError, match="radii of 3 examples, the training set 100"):
        other.load_state_dict({"radii": torch.zeros(3)})


def test_without_names_every_example_is_new():
    model, labels = sharp()
    method = MMA(HINGE)
    losses = [method(model, X, labels)[0].item() for _ in range(2)]
    assert method.state_dict() == {}
    assert all(math.isfinite(loss) for loss in losses)
    again = MMA(HINGE)
    again.prepare(len(X), CPU)
    batch = named(labels)
    batch = dataclasses.replace(batch, index=torch.arange(len(X)))
    assert torch.equal(again.crafted(model, batch).points, MMA(HINGE).crafted(model, batch).points)
    known = again.state_dict()["radii"].clone()
    again(model, X, labels)
    assert torch.equal(again.state_dict()["radii"], known)


# In the engine

TREE = {
    "seed": 3,
    "data": {"name": "three-blobs", "limit": 96},
    "model": {"name": "mlp"},
    "method": {"name": "mma", "hinge": 0.2, "steps": 3, "bisections": 6},
    "optim": {"lr": 0.2},
    "train": {"epochs": 4, "batch_size": 32, "log_every": 4, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 2},
}


def test_a_short_training_that_is_resumed_is_the_one_that_was_not(tmp_path):
    whole = train(check(TREE | {"out": str(tmp_path / "whole")}))
    config = check(TREE | {"out": str(tmp_path / "broken")})
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(8)])
    resumed = train(config, resume=True)
    radii = whole.method.radii
    assert (radii != 0.005).sum() == 96
    assert torch.equal(radii, resumed.method.radii)
    for (name, one), (_, other) in zip(
        whole.model.state_dict().items(), resumed.model.state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
    first, last = whole.history[0], whole.history[-1]
    assert last["loss"] < first["loss"]
    assert last["mean_radius"] > first["mean_radius"]
    assert last["val_clean"] > 0.8


def test_the_engine_makes_room_for_every_index():
    training = prepare(check(TREE))
    assert len(training.method.radii) == training.loader.examples


# Settings


def test_the_defaults_are_the_papers():
    method = MMA()
    assert (method.hinge, method.least, method.steps, method.bisections) == (32 / 255, 0.005, 10, 10)
    assert (method.clean, method.norm, method.clip, method.joint) == (1 / 3, "linf", True, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hinge": 0.0}, "hinge must be positive, got 0.0"),
        ({"least": -1.0}, "least must be positive"),
        ({"least": 0.2}, "least must be at most the hinge"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"bisections": 0}, "bisections must be an integer of at least 1, got 0"),
        ({"clean": 1.5}, "clean is a weight from 0 to 1, got 1.5"),
        ({"clean": float("nan")}, "clean is a weight"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        MMA(**settings)
