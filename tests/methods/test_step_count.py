"""The number of search steps of an epoch: the rule, its rest, and trainings that follow it."""

import pytest
import torch
from engine_cases import CrashAt, CrashError
from objective_cases import images, labels_of, network

from dyart.engine.callbacks import Callback
from dyart.engine.fit import TrainingError
from dyart.engine.run import prepare, train
from dyart.methods import step_count
from dyart.methods.dyart import DyART
from dyart.methods.step_count import COUNTS, StepCount
from dyart.recipes.load import check

CPU = torch.device("cpu")


def told(count, shares, first=0):
    """Return the counts of epochs whose shares of good points were these."""
    counts = []
    for number, share in enumerate(shares, first):
        count.look(number / 100)
        counts.append(count.count)
        good = torch.arange(1000) < 1000 * share
        count.note(good, torch.ones_like(good), None)
    return counts


def test_it_begins_with_the_steps_that_were_asked_for_or_the_next_larger():
    assert [StepCount(steps, CPU).count for steps in (2, 5, 6, 8, 10, 20, 50)] == [5, 5, 7, 10, 10, 20, 20]


def test_too_few_good_points_take_more_steps_and_plenty_fewer():
    assert told(StepCount(10, CPU), [0.9, 0.9, 0.9, 0.9]) == [10, 14, 20, 20]
    assert told(StepCount(10, CPU), [1.0, 1.0, 1.0, 1.0]) == [10, 7, 5, 5]
    assert told(StepCount(10, CPU), [0.95, 0.979, 0.96]) == [10, 10, 10]


def test_it_does_not_flip():
    """Seven steps give too few good points, ten plenty, for ever: changes become rarer and rarer."""
    count, counts = StepCount(10, CPU), []
    for epoch in range(200):
        count.look(epoch / 200)
        counts.append(count.count)
        good = torch.arange(1000) < (990 if count.count >= 10 else 940)
        count.note(good, torch.ones_like(good), None)
    changes = [place for place in range(1, 200) if counts[place] != counts[place - 1]]
    assert set(counts) == {7, 10}
    assert len(changes) <= 16
    assert counts.count(7) <= 8
    waits = [later - earlier for earlier, later in zip(changes[1::2], changes[2::2], strict=False)]
    assert waits == sorted(waits)
    assert waits[-1] >= 32


def test_what_is_far_or_outside_does_not_count():
    count = StepCount(10, CPU)
    count.look(0.0)
    near = torch.arange(100) < 10
    count.note(torch.ones(100, dtype=torch.bool), near, None)
    assert count.tally.tolist() == [10, 10]
    empty = StepCount(10, CPU)
    assert told(empty, [0.0]) == [10]
    empty.tally.zero_()
    empty.look(0.5)  # nobody is near: nothing is known
    assert empty.count == 10


def test_asked_again_in_the_same_epoch_it_chooses_nothing():
    count = StepCount(10, CPU)
    told(count, [0.5])
    before = count.past.clone(), count.tally.clone()
    count.look(0.0)
    assert count.count == 10
    assert torch.equal(count.past, before[0])
    assert torch.equal(count.tally, before[1])


def test_the_state_is_all_there_is():
    one = StepCount(10, CPU)
    told(one, [1.0, 0.5, 0.99])
    two = StepCount(20, CPU)
    two.past.copy_(one.past)
    two.tally.copy_(one.tally)
    shares = [0.99, 0.9, 0.99, 0.99, 0.99]
    assert told(one, shares, 3) == told(two, shares, 3)


# In the engine

TREE = {
    "seed": 3,
    "data": {"name": "three-blobs", "limit": 96},
    "model": {"name": "mlp"},
    "method": {"name": "dyart", "r0": 0.2, "lam": 5.0, "steps": 7, "adaptive_steps": True},
    "optim": {"lr": 0.2},
    "train": {"epochs": 4, "burn_in": 4, "batch_size": 32, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 1},
}


def steps_of(training):
    return [record["search_steps"] for record in training.history if record["phase"] == "train"]


@pytest.mark.parametrize("step", [17, 18])
def test_a_training_that_is_resumed_is_the_one_that_was_not(tmp_path, monkeypatch, step):
    # In the middle of an epoch, and at the end of one; the bars are such that the count changes.
    monkeypatch.setattr(step_count, "ENOUGH", 1.1)
    whole = train(check(TREE | {"out": str(tmp_path / "whole")}))
    assert steps_of(whole) == [7, 10, 14, 20]
    config = check(TREE | {"out": str(tmp_path / "broken")})
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(step)])
    resumed = train(config, resume=True)
    assert steps_of(resumed) == steps_of(whole)
    assert torch.equal(whole.method.counter.past, resumed.method.counter.past)
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name


def test_a_stopped_epoch_goes_on_with_its_count(tmp_path, monkeypatch):
    monkeypatch.setattr(step_count, "ENOUGH", 1.1)

    class Stop(Callback):
        def on_step(self, training):
            if training.steps_done == 17:
                training._wish_to_stop("enough")

    config = check(TREE | {"out": str(tmp_path / "stopped")})
    with pytest.raises(TrainingError):
        train(config, callbacks=[Stop()])
    assert steps_of(train(config, resume=True)) == [7, 10, 14, 20]


def test_with_awp_a_batch_counts_once():
    method = TREE["method"] | {"name": "dyart-awp"}
    training = prepare(check(TREE | {"method": method, "train": TREE["train"] | {"epochs": 1}}))
    training.run()
    near = training.method.counter.tally[1]
    assert 0 < near <= 96


def test_more_steps_than_it_would_take_are_refused():
    assert DyART(steps=20, adaptive_steps=True).steps == 20
    with pytest.raises(ValueError, match="takes at most 20 steps, got steps=30"):
        DyART(steps=30, adaptive_steps=True)


def test_elsewhere_the_steps_stay():
    method = DyART(steps=8, adaptive_steps=True)
    method.advance(0.5)
    assert method.steps == 8
    assert method.stage is None
    assert method.state_dict() == {}
    assert DyART(steps=8).stage is None


def test_a_call_says_that_the_steps_stay_unless_somebody_tells_of_epochs():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    method, other = (DyART(r0=0.05, steps=5, adaptive_steps=True) for _ in range(2))
    with pytest.warns(UserWarning, match="^adaptive_steps: without effect in this loop"):
        method(model, x, labels)
    method(model, x, labels)  # once; and warnings are errors here
    other.prepare(len(x), CPU)
    other(model, x, labels)
    assert other.counter.tally[1] > 0


def test_what_another_configuration_kept_is_told_apart():
    method = DyART(steps=8, adaptive_steps=True)
    method.prepare(10, CPU)
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    assert set(state) == {"past", "tally"}
    method.load_state_dict(state)
    with pytest.raises(ValueError, match=r"keeps \['past', 'tally'\], the checkpoint has \['sizes', 'steps'\]"):
        method.load_state_dict({"steps": torch.zeros(1), "sizes": torch.zeros(1)})
    both = DyART(steps=8, adaptive_steps=True, warm_start=True)
    both.prepare(10, CPU)
    both.load_state_dict(state)  # of a run that had no warm starts yet
    assert both.state_dict().keys() == state.keys()
    assert COUNTS[0] == 5
