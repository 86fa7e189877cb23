"""FAT and FAT-TRADES: the outer methods' losses at the points of early-stopped PGD, example by example."""

import math

import pytest
import torch
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
    naive_divergence,
    setting,
    without_values,
)

from dyart.data import draws
from dyart.data.loader import Batch
from dyart.engine.capture import Captured
from dyart.engine.fabric import make_fabric
from dyart.engine.run import prepare, train
from dyart.engine.steps import Stepper
from dyart.engine.views import Views
from dyart.methods.at import AT
from dyart.methods.base import start_key
from dyart.methods.fat import FAT, FATTRADES
from dyart.methods.trades import TRADES

BALL = {"radius": RADIUS, "steps": STEPS, "step_size": STEP}


# With a tau that nobody reaches


@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_with_tau_ten_and_no_noise_fat_is_adversarial_training(start, norm):
    model, batch = setting("batch")
    fat, at = FAT(**BALL, norm=norm, start=start, tau=10, omega=0.0), AT(**BALL, norm=norm, start=start)
    points, taken = fat.crafted(model, batch)
    wanted = at.crafted(model, batch)
    assert torch.equal(points, wanted)
    assert (taken == 10).all()
    loss, other = fat.loss(model, batch, (points, taken))[0], at.loss(model, batch, wanted)[0]
    assert torch.equal(loss, other)
    for one, two in zip(gradients_of(loss, model), gradients_of(other, model), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("start", ["uniform", "normal"])
def test_with_tau_ten_and_no_noise_fat_trades_is_trades(start, joint):
    model, batch = setting("batch")
    fat, trades = (make(**BALL, start=start, joint=joint) for make in (FATTRADES, TRADES))
    fat.fixed_tau = 10
    fat.advance(0.0)
    crafted = fat.crafted(model, batch)
    assert torch.equal(crafted[0], trades.crafted(model, batch))
    assert torch.equal(fat.loss(model, batch, crafted)[0], trades.loss(model, batch, crafted[0])[0])


def test_whole_trainings_agree(tmp_path):
    train(config(tmp_path / "fat", {"name": "fat", "tau": 5, "omega": 0.0}, epochs=2))
    train(config(tmp_path / "at", {"name": "at"}, epochs=2))
    fat, at = numbers(tmp_path / "fat"), numbers(tmp_path / "at")
    assert [{key: value for key, value in record.items() if key not in ("tau", "steps")} for record in fat] == at


# Example by example


def noise_of(batch, purpose):
    stream, shape = start_key(batch, purpose), batch.inputs.shape[1:]
    steps = [draws.normal(stream ^ draws.key(0, "step noise", step), batch.index, shape) for step in range(STEPS)]
    return torch.stack(steps, dim=1).double()


def points_of(model, batch, starts, objectives, tau, omega, noise):
    """Return points and numbers of steps, one example after the other."""
    points, taken = [], []
    rows = zip(batch.inputs, batch.labels.tolist(), starts, objectives, noise, strict=True)
    for x, y, start, objective, own in rows:
        point, seen = alone(model, objective, x, y, start.clamp(0, 1), tau, omega * own if omega else None)
        points.append(point)
        taken.append(len(seen) - (seen.count(False) > tau))
    return torch.stack(points), taken


@pytest.mark.parametrize("omega", [0.0, 0.005])
@pytest.mark.parametrize("tau", [0, 1, 2])
def test_fats_loss_and_gradient_example_by_example(tau, omega):
    model, batch = setting("group")
    shape = batch.inputs.shape[1:]
    starts = batch.inputs + RADIUS * (2 * draws.uniform(start_key(batch, "at"), batch.index, shape).double() - 1)
    labels = batch.labels.tolist()
    objectives = [lambda z, y=y: naive_cross_entropy(z, y) for y in labels]
    points, taken = points_of(model, batch, starts, objectives, tau, omega, noise_of(batch, "at"))
    method = FAT(**BALL, tau=tau, omega=omega)
    crafted = method.crafted(model, batch)
    torch.testing.assert_close(crafted[0], points, rtol=0, atol=1e-6)
    assert crafted[1].tolist() == taken
    loss, metrics = method.loss(model, batch, crafted)
    wanted = sum(naive_cross_entropy(model(x[None]), y) for x, y in zip(points, labels, strict=True)) / len(labels)
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-5)
    assert metrics["steps"] == pytest.approx(sum(taken) / len(taken))
    assert metrics["tau"] == tau
    assert metrics["adversarial_loss"] == loss
    assert "adversarial_accuracy" in metrics
    assert tau in taken  # wrong from the start
    assert any(count > tau for count in taken)


@pytest.mark.parametrize("tau", [0, 1, 3])
def test_fat_trades_loss_and_gradient_example_by_example(tau):
    model, batch = setting("group")
    starts = batch.inputs + 0.001 * draws.normal(start_key(batch, "trades"), batch.index, batch.inputs.shape[1:])
    model.eval()
    clean = [model(x[None]).detach() for x in batch.inputs]
    model.train()
    objectives = [lambda z, c=c: naive_divergence(c, z) for c in clean]
    points, taken = points_of(model, batch, starts, objectives, tau, 0.0, noise_of(batch, "trades"))
    method = FATTRADES(**BALL, tau=tau, beta=4.0)
    crafted = method.crafted(model, batch)
    torch.testing.assert_close(crafted[0], points, rtol=0, atol=1e-6)
    assert crafted[1].tolist() == taken
    loss, metrics = method.loss(model, batch, crafted)
    rows = list(zip(batch.inputs, points, batch.labels.tolist(), strict=True))
    natural = sum(naive_cross_entropy(model(x[None]), y) for x, _, y in rows) / len(rows)
    divergence = sum(naive_divergence(model(x[None]), model(point[None])) for x, point, _ in rows) / len(rows)
    wanted = natural + 4.0 * divergence
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-5)
    assert metrics["kl"] == pytest.approx(divergence.item(), rel=1e-5)
    assert metrics["steps"] == pytest.approx(sum(taken) / len(taken))
    assert tau in taken


@pytest.mark.parametrize("make", [FAT, FATTRADES])
def test_without_tau_a_batch_that_is_wrong_is_trained_on_as_it_started(make):
    model, batch = setting("batch")
    wrong = model.eval()(batch.inputs).argmin(dim=1)
    model.train()
    batch = Batch(batch.inputs, wrong, batch.index, batch.key)
    points, taken = make(radius=0.002, step_size=0.01, tau=0).crafted(model, batch)
    assert not taken.any()
    if make is FAT:
        offset = 0.002 * (2 * draws.uniform(start_key(batch, "at"), batch.index, points.shape[1:]) - 1)
    else:
        offset = (0.001 * draws.normal(start_key(batch, "trades"), batch.index, points.shape[1:])).clamp(-0.002, 0.002)
    torch.testing.assert_close(points, (batch.inputs + offset).clamp(0, 1), rtol=0, atol=1e-7)


def test_an_example_is_crafted_alike_in_any_batch():
    model, batch = setting("batch")
    rows = torch.tensor([7, 2, 4])
    part = Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows], batch.key)
    for method in (FAT(**BALL, omega=0.01), FATTRADES(**BALL, omega=0.01)):
        points, taken = method.crafted(model, batch)
        fewer, count = method.crafted(model, part)
        torch.testing.assert_close(fewer, points[rows], rtol=0, atol=1e-9)
        assert torch.equal(count, taken[rows])


# The schedule


SCHEDULES = {
    FAT: [(epoch / 120, tau) for epoch, tau in ((0, 0), (49, 0), (50, 1), (89, 1), (90, 2), (119, 2))],
    FATTRADES: [(epoch / 85, tau) for epoch, tau in ((0, 0), (29, 0), (30, 1), (50, 2), (69, 2), (70, 3), (84, 3))],
}


@pytest.mark.parametrize("make", SCHEDULES)
def test_norm_and_radius_are_those_of_the_ball(make):
    method = make(norm="l2", radius=0.5)
    assert (method.norm, method.radius) == ("l2", 0.5)


@pytest.mark.parametrize("make", SCHEDULES)
def test_tau_grows_with_the_fraction_and_is_the_stage(make):
    method, fixed = make(), make(tau=1)
    for fraction, tau in SCHEDULES[make]:
        method.advance(fraction)
        fixed.advance(fraction)
        assert method.tau == method.stage == tau
        assert fixed.tau == fixed.stage == 1
    model, batch = setting("group")
    for fraction, tau in SCHEDULES[make]:
        method.advance(fraction)
        fixed = make(tau=tau)
        for one, other in zip(method.crafted(model, batch), fixed.crafted(model, batch), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("make", "last"), [(FAT, 2), (FATTRADES, 3)])
def test_where_nobody_says_how_far_the_training_is_the_schedule_is_at_its_end(make, last):
    model, batch = setting("group")
    _, metrics = make(**BALL)(model, batch.inputs, batch.labels)
    assert metrics["tau"] == last


def test_the_engine_captures_the_attack_anew_for_every_tau():
    stepper = Stepper(make_fabric("cpu"), Views(setting("group")[0], compile=False), FAT(), capture=True)
    steps = []
    for fraction in (0.0, 0.2, 0.5, 0.6, 0.8):
        stepper.advance(fraction)
        steps.append(stepper.work)
    assert all(isinstance(step, Captured) for step in steps)
    assert [steps.index(step) for step in steps] == [0, 0, 2, 2, 4]


# Settings and trainings


def test_no_value_is_looked_at():
    model, batch = without_values()
    for method in (FAT(), FAT(norm="l2"), FATTRADES(omega=0.1)):
        crafted = method.craft(model.eval(), batch)
        loss, metrics = method.loss(model.train(), batch, crafted)
        assert {tensor.device.type for tensor in (*crafted, loss, *metrics.values())} == {"meta"}


def test_the_defaults_and_the_cost():
    for method in (FAT(), FATTRADES()):
        outer = method.outer
        assert (outer.radius, outer.steps, outer.step_size, outer.norm) == (8 / 255, 10, 2 / 255, "linf")
    assert (FAT().outer.start, FAT().omega) == ("uniform", 0.001)
    trades = FATTRADES()
    assert (trades.outer.start, trades.omega, trades.outer.beta, trades.outer.joint) == ("normal", 0.0, 6.0, False)
    model, batch = setting("batch")
    modes = []
    model.register_forward_hook(lambda *_: modes.append(model.training))
    FAT(tau=0)(model, batch.inputs, batch.labels)
    assert modes == [False] * 11 + [True], "the first pass of a first call is the check's"
    modes.clear()
    FATTRADES(tau=0)(model, batch.inputs, batch.labels)
    assert modes == [False] * 12 + [True] * 2


@pytest.mark.parametrize("make", [FAT, FATTRADES])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"step_size": -1.0}, "step_size must be positive"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        ({"start": "zero"}, "start must be one of"),
        ({"omega": -0.1}, "omega must be at least 0 and finite, got -0.1"),
        ({"omega": math.inf}, "got inf"),
        ({"tau": -1}, "tau must be an integer of at least 0, got -1"),
        ({"tau": 1.5}, "got 1.5"),
    ],
)
def test_bad_settings_raise(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_fat_trades_has_no_start_at_the_input():
    with pytest.raises(ValueError, match="start must be one of"):
        FATTRADES(start="input")
    with pytest.raises(ValueError, match="beta must be at least 0"):
        FATTRADES(beta=-1.0)


@pytest.mark.parametrize(("name", "taus"), [("fat", [0, 0, 1, 2]), ("fat-trades", [0, 0, 1, 2])])
def test_a_training(tmp_path, name, taus):
    method = {"name": name}
    train(config(tmp_path / "whole", method))
    records = numbers(tmp_path / "whole")
    assert [record["tau"] for record in records if record["kind"] == "epoch"] == taus
    steps = [record for record in records if record["kind"] == "step"]
    assert all(math.isfinite(record["loss"]) and 0 <= record["steps"] <= 5 for record in steps)
    with pytest.raises(CrashError):
        train(config(tmp_path / "crashed", method), callbacks=[CrashAt(2 * STEPS_PER_EPOCH + 1)])
    train(config(tmp_path / "crashed", method), resume=True)
    assert numbers(tmp_path / "crashed") == records
    assert prepare(config(tmp_path / "other", method)).method.state_dict() == {}
