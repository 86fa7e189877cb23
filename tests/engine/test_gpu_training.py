"""Training on a GPU: resuming, and what the captured step does with bad batches. Skipped where there is none."""

import pytest
import torch
from engine_cases import CrashAt, CrashError, assert_same_run, last_state, make_config

from dyart.data import load
from dyart.engine.capture import Captured
from dyart.engine.run import prepare, train
from dyart.engine.steps import Stepper

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # compilers and Fabric have their own
]
METHODS = {
    "at": {"name": "at", "steps": 3, "radius": 0.1, "step_size": 0.05},
    "at-awp": {"name": "at-awp", "steps": 3, "radius": 0.1, "step_size": 0.05, "awp_warmup": 0.3},
    "dyart": {"name": "dyart", "steps": 5, "r0": 0.2, "lam": 20.0},
}
SETTINGS = {
    "data": {"name": "fashion-mini", "limit": 640, "crop": 2, "flip": True},
    "model": {"name": "cnn"},
    "optim": {"lr": 0.05, "clip": 1.0},
    "train": {"epochs": 3, "burn_in": 1, "batch_size": 64, "log_every": 1, "device": "cuda"},
    "eval": {"radius": 0.1, "steps": 5},
}
EPOCH = 10
# Relative distance of all weights after a resumed epoch, compiled, in bf16. It was 0 on an H200 (torch 2.11), but
# nothing promises it: libraries choose their sums' order by themselves.
TOLERANCE = 1e-3


def configured(out, method, **train_settings):
    flat = {f"{section}_{key}": value for section, keys in SETTINGS.items() for key, value in keys.items()}
    flat |= {f"train_{key}": value for key, value in train_settings.items()}
    return make_config(out, METHODS[method], **flat)


def distance(one, other) -> float:
    """Of all weights, relative."""
    names = [name for name in one if name.startswith("model.") and one[name].is_floating_point()]
    first, second = (torch.cat([state[name].flatten().double() for name in names]) for state in (one, other))
    return float((first - second).norm() / first.norm())


@pytest.mark.parametrize("method", list(METHODS))
def test_a_deterministic_run_is_resumed_to_the_bit(tmp_path, method):
    """Uncompiled; killed in the burn-in, and in the middle of an epoch after it."""
    train(configured(tmp_path / "whole", method, deterministic=True))
    for step in (EPOCH // 2, 2 * EPOCH + 3):
        out = tmp_path / f"killed-{step}"
        config = configured(out, method, deterministic=True)
        with pytest.raises(CrashError):
            train(config, callbacks=[CrashAt(step)])
        train(config, resume=True)
        assert_same_run(tmp_path / "whole", out)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_compiled_run_is_resumed_within_a_tolerance(tmp_path, method):
    """Nobody promises the order of sums there, from which two runs may differ as well."""
    settings = {"compile": "on", "precision": "bf16", "epochs": 2}
    train(configured(tmp_path / "one", method, **settings))
    train(configured(tmp_path / "other", method, **settings))
    config = configured(tmp_path / "killed", method, **settings)
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(2 * EPOCH + 3)])
    train(config, resume=True)
    one, other, killed = (last_state(tmp_path / name) for name in ("one", "other", "killed"))
    print(f"\n{method}: two runs differ by {distance(one, other):.2e}, the resumed one by {distance(one, killed):.2e}")
    assert distance(one, killed) < TOLERANCE


@pytest.mark.parametrize("method", list(METHODS))
def test_a_captured_step_has_the_gradients_of_another(tmp_path, method):
    training = prepare(configured(tmp_path, method, compile="on", burn_in=0), tmp_path)
    recorded, plain = training.stepper, Stepper(training.fabric, training.views, training.method)
    training.method.compiled = True  # of both
    recorded.advance(0.99)
    batches = list(training.loader.epoch(0))
    for batch in batches[:4]:
        buffers = {name: buffer.clone() for name, buffer in training.model.named_buffers()}
        taken = []
        for stepper in (recorded, plain):
            training.model.load_state_dict(buffers, strict=False)
            stepper.gradients(batch)
            taken.append(torch.cat([parameter.grad.flatten() for parameter in training.model.parameters()]))
        assert float((taken[0] - taken[1]).norm() / taken[1].norm()) < 1e-2
    assert recorded.work.graph is not None, "the step was not captured"


@pytest.mark.parametrize("method", list(METHODS))
def test_a_captured_step_leaves_a_bad_batch_out(tmp_path, method):
    data = load("three-blobs")
    data.train.images[data.fit[5]] = torch.nan
    settings = {"train_skip_bad_batches": True, "train_epochs": 4, "train_device": "cuda", "train_compile": "on"}
    config = make_config(tmp_path, METHODS[method], **settings)
    training = prepare(config, tmp_path, data=data)
    training.run()
    work = training.stepper.work
    assert isinstance(work, Captured)
    assert work.graph is not None, "the step was not captured"
    assert int(training.guard.skipped) == 4, "one batch of every epoch"
    assert all(bool(tensor.isfinite().all()) for tensor in last_state(tmp_path).values())
