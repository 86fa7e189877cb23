"""Checkpoints are written beside the training: in order, with errors that reach it, and a copy that does not change."""

import threading
import time

import pytest
import torch
from engine_cases import make_config

from dyart.engine import checkpoint as store
from dyart.engine.callbacks import Callback
from dyart.engine.run import train
from dyart.engine.saver import Saver


def test_one_after_the_other():
    seen = []
    with Saver() as saver:
        for number in range(5):
            saver.submit(lambda number=number: (time.sleep(0.01), seen.append(number)))
    assert seen == [0, 1, 2, 3, 4]


def fails():
    raise OSError("full")


def test_an_error_reaches_the_caller_once():
    saver = Saver()
    saver.submit(fails)
    with pytest.raises(OSError, match="full"):
        saver.wait()
    saver.wait()
    saver.submit(fails)
    with pytest.raises(OSError, match="full"):
        saver.submit(print)
    with pytest.raises(OSError, match="full"), Saver() as saver:
        saver.submit(fails)


def stopped_by(error, work):
    with Saver() as saver:
        saver.submit(work)
        raise error


def test_of_two_errors_the_first_counts():
    with pytest.raises(KeyError):
        stopped_by(KeyError, fails)


@pytest.mark.parametrize(("error", "waits"), [(KeyError, True), (KeyboardInterrupt, False)])
def test_who_stops_at_once_does_not_wait(error, waits):
    go, done = threading.Event(), []
    if waits:
        go.set()
    with pytest.raises(error):
        stopped_by(error, lambda: (go.wait(10), done.append(1)))
    assert bool(done) == waits
    go.set()


class Slow(Callback):
    """Notes the weights at the end of every epoch, and lets steps pass before they are on the disk."""

    def __init__(self, monkeypatch):
        self.weights, self.steps, self.free = {}, [], threading.Event()
        save = store.save

        def slow(*arguments):
            self.free.wait(10)
            return save(*arguments)

        monkeypatch.setattr(store, "save", slow)

    def on_step(self, training):
        self.steps.append(training.steps_done)
        if training.steps_done % 3 == 2 and training.steps_done > 3:
            self.free.set()

    def on_record(self, training, record):
        self.weights[record["epoch"]] = {name: value.clone() for name, value in training.model.state_dict().items()}


def test_a_checkpoint_is_of_the_moment_it_was_taken_at(tmp_path, monkeypatch):
    listener = Slow(monkeypatch)
    train(make_config(tmp_path, train_keep=9, train_log_every=1000), callbacks=[listener])
    assert listener.steps == list(range(1, 10))
    for epoch in (1, 2, 3):
        saved = store.read_weights(tmp_path / "checkpoints" / f"epoch-{epoch:04d}", "model")
        assert all(torch.equal(saved[name], value) for name, value in listener.weights[epoch].items())
