"""Warnings about settings: only where they hold for long, and once each."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from engine_cases import make_config

from dyart.engine.advice import PATIENCE, Advice
from dyart.engine.run import train

TRAINING = SimpleNamespace(
    fabric=SimpleNamespace(is_global_zero=True), loader=range(1000), method=SimpleNamespace(retire=False)
)
GOOD = {"inside": 0.8, "found": 0.75, "phi_shift": 0.2}


def heard(caplog, *records, every=50):
    """Return what is said of records, one every so many steps."""
    advice = Advice()
    for place, record in enumerate(records, 1):
        advice.on_record(TRAINING, {"kind": "step", "step": place * every} | record)
    return caplog.messages


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inside": 0.02, "found": 0.01}, ("2%", "train.burn_in", "train.burn_in_from", "optim.lr")),
        ({"found": 0.2}, ("25%", "method.steps")),
        ({"phi_shift": 4.1}, ("phi_shift is 4.1", "method.joint true", "model.normalization group")),
        ({"phi_shift": -1.5}, ("phi_shift is -1.5",)),
    ],
)
def test_once_and_with_what_to_do(caplog, values, words):
    (said,) = heard(caplog, *[GOOD | values] * 20)
    assert said.startswith(f"step {50 + PATIENCE}: ")
    assert all(word in said for word in words)


def test_examples_that_left_the_search_are_not_counted_as_missed(caplog, monkeypatch):
    monkeypatch.setattr(TRAINING.method, "retire", True)
    assert heard(caplog, *[GOOD | {"found": 0.02}] * 20) == []


@pytest.mark.parametrize("values", [{}, {"inside": 0.15, "found": 0.1}, {"phi_shift": -0.9}, {"found": 0.5}])
def test_nothing_is_said_of_a_good_training(caplog, values):
    assert heard(caplog, *[GOOD | values] * 20) == []


def test_nothing_is_said_of_a_short_while(caplog):
    bad = GOOD | {"inside": 0.0, "found": 0.0, "phi_shift": 5.0}
    assert heard(caplog, *[bad, bad, GOOD] * 10) == []


def test_nothing_is_said_of_methods_without_points(caplog):
    assert heard(caplog, *[{"loss": 1.0}, {"inside": None, "found": None, "phi_shift": None}] * 20) == []


def test_different_things_are_said_one_after_the_other(caplog):
    bad = GOOD | {"inside": 0.01, "phi_shift": 5.0}
    assert len(heard(caplog, *[GOOD] * 3, *[bad] * 10)) == 2


def test_a_training_without_burn_in_is_warned(tmp_path, caplog):
    """For real: labels that say nothing, so that hardly any example is ever inside."""
    settings = {"optim_lr": 1e-6, "model_name": "engine_networks:undecided", "data_limit": 960}
    settings |= {"train_epochs": 5, "train_log_every": 10, "eval_every": 9}
    train(make_config(tmp_path / "run", "dyart", **settings))
    said = [line for line in caplog.messages if "inside their class's boundary" in line]
    assert len(said) == 1
    assert "train.burn_in" in said[0]


def test_of_a_small_set_something_is_said_after_two_epochs(caplog):
    advice, training = Advice(), SimpleNamespace(**vars(TRAINING) | {"loader": range(6)})
    for place in range(1, 5):
        advice.on_record(training, {"kind": "epoch", "phase": "train", "step": 6 * place, "inside": 0.3, "found": 0.0})
    assert [line.split(":")[0] for line in caplog.messages] == ["step 18"]


@pytest.mark.parametrize(("rate", "said"), [(1e-7, 1), (0.2, 0)])
def test_a_burn_in_that_taught_nothing(tmp_path, caplog, rate, said):
    settings = {"optim_lr": 0.01, "optim_burn_in_lr": rate, "train_burn_in": 3, "train_epochs": 1, "data_limit": 320}
    train(make_config(tmp_path / "run", "dyart", **settings | {"model_name": "engine_networks:undecided"}))
    lines = [line for line in caplog.messages if line.startswith("the burn-in ends with")]
    assert len(lines) == said
    assert all(re.search("would be right for 3[3-9] %", line) and "optim.burn_in_lr" in line for line in lines)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (8, "it had only 8 steps, so raise train.burn_in, and lower train.batch_size"),
        (49, "it had only 49 steps, so raise train.burn_in, and lower train.batch_size"),
        (50, "lower optim.burn_in_lr and optim.lr, e.g. by ten, or raise train.burn_in"),
    ],
)
def test_a_burn_in_of_few_steps_is_said_to_be_short_first(caplog, steps, words):
    data = SimpleNamespace(train=SimpleNamespace(labels=np.arange(100) % 4), holdout=np.arange(20))
    config = SimpleNamespace(train=SimpleNamespace(burn_in=4))
    training = SimpleNamespace(**vars(TRAINING), data=data, config=config)
    for epoch, step in ((3, 1), (4, steps)):
        record = {"kind": "epoch", "phase": "burn-in", "epoch": epoch, "step": step, "val_clean": 0.26}
        Advice().on_record(training, record)
    (line,) = caplog.messages
    assert line.startswith("the burn-in ends with 26 % of the images right, and one class for all of them would be ")
    assert line.split(": ", 1)[1].startswith(words)
