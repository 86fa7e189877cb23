"""A monitor in a plain training loop: what it observes, and that the training does not notice."""

import json
import math
import re

import numpy as np
import pytest
import torch
from monitor_cases import CLASSES, batches, examples, labels_of, network, predictions, sgd, train_step, trained
from side_effects import assert_same, settings, snapshot
from torch import nn

import dyart
from dyart.dynamics.movement import weights_of
from dyart.engine.metrics import read_metrics

RADIUS = 0.15


def make_monitor(**options):
    inputs = examples()
    return dyart.BoundaryMonitor(inputs, labels_of(inputs), **{"every": 5, "radius": RADIUS, "steps": 10, **options})


def train(model, steps, monitor=None, seed=7, optimizer=None):
    optimizer = optimizer or sgd(model)
    for inputs, labels in batches(steps, seed):
        if monitor is None:
            train_step(model, optimizer, inputs, labels)
        else:
            with monitor.watching(model):
                train_step(model, optimizer, inputs, labels)
    return optimizer


def test_every_so_many_steps_are_observed():
    monitor = make_monitor()
    train(trained(), 17, monitor)
    assert [observation.step for observation in monitor.observations] == [5, 10, 15]
    assert monitor.step == 17
    for observation in monitor.observations:
        assert observation.epoch is None
        assert observation.found >= observation.optimal >= observation.vulnerable > 0
        assert observation.compared > 3
        assert -1 <= observation.correlation <= 1
        assert len(observation.margins) == len(observation.speeds) == len(observation.changes) == 24
        words = rf"Observation\(step {observation.step}: {observation.correct} of 24 correct, .* median margin 0\.\d+; "
        assert re.fullmatch(
            words + rf"{observation.vulnerable} vulnerable, [\d.]+ % of them losing margin\)", repr(observation)
        )


def test_the_step_is_the_real_one():
    """Momentum, decay, clipping and BatchNorm's statistics: theta_after - theta_before, whatever made it."""
    model, monitor = trained(), make_monitor(every=4, steps=20)
    optimizer = train(model, 3, monitor)
    inputs, labels = next(batches(1, seed=9))
    monitor.before(model)
    before = weights_of(model)
    train_step(model, optimizer, inputs, labels)
    observation = monitor.after()
    update = {name: now - before[name] for name, now in weights_of(model).items()}
    assert update["1.running_mean"].any()
    model.load_state_dict(before, strict=False)
    model.eval()
    found = dyart.closest_boundary_points(model, monitor.inputs, monitor.labels, steps=200)
    speed = dyart.boundary_speed(model, found, update)
    same = [i for i, margin in enumerate(observation.margins) if margin and abs(margin - found.margin[i]) < 1e-3]
    assert len(same) >= 15
    expected = pytest.approx(speed[same].tolist(), rel=0.05, abs=float(speed[same].abs().median()) / 20)
    assert [observation.speeds[i] for i in same] == expected


def linear():
    """A classifier with a plane between any two classes: every point found is locally optimal."""
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    train(model, 30)
    return model


def test_the_numbers_are_those_of_the_examples():
    monitor = make_monitor(every=1, radius=0.1, steps=20)  # so many that every point can be followed
    train(linear(), 1, monitor)
    (seen,) = monitor.observations
    margins = torch.tensor([math.nan if value is None else value for value in seen.margins])
    speeds = torch.tensor([math.nan if value is None else value for value in seen.speeds])
    assert seen.found == int(margins.isfinite().sum()) == seen.optimal
    near = speeds[margins < 0.1]
    assert 24 > seen.vulnerable == len(near) > 0
    assert seen.negative_share == pytest.approx(float((near < 0).float().mean()), abs=1e-5)
    for level, value in seen.margin_quantiles.items():
        assert value == pytest.approx(float(torch.nanquantile(margins, float(level))), rel=1e-4)
    pairs = [(a, b) for a, b in zip(seen.speeds, seen.changes, strict=True) if a is not None and b is not None]
    predicted, actual = torch.tensor(pairs).T
    assert len(pairs) == seen.compared
    assert seen.predicted_mean == pytest.approx(float(predicted.mean()), rel=1e-4)
    assert seen.actual_mean == pytest.approx(float(actual.mean()), rel=1e-4)
    assert seen.correlation == pytest.approx(float(torch.corrcoef(torch.tensor(pairs).T)[0, 1]), rel=1e-4)
    assert seen.correlation > 0.95


@pytest.mark.parametrize(("push", "share"), [(0.01, 0.0), (-0.01, 1.0)])
def test_the_sign_of_the_speed(push, share):
    """A larger bias of the examples' class moves the boundary away from all of them, a smaller one towards them."""
    model, inputs = linear(), examples(60)
    inputs = inputs[predictions(model, inputs) == 0]
    monitor = dyart.BoundaryMonitor(inputs, torch.zeros(len(inputs), dtype=torch.long), every=1, radius=1.0)
    with monitor.watching(model):
        model.bias.data[0] += push
    (seen,) = monitor.observations
    assert seen.vulnerable > 5
    assert seen.negative_share == share
    assert seen.predicted_mean * push > 0
    assert seen.actual_mean == pytest.approx(seen.predicted_mean, rel=1e-3)


@pytest.mark.parametrize("make", [sgd, torch.optim.AdamW], ids=["SGD", "AdamW"])
def test_a_training_does_not_notice(make):
    """Dropout draws from the global generator; BatchNorm and momentum remember."""

    def run(monitor):
        torch.manual_seed(11)
        model = network(dropout=0.3)
        if make is sgd:
            optimizer = train(model, 12, monitor)
        else:
            optimizer = train(model, 12, monitor, optimizer=make(model.parameters(), lr=0.01))
        momenta = [value for state in optimizer.state.values() for value in state.values()]
        gradients = [p.grad for p in model.parameters()]
        return [*model.state_dict().values(), *momenta, *gradients, torch.get_rng_state()]

    monitor = make_monitor(every=1)
    for one, other in zip(run(None), run(monitor), strict=True):
        assert torch.equal(one, other)
    assert len(monitor.observations) == 12


def test_an_observation_leaves_everything_as_it_was():
    model, monitor = trained(dropout=0.2), make_monitor(every=1)
    monitor.before(model)
    train_step(model, sgd(model), *next(batches(1)))
    model[1].eval()
    model[0].weight.requires_grad_(False)
    inside, around = snapshot(model), settings()
    monitor.after()
    assert_same(inside, snapshot(model))
    assert_same(around, settings())


def test_a_wrapped_model_and_one_without_gradients_on():
    """Compiled or parallel: the module inside is watched. no_grad and autocast of the caller do not reach it."""
    plain, monitor = trained(), make_monitor(every=1)
    with monitor.watching(nn.DataParallel(plain)):
        train_step(plain, sgd(plain), *next(batches(1)))
    plain, again = trained(), make_monitor(every=1)
    again.before(plain)
    train_step(plain, sgd(plain), *next(batches(1)))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        again.after()
    assert again.observations == monitor.observations


@pytest.mark.filterwarnings("ignore:nothing moved")
def test_the_probe_of_one_step():
    """E.g. the step's own batch; what is done to its tensors later does not matter."""
    monitor, other = make_monitor(every=1), examples(10, seed=5)
    kept, model = other.clone(), trained()
    with monitor.watching(model, epoch=2.5, probe=(other, labels_of(other))):
        other.zero_()
    fixed = dyart.BoundaryMonitor(kept, labels_of(kept), every=1, radius=RADIUS, steps=10)
    with fixed.watching(model, epoch=2.5):
        pass
    assert monitor.observations == fixed.observations
    with pytest.raises(ValueError, match="outside the bounds"), monitor.watching(model, probe=(kept + 2, kept[:, 0])):
        pass


def test_the_file(tmp_path):
    path = tmp_path / "new" / "monitor.jsonl"
    monitor = make_monitor(path=path, index=range(100, 124), bounds=(torch.zeros(6), torch.ones(6)))
    train(trained(), 11, monitor)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10]
    assert lines[0].pop("index") == list(range(100, 124))
    settings = lines[0].pop("settings")
    assert (settings["radius"], settings["every"], settings["bounds"]) == (RADIUS, 5, "per feature")
    assert lines == [observation.record() for observation in monitor.observations]
    assert lines[0]["margin_quantiles"].keys() == {"0.05", "0.25", "0.5", "0.75", "0.95"}


@pytest.mark.parametrize(
    ("bounds", "written"),
    [
        ((np.float32(0), np.float32(1)), [0.0, 1.0]),
        ((torch.tensor(0.0), torch.tensor(1.0)), [0.0, 1.0]),
        ((np.zeros(6), np.ones(6)), "per feature"),
        (None, None),
    ],
    ids=["numpy's numbers", "tensors of one number", "arrays", "none"],
)
def test_the_file_takes_numbers_of_any_kind(tmp_path, bounds, written):
    path = tmp_path / "monitor.jsonl"
    counts = {"every": np.int64(1), "steps": np.int64(4), "follow_steps": np.int64(2), "beta": np.float32(5)}
    train(trained(), 1, make_monitor(path=path, bounds=bounds, **counts))
    settings = json.loads(path.read_text())["settings"]
    assert settings["bounds"] == written
    assert {name: settings[name] for name in counts} == {"every": 1, "steps": 4, "follow_steps": 2, "beta": 5.0}


def test_a_new_monitor_begins_the_file_anew_and_a_resumed_one_goes_on(tmp_path):
    path = tmp_path / "monitor.jsonl"
    monitor = make_monitor(path=path)
    train(trained(), 20, monitor)
    whole = path.read_text()
    with path.open("a") as file:
        file.write('{"step": 25, "cut sh')
    resumed = make_monitor(path=path)
    resumed.resume(12)
    assert resumed.observations == monitor.observations[:2]
    assert [record["step"] for record in read_metrics(path)] == [5, 10]
    model = trained()
    optimizer = train(model, 12)
    for number, (inputs, labels) in enumerate(batches(20)):
        if number >= 12:
            with resumed.watching(model):
                train_step(model, optimizer, inputs, labels)
    assert resumed.observations == monitor.observations
    assert path.read_text() == whole
    another = make_monitor(path=path)
    assert path.read_text() == whole  # until there is something to write
    with pytest.warns(UserWarning, match=r"had observations of an earlier training: they are in .*jsonl.before now"):
        train(trained(), 5, another)
    assert [record["step"] for record in read_metrics(path)] == [5]
    assert path.with_name("monitor.jsonl.before").read_text() == whole


def test_a_folder_is_no_file_to_write_to(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder: name a file in it, e.g. .*monitor.jsonl"):
        make_monitor(path=tmp_path)


def test_what_was_never_written_can_be_resumed(tmp_path):
    monitor = make_monitor(path=tmp_path / "new" / "monitor.jsonl")
    monitor.resume(0)
    train(trained(), 5, monitor)
    assert [record["step"] for record in read_metrics(tmp_path / "new" / "monitor.jsonl")] == [5]


def test_a_damaged_line_costs_no_other(tmp_path):
    path = tmp_path / "monitor.jsonl"
    monitor = make_monitor(path=path)
    train(trained(), 20, monitor)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "damaged\n", *lines[2:]]))
    resumed = make_monitor(path=path)
    resumed.resume(20)
    kept = [monitor.observations[0], *monitor.observations[2:]]
    assert resumed.observations == kept
    assert [record["step"] for record in read_metrics(path)] == [observation.step for observation in kept]


def test_going_back_drops_what_came_later():
    monitor = make_monitor()
    train(trained(), 12, monitor)
    monitor.resume(5)
    assert [observation.step for observation in monitor.observations] == [5]
    train(trained(), 5, monitor)
    assert [observation.step for observation in monitor.observations] == [5, 10]


# Where there is little to see


def test_the_radius_may_be_a_fraction_and_is_not_in_pixels():
    inputs = examples(4)
    assert dyart.BoundaryMonitor(inputs, labels_of(inputs), radius="8/255").radius == 8 / 255
    with pytest.raises(ValueError, match=r"radius 8 is larger than the box.*did you mean 8/255"):
        dyart.BoundaryMonitor(inputs, labels_of(inputs), radius=8)


def test_a_step_outside_is_mentioned_once():
    model, monitor = trained(), make_monitor(every=1)
    with pytest.warns(UserWarning, match=r"nothing moved.*optimizer\.step\(\)") as said, monitor.watching(model):
        pass
    assert said[0].filename == __file__, "the caller's line"
    with monitor.watching(model):  # no second warning, which would be an error here
        pass


@pytest.mark.filterwarnings("ignore:nothing moved")
def test_no_example_is_classified_correctly(tmp_path):
    model, inputs = trained(), examples()
    wrong = (predictions(model, inputs) + 1) % CLASSES
    monitor = dyart.BoundaryMonitor(inputs, wrong, every=1, path=tmp_path / "monitor.jsonl")
    with monitor.watching(model):
        pass
    (seen,) = monitor.observations
    assert (seen.correct, seen.found, seen.vulnerable, seen.compared) == (0, 0, 0, 0)
    assert (seen.negative_share, seen.correlation, seen.predicted_mean, seen.actual_mean) == (None,) * 4
    assert set(seen.margin_quantiles.values()) == {None}
    assert set(seen.margins) == set(seen.speeds) == set(seen.changes) == {None}
    assert "NaN" not in (tmp_path / "monitor.jsonl").read_text()
    assert seen.numbers() == {"vulnerable": 0.0, "found": 0.0}


def test_no_boundary_in_the_box():
    model = nn.Linear(6, CLASSES)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([100.0, 0.0, 0.0]))
    inputs = examples()
    monitor = dyart.BoundaryMonitor(inputs, torch.zeros(len(inputs), dtype=torch.long), every=1)
    with monitor.watching(model):
        train_step(model, sgd(model), inputs, monitor.labels)
    (seen,) = monitor.observations
    assert (seen.correct, seen.found) == (24, 0)
    assert seen.negative_share is None


@pytest.mark.filterwarnings("ignore:nothing moved")
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_weights_that_are_not_finite(value, when):
    """A training that has failed is told of by its own loss; the monitor notes what it can."""
    model, monitor = trained(), make_monitor(every=1)
    good = weights_of(model)
    if when != "after":
        model[4].weight.data.fill_(value)
    with monitor.watching(model):
        model.load_state_dict(good, strict=False)
        if when != "before":
            model[4].weight.data.fill_(value)
    (seen,) = monitor.observations
    assert seen.negative_share is None
    assert seen.compared == 0
    assert json.loads(json.dumps(seen.record(), allow_nan=False)) == seen.record()
    assert (seen.found == 0) == (when != "after")


def test_a_probe_of_one_and_of_none():
    inputs = examples()
    for count in (1, 0):
        monitor = dyart.BoundaryMonitor(inputs[:count], labels_of(inputs)[:count], every=1)
        train(trained(), 1, monitor)
        assert monitor.observations[0].correlation is None
        assert len(monitor.observations[0].margins) == count


def test_a_step_that_fails_is_not_observed():
    model, monitor = trained(), make_monitor(every=2)
    train(model, 1, monitor)
    with pytest.raises(ZeroDivisionError), monitor.watching(model):
        raise ZeroDivisionError
    assert monitor.observations == []
    train(model, 1, monitor)
    assert [observation.step for observation in monitor.observations] == [2]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"every": 0}, ValueError, "every must be an integer of at least 1, got 0"),
        ({"steps": 1}, ValueError, "steps must"),
        ({"follow_steps": 1}, ValueError, "follow_steps must"),
        ({"radius": -0.1}, ValueError, "radius must be positive"),
        ({"norm": "l3"}, ValueError, "norm must be one of"),
        ({"boundary": "hard"}, ValueError, "boundary must be one of"),
        ({"bounds": (0.4, 0.6)}, ValueError, "outside the bounds"),
        ({"index": [1, 2]}, ValueError, "index names 2 examples, the probe has 24"),
    ],
)
def test_settings_that_cannot_be_meant(options, error, words):
    with pytest.raises(error, match=words):
        make_monitor(**options)


def test_a_probe_that_does_not_fit():
    inputs, model = examples(), trained()
    with pytest.raises(TypeError, match="labels must be integer"):
        dyart.BoundaryMonitor(inputs, torch.rand(24))
    monitor = dyart.BoundaryMonitor(inputs, torch.full((24,), 7), every=1)
    with pytest.raises(ValueError, match=r"label 7 .* the model has 3 classes"), monitor.watching(model):
        pass
    monitor = dyart.BoundaryMonitor(inputs.double(), labels_of(inputs), every=1)
    with pytest.raises(RuntimeError) as caught, monitor.watching(model):
        pass
    assert "pass inputs.to(torch.float32)" in caught.value.__notes__[0]


def test_wrong_calls():
    monitor = make_monitor()
    with pytest.raises(RuntimeError, match=r"before\(model\) first"):
        monitor.after()
    with pytest.raises(TypeError, match="got function"):
        monitor.before(lambda x: x)
