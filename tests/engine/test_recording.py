"""What is recorded as a CUDA graph, with one that runs on the CPU in its place: how often, of what, and if it fails."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from engine_cases import make_config
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dyart.attacks.accuracy import correct, judged
from dyart.boundary.model import evaluation_mode
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.engine import capture
from dyart.engine.run import prepare
from dyart.engine.steps import Stepper
from dyart.engine.validation import Judge


class Replayed:
    """Runs a function again and writes what it returns over what it returned first."""

    def __init__(self, function):
        self.function, self.result, self.replays = function, function(), 0

    def replay(self):
        self.replays += 1
        for old, new in zip(tree_leaves(self.result), tree_leaves(self.function()), strict=True):
            if isinstance(old, Tensor):
                old.detach().copy_(new.detach())


@pytest.fixture
def graphs(monkeypatch):
    """Record on the CPU; return the graphs, and the memory that each was recorded with."""
    made = []

    def record(function, pool=None):
        graph = Replayed(function)
        made.append((graph, pool))
        return graph, graph.result

    monkeypatch.setattr(capture, "record", record)
    return made


@pytest.mark.usefixtures("graphs")
def test_the_first_call_lets_cudnn_try_its_algorithms():
    """What it guesses once, it keeps: the graph, which is recorded at the second call, would have it."""
    seen = []

    def function(batch):
        seen.append(torch.backends.cudnn.benchmark)
        return batch.inputs + 1

    captured, key = capture.Captured(function), torch.zeros((), dtype=torch.int64)
    captured(Batch(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2), key))
    assert seen == [True]
    assert not torch.backends.cudnn.benchmark


# Steps


@pytest.fixture
def adaptive(graphs, capsys):
    method = {"name": "dyart", "steps": 5, "r0": 0.2, "lam": 5.0, "adaptive_steps": True}
    natural = prepare(make_config(train_epochs=4)).run()
    training = prepare(make_config(method=method))
    training.model.load_state_dict(natural.model.state_dict())
    training.average.restart()
    capsys.readouterr()
    stepper = Stepper(training.fabric, training.views, training.method, capture=True)
    training.method.compiled = False  # of its own work nothing is compiled here
    return training, stepper


def test_every_number_of_steps_is_recorded_once(graphs, adaptive):
    training, stepper = adaptive
    batch, counts = next(training.loader.epoch(0)), []
    # Up to 20 steps, down to 5, and up again.
    shares = [0.5] * 5 + [1.0] * 12 + [0.5] * 5
    for epoch, share in enumerate(shares):
        stepper.advance(epoch / 100)
        counts.append(training.method.steps)
        for _ in range(3):
            buffers = {name: buffer.clone() for name, buffer in training.model.named_buffers()}
            loss, _ = stepper.gradients(batch)
        training.model.load_state_dict(buffers, strict=False)
        wanted, *_ = stepper._work(batch)
        assert float(loss) == float(wanted)
        training.method.counter.tally.copy_(torch.tensor([100 * share, 100]))
    assert set(counts) == {5, 7, 10, 14, 20}
    assert sum(a != b for a, b in pairwise(counts)) > 8
    assert len(graphs) == 5
    assert len({id(pool) for _, pool in graphs}) == 1  # they share their memory


def test_what_is_counted_while_recording_does_not_count(graphs, adaptive):
    training, stepper = adaptive
    batch = next(training.loader.epoch(0))
    stepper.advance(0.0)
    stepper.gradients(batch)
    once = training.method.counter.tally.clone()
    assert once[1] > 0
    stepper.gradients(batch)  # records, and replays
    assert torch.equal(training.method.counter.tally, 2 * once)


def test_a_step_that_cannot_be_recorded_is_crafted_apart(monkeypatch, graphs, adaptive, capsys):
    training, stepper = adaptive
    working = capture.record

    def record(function, pool=None):
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setattr(capture, "record", record)
    batch = next(training.loader.epoch(0))
    stepper.gradients(batch)
    loss, _ = stepper.gradients(batch)
    assert capsys.readouterr().out.splitlines() == [
        "the loss of dyart cannot be recorded (operation not permitted when stream is capturing): only its crafting is"
    ]
    monkeypatch.setattr(capture, "record", working)
    again, _ = stepper.gradients(batch)
    assert len(graphs) == 1
    assert float(loss) == float(again)


def test_where_nothing_can_be_recorded_it_is_tried_twice(monkeypatch, adaptive, capsys):
    training, stepper = adaptive
    tried = []

    def record(function, pool=None):
        tried.append(function)
        raise RuntimeError("no")

    monkeypatch.setattr(capture, "record", record)
    batch = next(training.loader.epoch(0))
    losses = [float(stepper.gradients(batch)[0]) for _ in range(8)]
    assert len(set(losses)) == 1
    assert len(tried) == 2
    assert capsys.readouterr().out.splitlines() == [
        "the loss of dyart cannot be recorded (no): only its crafting is",
        "the crafting of dyart cannot be recorded (no): nothing is",
    ]


def test_perturbed_weights_are_recorded_with_the_step(graphs):
    """Before and after AWP's warm-up: two graphs, with the gradients of a training without any."""
    method = {"name": "at-awp", "steps": 2, "radius": 0.1, "step_size": 0.05, "gamma": 0.05, "awp_warmup": 0.5}
    training = prepare(make_config(method=method))
    recorded = Stepper(training.fabric, training.views, training.method, capture=True)
    plain = Stepper(training.fabric, training.views, training.method)
    training.method.compiled = False
    seen = []
    for fraction in (0.0, 0.25, 0.5, 0.75):
        for batch in training.loader.epoch(0):
            before = [parameter.detach().clone() for parameter in training.model.parameters()]
            taken = []
            for stepper in (recorded, plain):
                stepper.advance(fraction)
                loss, _ = stepper.gradients(batch)
                taken.append([float(loss), *(p.grad.detach().clone() for p in training.model.parameters())])
                assert all(torch.equal(p, q) for p, q in zip(training.model.parameters(), before, strict=True))
            assert taken[0][0] == taken[1][0]
            assert all(torch.equal(p, q) for p, q in zip(taken[0][1:], taken[1][1:], strict=True))
        seen.append(len(graphs))
    assert seen == [1, 1, 2, 2]
    assert all(graph.replays for graph, _ in graphs)


@pytest.mark.parametrize(("name", "processes", "whole"), [("at", 2, True), ("at-awp", 1, True), ("at-awp", 2, False)])
def test_what_processes_exchange_within_a_step_is_not_recorded(name, processes, whole):
    training = prepare(make_config(method={"name": name, "steps": 2, "radius": 0.1, "step_size": 0.05}))
    stepper = Stepper(SimpleNamespace(world_size=processes), training.views, training.method, capture=True)
    assert stepper.whole is whole


# Validation

SETTINGS = {
    "method": "natural",
    "data_name": "fashion-mini",
    "data_limit": 96,
    "model_name": "cnn",
    "train_batch_size": 48,
    "eval_steps": 5,
}


def validated(norm="linf"):
    training = prepare(make_config(**SETTINGS, eval_norm=norm, eval_radius={"linf": 0.02, "l2": 0.3}[norm]))
    # Images of the hold-out with the labels that the network gives to most of them: some hold, some do not.
    validation = training.validation
    validation.inputs, validation.places = validation.inputs[:100], validation.places[:100]
    validation.labels = training.average.model(validation.inputs).argmax(dim=1)
    validation.labels[::5] = 3
    return training, validation


def recorded(training):
    judge = Judge(training.fabric, training.average.model, training.config, compile=True)
    judge.judge = capture.Captured(judge._judged)
    return judge


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_recorded_validation_says_what_an_unrecorded_one_says(graphs, norm):
    training, validation = validated(norm)
    data = validation.inputs, validation.labels, validation.places
    clean, robust = validation.judge(*data)
    assert 0 < robust.sum() < clean.sum() < 100
    judge = recorded(training)
    for _ in range(2):
        again = judge(*data)
        assert torch.equal(again[0], clean)
        assert torch.equal(again[1], robust)
    # Batches of 48, 48 and 4, the last one filled up: one graph, for the second of them and all that follow.
    ((graph, _),) = graphs
    assert graph.replays == 5


def test_it_is_the_public_functions_verdict(graphs):
    training, validation = validated()
    settings = training.config.eval
    clean, robust = validation.judge(validation.inputs, validation.labels, validation.places)
    model, key = training.average.model, draws.key(training.config.seed, "validation")
    data = validation.inputs, validation.labels
    assert torch.equal(clean, correct(model, *data))
    with evaluation_mode(model):
        wanted = judged(model, *data, settings.radius, settings.steps, key=key, index=validation.places)
    assert torch.equal(robust, wanted[1])


def test_a_recorded_validation_follows_the_weights(graphs):
    training, validation = validated()
    judge = recorded(training)
    data = validation.inputs, validation.labels, validation.places
    judge(*data)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.mul_(torch.linspace(0.5, 1.5, parameter.numel()).reshape(parameter.shape))
    training.average.restart()
    replayed, wanted = judge(*data), validation.judge(*data)
    assert torch.equal(replayed[0], wanted[0])
    assert torch.equal(replayed[1], wanted[1])
    assert len(graphs) == 1


def test_a_validation_that_cannot_be_recorded_runs_as_it_is(monkeypatch, capsys):
    training, validation = validated()
    tried = []

    def record(function, pool=None):
        tried.append(function)
        raise RuntimeError("no graphs today\nbecause")

    monkeypatch.setattr(capture, "record", record)
    judge = recorded(training)
    data = validation.inputs, validation.labels, validation.places
    for _ in range(2):
        both = judge(*data)
    assert capsys.readouterr().out.splitlines() == [
        "the validation cannot be recorded (no graphs today): it runs as it is"
    ]
    assert len(tried) == 1
    wanted = validation.judge(*data)
    assert torch.equal(both[0], wanted[0])
    assert torch.equal(both[1], wanted[1])


def test_a_process_without_examples_judges_none():
    _, validation = validated()
    none = torch.zeros(0, dtype=torch.int64)
    clean, robust = validation.judge(validation.inputs[:0], none, none)
    assert clean.shape == robust.shape == (0,)
    assert clean.dtype == torch.bool
