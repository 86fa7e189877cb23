"""Compiled trainings: everything is traced in the first epoch of a phase, and nothing after it."""

from functools import partial

import numpy as np
import pytest
import torch
from engine_cases import METHODS, make_config

from dyart.data.sets import DataSet, Split
from dyart.engine.callbacks import Callback
from dyart.engine.run import prepare
from dyart.methods import dyart as dyart_method
from dyart.methods import step_count

EPOCHS = 3


@pytest.fixture
def graphs(monkeypatch):
    """Trace without generating code, which takes long; return the graphs."""
    made = []

    def note(graph, _):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=note))
    from dyart.boundary import kernels

    kernels.compiled.cache_clear()
    yield made
    kernels.compiled.cache_clear()
    torch._dynamo.reset()


class Count(Callback):
    """How many graphs there are after every epoch, its validation included."""

    def __init__(self, graphs):
        self.graphs, self.counts = graphs, []

    def on_record(self, training, record):
        if record["kind"] == "epoch":
            self.counts.append(len(self.graphs))


def small_images(count=72, holdout=20):
    """A hold-out of 20 in batches of 16: the last one is short."""
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    split = Split(images, np.arange(count) % 3)
    return DataSet("noise", split, split, ("a", "b", "c"), np.arange(holdout))


@pytest.mark.parametrize(("name", "normalization"), [("at", "batch"), ("dyart", "group"), ("dyart-awp", "batch")])
def test_nothing_is_traced_after_the_first_epoch(graphs, monkeypatch, name, normalization):
    # As on a GPU: the crafting's own work is compiled, with a fixed number of projection rounds.
    monkeypatch.setattr(dyart_method, "Problem", _with_rounds(dyart_method.Problem))
    method = METHODS[name.removesuffix("-awp")] | {"name": name}
    config = make_config(
        method=method,
        data_name="noise",
        data_limit=None,
        model_name="cnn",
        model_normalization=normalization,
        train_epochs=EPOCHS,
        train_batch_size=16,
        train_compile="on",
        optim_average=0.9,
    )
    counted = Count(graphs)
    training = prepare(config, callbacks=[counted], data=small_images())
    training.method.compiled = True
    training.run()
    assert counted.counts[0] > 0
    assert counted.counts == [counted.counts[0]] * EPOCHS


@pytest.mark.parametrize("warm_start", [False, True])
def test_another_number_of_search_steps_is_traced_from_what_there_is(graphs, monkeypatch, warm_start):
    monkeypatch.setattr(dyart_method, "Problem", _with_rounds(dyart_method.Problem))
    monkeypatch.setattr(step_count, "ENOUGH", 1.1)  # more steps after every epoch
    method = METHODS["dyart"] | {"steps": 5, "adaptive_steps": True, "warm_start": warm_start, "retire": True}
    settings = {"data_name": "noise", "data_limit": None, "model_name": "cnn", "train_batch_size": 16}
    config = make_config(method=method, train_epochs=5, train_compile="on", **settings)
    counted = Count(graphs)
    training = prepare(config, callbacks=[counted], data=small_images())
    training.method.compiled = True
    training.run()
    assert [record["search_steps"] for record in training.history] == [5, 7, 10, 14, 20]
    assert counted.counts == [counted.counts[0]] * 5


def test_a_short_last_batch_of_validation_is_no_shape_of_its_own(graphs):
    settings = {"data_name": "noise", "data_limit": None, "model_name": "cnn", "train_batch_size": 16}
    training = prepare(make_config(method="at", train_compile="on", **settings), data=small_images())
    training.validation()
    shapes = {tuple(node.meta["example_value"].shape) for graph in graphs for node in _images(graph)}
    assert shapes == {(16, 1, 8, 8)}


def _images(graph):
    """The inputs of a graph that are batches of images."""
    values = [node for node in graph.graph.nodes if node.op == "placeholder" and "example_value" in node.meta]
    return [node for node in values if getattr(node.meta["example_value"], "shape", ())[1:] == (1, 8, 8)]


def _with_rounds(problem):
    def made(*settings, rounds=None, **named):
        return problem(*settings, rounds=8, **named)

    return made
