"""A loss or a gradient that is not finite."""

import pytest
import torch
from engine_cases import STEPS, SignalAt, last_checkpoint, last_state, make_config, numbers

from dyart.data import load
from dyart.engine.callbacks import Callback
from dyart.engine.fit import TrainingError
from dyart.engine.numbers import Guard, NotFiniteError
from dyart.engine.run import prepare, train


def breaking(step: int, gradient: bool = False) -> dict:
    return {"name": "engine_networks:Breaks", "step": step, "gradient": gradient}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("log_every", [1, 4, 1000])
@pytest.mark.parametrize("device", ["cpu", "waits"])
def test_the_step_is_named_and_the_checkpoint_before_it_kept(tmp_path, gradient, log_every, device):
    """Also where, as on a GPU, losses are looked at now and then only."""
    step = 2 * STEPS + 2
    config = make_config(tmp_path, breaking(step, gradient), train_epochs=5, train_keep=9, train_log_every=log_every)
    training = prepare(config, tmp_path)
    training.guard.waits = device == "waits"
    with pytest.raises(TrainingError, match=rf"step {step} \(epoch 3\) is not finite.*epoch-0002.*optim\.lr"):
        training.run()
    assert last_checkpoint(tmp_path).name == "epoch-0002"
    assert all(bool(tensor.isfinite().all()) for tensor in last_state(tmp_path).values())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "epoch-0001",
        "epoch-0002",
        "index.json",
    ]
    assert max(record["step"] for record in numbers(tmp_path)) < step


def test_the_run_goes_on_with_a_better_setting(tmp_path):
    with pytest.raises(TrainingError):
        train(make_config(tmp_path, optim_lr=1e30, train_epochs=3))
    train(make_config(tmp_path, optim_lr=0.1, train_epochs=3), resume=True)
    assert [record["epoch"] for record in numbers(tmp_path) if record["kind"] == "epoch"] == [1, 2, 3]


def test_in_the_first_epoch_nothing_is_kept(tmp_path):
    with pytest.raises(TrainingError, match=r"step 1 \(epoch 1\) is not finite: .*; no checkpoint was written yet"):
        train(make_config(tmp_path, breaking(1)))
    assert not (tmp_path / "checkpoints").exists()


def test_a_signal_saves_no_broken_weights(tmp_path):
    """As on a GPU: the step after the broken one brings the signal, before anybody has looked at the loss."""
    training = prepare(
        make_config(tmp_path, breaking(STEPS + 1), train_log_every=1000), tmp_path, [SignalAt(STEPS + 2)]
    )
    training.guard.waits = True
    with pytest.raises(TrainingError, match=f"step {STEPS + 1} .*is not finite"):
        training.run()
    assert last_checkpoint(tmp_path).name == "epoch-0001"


def test_a_rate_that_is_too_high(tmp_path):
    config = make_config(tmp_path, optim_lr=1e30, optim_warmup=0, train_epochs=5)
    with pytest.raises(TrainingError, match=r"is not finite.*halve optim\.lr"):
        train(config)


def test_images_that_are_not_finite(tmp_path):
    data = load("three-blobs")
    data.train.images[data.fit[5]] = torch.nan
    with pytest.raises(TrainingError, match=r"epoch 1\b.*the inputs of examples \[\d+\].*images that are not finite"):
        train(make_config(tmp_path), data=data)


# Names


@pytest.mark.parametrize("device", ["cpu", "waits"])
def test_the_parameter_is_named(tmp_path, device):
    """Of all parameters only the one whose gradient is not finite."""
    training = prepare(make_config(tmp_path, {"name": "engine_networks:OneGradient", "step": 4}), tmp_path)
    training.guard.waits = device == "waits"
    names = [name for name, _ in training.model.named_parameters()]
    with pytest.raises(TrainingError, match=rf"step 4 \(epoch 2\) is not finite: the gradient of {names[1]}; the last"):
        training.run()


def test_the_loss_is_named_with_its_value(tmp_path):
    with pytest.raises(TrainingError, match=r": the loss \(nan\), the gradient of \S+, \S+, \S+ and \d+ more;"):
        train(make_config(tmp_path, breaking(4)))


class BreakWeight(Callback):
    """Makes a weight infinite after a step."""

    def __init__(self, step, name=None):
        self.step, self.name = step, name

    def on_step(self, training):
        if training.steps_done == self.step:
            weights = dict(training.model.named_parameters())
            with torch.no_grad():
                weights[self.name or next(iter(weights))].flatten()[0] = torch.inf


def test_a_weight_is_named(tmp_path):
    with pytest.raises(TrainingError, match=r"step 5 .*: the weights (\S+), already before it"):
        train(make_config(tmp_path), callbacks=[BreakWeight(4)])
    assert last_checkpoint(tmp_path).name == "epoch-0001"


def test_a_weight_that_no_loss_shows_is_not_saved(tmp_path):
    config = make_config(tmp_path, model_name="engine_networks:with_spare")
    with pytest.raises(TrainingError, match=r"not finite: the weights spare\.0; the last good checkpoint.*epoch-0001"):
        train(config, callbacks=[BreakWeight(4, "spare.0")])
    assert last_checkpoint(tmp_path).name == "epoch-0001"


def test_a_mask_with_infinite_numbers_is_no_broken_weight(tmp_path):
    training = train(make_config(tmp_path, model_name="engine_networks:masked"))
    assert training.average.model.mask.tolist() == [0.0, -torch.inf]
    assert numbers(tmp_path)[-1]["val_clean"] > 0.5


# Skipping


def skipping(out, method, **settings):
    return make_config(out, method, train_skip_bad_batches=True, train_epochs=4, **settings)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("device", ["cpu", "waits"])
def test_a_bad_batch_is_left_out_and_counted(tmp_path, gradient, step, device):
    """Weights, their average, momentum and running statistics after it are those before it, to the bit."""
    seen = {}

    def carried(training):
        networks = (training.model, training.average.model)
        return [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]

    class Watch(Callback):
        def on_step(self, training):
            momenta = [value for state in training.optimizer.state.values() for value in state.values()]
            seen[training.steps_done] = [tensor.detach().clone() for tensor in (*carried(training), *momenta)]

    config = skipping(tmp_path, breaking(step, gradient), model_name="engine_networks:batch_norm")
    training = prepare(config, tmp_path, [Watch()])
    training.guard.waits = device == "waits"
    first = [tensor.detach().clone() for tensor in carried(training)]
    training.run()
    before, after = seen.get(step - 1, first), seen[step]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=False))
    assert all(bool((tensor == 0).all()) for tensor in after[len(before) :]), "momentum of a first step"
    assert not all(torch.equal(one, other) for one, other in zip(after, seen[step + 1], strict=True))
    assert all(bool(tensor.isfinite().all()) for tensor in last_state(tmp_path).values())
    counts = [record["skipped_steps"] for record in numbers(tmp_path) if record["kind"] == "epoch"]
    assert counts == ([1, 1, 1, 1] if step == 1 else [0, 1, 1, 1])


def test_without_a_bad_batch_skipping_changes_nothing(tmp_path):
    train(make_config(tmp_path / "one", "dyart"))
    train(make_config(tmp_path / "other", "dyart", train_skip_bad_batches=True))
    one, other = last_state(tmp_path / "one"), last_state(tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_count_is_resumed(tmp_path):
    config = skipping(tmp_path, breaking(2))
    with pytest.raises(TrainingError, match="stopped by SIGTERM"):
        train(config, callbacks=[SignalAt(STEPS + 1)])
    resumed = train(config, resume=True)  # counts steps anew: its second one is bad, too
    assert int(resumed.guard.skipped) == 2
    assert [record["skipped_steps"] for record in numbers(tmp_path) if record["kind"] == "epoch"] == [1, 2, 2, 2]


def test_images_that_are_not_finite_are_left_out(tmp_path):
    data = load("three-blobs")
    data.train.images[data.fit[5]] = torch.nan
    training = train(skipping(tmp_path, "dyart"), data=data)
    assert int(training.guard.skipped) == 4, "one batch of every epoch"
    assert all(bool(tensor.isfinite().all()) for tensor in last_state(tmp_path).values())


def test_weights_that_awp_moved_are_put_back(tmp_path):
    data = load("three-blobs")
    data.train.images[data.fit[5]] = torch.nan
    method = {"name": "at-awp", "steps": 2, "radius": 0.05, "step_size": 0.02, "awp_warmup": 0.0}
    training = train(skipping(tmp_path, method), data=data)
    assert int(training.guard.skipped) == 4
    assert all(bool(tensor.isfinite().all()) for tensor in last_state(tmp_path).values())


def test_nothing_but_bad_batches_stops(tmp_path):
    config = skipping(tmp_path, {"name": "engine_networks:Breaks", "step": -1}, data_limit=1000)
    with pytest.raises(TrainingError, match=r"step 1 .*the loss \(nan\).*20 batches in a row were skipped"):
        train(config)


def test_the_first_of_the_bad_steps_in_a_row_is_told_and_not_one_long_ago():
    model = torch.nn.Linear(2, 1)
    guard = Guard(model, torch.device("cpu"), skip=True, waits=True)
    for step in range(1, 81):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan if step == 2 else 1.0)
        guard.look(step, torch.tensor(torch.inf if step > 60 else 1.0), guard.clip(torch.inf))
    with pytest.raises(NotFiniteError, match=r"^the loss \(inf\); 20 batches in a row were skipped") as error:
        guard.check()
    assert error.value.step == 61


def test_broken_weights_are_not_blamed_on_a_step_that_was_skipped():
    model = torch.nn.Linear(2, 1)
    guard = Guard(model, torch.device("cpu"), skip=True, waits=True)
    for step in range(1, 10):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan if step == 3 else 1.0)
        guard.look(step, torch.tensor(1.0), guard.clip(torch.inf))
    with torch.no_grad():
        model.bias.fill_(torch.inf)
    with pytest.raises(NotFiniteError, match="the weights bias") as error:
        guard.check(weights=True)
    assert error.value.step == -1, "now"


@pytest.mark.parametrize("skip", [False, True])
def test_a_step_asks_the_device_for_no_value(monkeypatch, skip):
    """What would make the host wait for a GPU: any tensor that becomes a number of Python's."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    guard = Guard(model, torch.device("cpu"), skip, waits=True)

    def waits(*_):
        raise AssertionError("the host would wait here")

    for factor in (1.0, torch.nan, 1.0):
        loss = factor * model(torch.rand(4, 2)).square().sum()
        with monkeypatch.context() as patch:
            for name in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "nonzero"):
                patch.setattr(torch.Tensor, name, waits)
            guard.remember([], optimizer)
            optimizer.zero_grad()
            loss.backward()
            norm = guard.clip(1.0)
            guard.look(1, loss, norm)
            optimizer.step()
            guard.settle([], optimizer)
    assert int(guard.skipped) == (1 if skip else 2)  # without it, the next step is bad, too
    assert bool(model[0].weight.isfinite().all()) == skip
