"""The monitor in a training of the engine, by one key of the recipe."""

import json

import pytest
import torch
from engine_cases import CrashAt, CrashError

from dyart.cli.main import main
from dyart.dynamics.watch import FILE, Watch
from dyart.engine.callbacks import Callback
from dyart.engine.metrics import read_metrics
from dyart.engine.run import prepare, train
from dyart.recipes.load import RecipeError, check, merge, resolve

METHODS = {
    "at": {"name": "at", "steps": 2, "radius": 0.05, "step_size": 0.02},
    "dyart": {"name": "dyart", "steps": 3, "r0": 0.1, "lam": 5.0},
    "at-awp": {"name": "at-awp", "steps": 2, "radius": 0.05, "step_size": 0.02, "gamma": 0.05, "awp_warmup": 0.0},
}
BASE = {
    "seed": 3,
    "data": {"name": "three-blobs", "limit": 96},
    "model": {"name": "mlp"},
    "optim": {"lr": 0.2, "weight_decay": 0.001, "clip": 0.5},
    "train": {"epochs": 3, "batch_size": 32, "burn_in": 1, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 2},
}
STEPS = 12  # three per epoch


def config(out=None, method="at", **monitor):
    tree = merge(BASE, {"method": METHODS[method], "monitor": monitor})
    return check(tree if out is None else merge(tree, {"out": str(out)}))


def told(folder):
    """What metrics.jsonl says, but for clocks, and for accuracies on training images: a watched run has these, too."""
    records = read_metrics(folder / "metrics.jsonl")
    left_out = ("seconds", "train_clean", "train_robust")
    return [{key: value for key, value in record.items() if not key.endswith(left_out)} for record in records]


@pytest.mark.parametrize("method", METHODS)
def test_the_run_is_the_same_with_a_monitor(tmp_path, method):
    plain = train(config(tmp_path / "plain", method), callbacks=[Watch()])
    watched = train(config(tmp_path / "watched", method, every=1, steps=6), callbacks=[Watch()])
    assert not (tmp_path / "plain" / FILE).exists()
    lines = read_metrics(tmp_path / "watched" / FILE)
    assert [(line["step"], line["epoch"]) for line in lines] == [(n, (n - 1) // 3 + 1) for n in range(1, STEPS + 1)]
    assert any(line["found"] for line in lines)
    assert told(tmp_path / "plain") == told(tmp_path / "watched")
    for weights in ("model", "average"):
        one, other = (getattr(run, weights) for run in (plain, watched))
        one, other = (getattr(m, "model", m).state_dict() for m in (one, other))
        for name, value in one.items():
            assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("step", [1, 5, 8])
def test_a_resumed_run_has_the_observations_of_one_that_was_not_stopped(tmp_path, step):
    """Also those that were written after the last checkpoint, once."""
    settings = config(tmp_path / "whole", every=2, steps=6)
    train(settings, callbacks=[Watch()])
    settings = config(tmp_path / "stopped", every=2, steps=6)
    with pytest.raises(CrashError):
        train(settings, callbacks=[Watch(), CrashAt(step)])
    watch = Watch()
    train(settings, resume=True, callbacks=[watch])
    whole, stopped = ((tmp_path / name / FILE).read_text() for name in ("whole", "stopped"))
    assert whole == stopped
    assert len(whole.splitlines()) == STEPS // 2 == len(watch.monitor.observations)


@pytest.mark.parametrize("probe", ["train", "holdout"])
def test_the_probe(probe):
    training = prepare(config(every=7, examples=10, probe=probe, radius=0.3, steps=4))
    watch = Watch()
    watch.on_start(training)
    monitor, data = watch.monitor, training.data
    rows = data.fit[:96] if probe == "train" else data.holdout
    assert monitor.index == rows[:10].tolist()
    assert torch.equal(monitor.labels, torch.as_tensor(data.train.labels[rows[:10]]))
    assert (monitor.every, monitor.radius, monitor.search.steps, monitor.path) == (7, 0.3, 4, None)


def test_the_probe_of_every_step_is_its_batch(tmp_path):
    seen = []

    class Look(Callback):
        def on_step_begin(self, training, batch):
            training.model.eval()
            with torch.no_grad():
                right = training.model(batch.inputs[:20]).argmax(dim=1) == batch.labels[:20]
            seen.append(int(right.sum()))

    train(config(tmp_path, every=1, examples=20, probe="batch", steps=4), callbacks=[Look(), Watch()])
    lines = read_metrics(tmp_path / FILE)
    assert [line["correct"] for line in lines] == seen
    assert len(set(seen)) > 1
    assert {len(line["margins"]) for line in lines} == {20}
    assert not any("index" in line for line in lines)
    assert lines[0]["settings"]["probe"] == "of every step"


def test_the_radius_is_that_of_the_validation():
    watch = Watch()
    watch.on_start(prepare(config(every=7, examples=500)))
    assert watch.monitor.radius == 0.05
    assert len(watch.monitor.inputs) == 96  # all that are trained on


def test_one_flag_of_the_command_line(tmp_path):
    words = ["fashion-mini-cnn-natural", "--data.limit", "256", "--train.epochs", "1", "--eval.every", "9"]
    words += ["--monitor.every", "1", "--monitor.examples", "8", "--monitor.steps", "4", "--quiet"]
    words += ["--eval.attack", "none", "--eval.steps", "1", "--train.device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", *words]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert len(lines[0]["index"]) == 8
    assert lines[0]["settings"]["radius"] == 0.1


@pytest.mark.parametrize("words", [["--monitor.every", "0"], ["--monitor.examples", "0"], ["--monitor.probe", "test"]])
def test_settings_that_cannot_be_meant(words):
    with pytest.raises(RecipeError, match=words[0].removeprefix("--")):
        resolve("fashion-mini-cnn-at", words)


def test_a_monitor_that_would_see_nothing_says_so(tmp_path, capsys):
    train(config(tmp_path / "rare", every=STEPS + 1, steps=6), callbacks=[Watch()])
    assert f"monitor.every {STEPS + 1}: nothing is observed in {STEPS} steps" in capsys.readouterr().out
    train(config(tmp_path / "once", every=STEPS, steps=6), callbacks=[Watch()])
    assert "nothing is observed" not in capsys.readouterr().out
