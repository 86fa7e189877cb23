"""The switch for the same bits on a GPU, as far as a CPU can tell. The bits themselves: test_gpu_training.py."""

import os

import pytest
import torch
from engine_cases import assert_same_run, make_config

from dyart.engine.callbacks import Callback
from dyart.engine.deterministic import WORKSPACE
from dyart.engine.run import train


class Look(Callback):
    def on_step(self, training) -> None:
        self.on = torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("on", [False, True])
def test_the_switch_is_on_while_training_alone(tmp_path, monkeypatch, on):
    monkeypatch.setenv(WORKSPACE, ":16:8")
    look = Look()
    train(make_config(tmp_path, train_deterministic=on), callbacks=[look])
    assert look.on is on
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ[WORKSPACE] == ":16:8", "the user's own"


def test_cublas_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)
    train(make_config(tmp_path, train_deterministic=True))
    assert os.environ[WORKSPACE] == ":4096:8"


def test_on_a_cpu_it_changes_nothing(tmp_path):
    train(make_config(tmp_path / "one", "dyart"))
    train(make_config(tmp_path / "other", "dyart", train_deterministic=True))
    assert_same_run(tmp_path / "one", tmp_path / "other")


def test_it_is_not_compiled(tmp_path):
    assert not train(make_config(tmp_path, train_deterministic=True, train_compile="auto")).compile
    with pytest.raises(ValueError, match=r"train\.deterministic needs train\.compile off"):
        make_config(tmp_path, train_deterministic=True, train_compile="on")
