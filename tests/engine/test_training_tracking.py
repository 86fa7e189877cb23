"""Accuracies on training images through a training: what they are, what they cost, and that nothing depends on them."""

import io

import numpy as np
import pytest
import torch
from engine_cases import CrashAt, CrashError, assert_same_run, last_state, make_config, numbers
from rich.console import Console

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.data import draws, load
from dyart.data.loader import as_tensors
from dyart.engine.display import Display
from dyart.engine.run import make_model, prepare, train
from dyart.engine.stored import averaged_weights

TRACKED = ("train_clean", "train_robust")
# Augmented, so that measuring on batches would give other numbers; dropout, which draws.
IMAGES = {"data_name": "fashion-mini", "data_limit": 128, "train_batch_size": 64, "data_crop": 2, "train_epochs": 2}


def epochs(folder):
    return [record for record in numbers(folder) if record["kind"] == "epoch"]


@pytest.mark.parametrize("method", ["natural", "at", "dyart"])
def test_every_method_is_measured_in_the_weights_that_are_validated(tmp_path, method):
    config = make_config(tmp_path, method, model_name="cnn", eval_train_examples=40, **IMAGES)
    train(config)
    data = load("fashion-mini")
    x, y = as_tensors(data.train, data.fit[:40], torch.device("cpu"))
    model = make_model(config, data).eval()
    model.load_state_dict(averaged_weights(tmp_path, "last"))
    last = epochs(tmp_path)[-1]
    assert last["train_clean"] == pytest.approx(correct(model, x, y).float().mean().item())
    key = draws.key(config.seed, "validation")
    robust = resists_pgd(model, x, y, config.eval.radius, steps=config.eval.steps, key=key)
    assert last["train_robust"] == pytest.approx(robust.float().mean().item())
    assert 0 < last["train_robust"] < last["train_clean"]
    assert last["train_clean"] != last["val_clean"]


@pytest.mark.parametrize("settings", [{"method": "at"}, {"method": "dyart"}, {"model_name": "engine_networks:dropout"}])
def test_weights_are_the_same_bits_without_it(tmp_path, settings):
    for name, count in (("on", 30), ("off", 0)):
        train(make_config(tmp_path / name, eval_train_examples=count, train_burn_in=1, **settings))
    with_it, without = last_state(tmp_path / "on"), last_state(tmp_path / "off")
    assert all(torch.equal(with_it[name], value) for name, value in without.items())
    assert all(name in record for record in epochs(tmp_path / "on") for name in TRACKED)
    left = [{key: value for key, value in record.items() if key not in TRACKED} for record in numbers(tmp_path / "on")]
    assert left == numbers(tmp_path / "off")


def test_a_resumed_run_says_the_same(tmp_path):
    settings = {"method": "dyart", "train_burn_in": 1, "eval_train_examples": 30}
    train(make_config(tmp_path / "whole", **settings))
    config = make_config(tmp_path / "run", **settings)
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(8)])
    train(config, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert all("train_robust" in record for record in epochs(tmp_path / "run"))


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 0), ({"monitor_every": 50}, "held out"), ({"monitor_every": 50, "eval_train_examples": 0}, 0),
     ({"eval_train_examples": 7}, 7), ({"eval_train_examples": 10**6}, "all")],
)  # fmt: skip
def test_how_many_are_measured(settings, count):
    training = prepare(make_config(data_limit=64, **settings))
    measured = 0 if training.tracking is None else len(training.tracking.labels)
    assert measured == {"held out": min(len(training.data.holdout), 64), "all": 64}.get(count, count)


def test_they_are_trained_on_and_not_held_out():
    training = prepare(make_config(eval_train_examples=50))
    rows = training.loader.indices[:50].numpy()
    assert np.array_equal(training.tracking.labels.numpy(), training.data.train.labels[rows])
    assert not set(rows.tolist()) & set(training.data.holdout.tolist())


def test_only_where_it_is_validated(tmp_path):
    train(make_config(tmp_path, eval_train_examples=10, eval_every=2, train_epochs=3))
    records = epochs(tmp_path)
    assert ["train_clean" in r for r in records] == ["val_clean" in r for r in records] == [False, True, True]


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match=r"eval\.train_examples must be at least 0, got -1"):
        make_config(eval_train_examples=-1)


@pytest.mark.parametrize("count", [0, 20])
def test_the_table_has_them_where_they_are_measured(count):
    written = io.StringIO()
    display = Display(console=Console(file=written, width=200, highlight=False))
    training = prepare(make_config(eval_train_examples=count, train_epochs=1), callbacks=[display]).run()
    head, line = written.getvalue().splitlines()[-2:]
    assert ("on training" in head) == (count > 0)
    if count:
        shares = " / ".join(f"{100 * training.history[-1][name]:.1f}" for name in TRACKED)
        end = head.index("on training") + len("on training")
        assert line[:end].endswith(f" {shares}")
        assert len(line) < 80
