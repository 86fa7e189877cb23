"""A loss or a gradient that is not finite."""

import pytest
import torch
from engine_cases import STEPS, SignalAt, last_checkpoint, last_state, make_config, numbers

from dyart.data import load
from dyart.engine.fit import TrainingError
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
    training.waits = device == "waits"
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
    with pytest.raises(TrainingError, match=r"step 1 \(epoch 1\) is not finite; no checkpoint was written yet"):
        train(make_config(tmp_path, breaking(1)))
    assert not (tmp_path / "checkpoints").exists()


def test_a_signal_saves_no_broken_weights(tmp_path):
    """As on a GPU: the step after the broken one brings the signal, before anybody has looked at the loss."""
    training = prepare(
        make_config(tmp_path, breaking(STEPS + 1), train_log_every=1000), tmp_path, [SignalAt(STEPS + 2)]
    )
    training.waits = True
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
    with pytest.raises(TrainingError, match=r"epoch 1\b.*images that are not finite"):
        train(make_config(tmp_path), data=data)
