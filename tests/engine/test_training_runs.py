"""A run's folder: how it begins, what it holds, what is refused."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch
from engine_cases import STEPS, make_config, numbers
from torch import nn

import dyart
from dyart.cli import main
from dyart.data import DataError, load
from dyart.engine import environment
from dyart.engine import run as engine_run
from dyart.engine.callbacks import Callback
from dyart.engine.checkpoint import CheckpointError
from dyart.engine.fit import Training, TrainingError
from dyart.engine.metrics import Meter
from dyart.engine.run import prepare, train
from dyart.engine.stored import RunError, averaged_weights, read_config


def test_what_a_run_holds(tmp_path):
    folder = tmp_path / "a/b/run"
    config = make_config(folder)
    training = train(config)
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
    }
    assert read_config(folder) == training.config == config
    found = json.loads((folder / "environment.json").read_text())
    assert (found["seed"], found["device"], found["threads"]) == (3, "cpu", torch.get_num_threads())
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["versions"]["dyart"]
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])


def test_the_commit_of_the_source_tree(tmp_path):
    tree = Path(dyart.__file__).parent
    command = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    commit = environment.environment(make_config(tmp_path), prepare(make_config()).fabric)["commit"]
    if asked.returncode or "site-packages" in tree.parts:
        assert commit is None
    else:
        assert commit.removesuffix("-dirty") == asked.stdout.strip()


def test_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert environment.commit() is None


def test_a_folder_with_a_run_is_refused(tmp_path):
    train(make_config(tmp_path))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=rf"{tmp_path} holds a run already: --resume .*--out"):
        train(make_config(tmp_path))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_run_is_not_resumed_to_fewer_epochs_than_it_has(tmp_path):
    train(make_config(tmp_path, train_epochs=3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(RunError, match=r"has trained 3 epochs already, and 2 are asked for .* ask for more"):
        train(make_config(tmp_path, train_epochs=2), resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert train(make_config(tmp_path, train_epochs=3), resume=True).taken == 0
    assert train(make_config(tmp_path, train_epochs=4), resume=True).taken > 0


def test_epochs_are_compared_anew_where_the_attack_is_another(tmp_path, capsys):
    """Any accuracy at a smaller radius would be better than those before, and none at a larger one."""
    train(make_config(tmp_path, train_epochs=2, eval_radius=1e-4))
    capsys.readouterr()
    training = train(make_config(tmp_path, train_epochs=3, eval_radius=0.3), resume=True)
    assert training.best_epoch == 3
    assert "eval.radius changed: epoch" in capsys.readouterr().out
    again = train(make_config(tmp_path, train_epochs=4, eval_radius=0.3, optim_lr=0.01), resume=True)
    assert again.best_epoch in (3, 4)
    assert "changed: epoch" not in capsys.readouterr().out
    done = train(make_config(tmp_path, train_epochs=4, eval_radius=0.2, optim_lr=0.01), resume=True)
    assert done.best_epoch == again.best_epoch, "no epoch is left that could be better"


def test_a_set_without_a_hold_out_trains_and_its_last_epoch_counts(tmp_path, capsys):
    whole = load("fashion-mini")
    data = replace(whole, holdout=whole.holdout[:0])
    method = {"name": "dyart", "steps": 2}
    config = make_config(tmp_path, method, train_epochs=2, train_burn_in=1, eval_train_examples=5)
    training = train(config, data=data)
    assert "no epoch is validated, and the last one counts" in capsys.readouterr().out
    assert training.best_epoch == -1
    records = [record for record in training.history if record["kind"] == "epoch"]
    assert not any("val_clean" in record for record in records)
    assert all("train_clean" in record for record in records)
    last = averaged_weights(tmp_path, "last")
    assert all(torch.equal(last[name], tensor) for name, tensor in averaged_weights(tmp_path).items())


def test_a_burn_in_by_adversarial_training_is_one_at_the_radius_of_the_validation(tmp_path):
    settings = {"eval_radius": 0.1, "optim_lr": 0.05, "train_epochs": 1}
    at = {"name": "at", "radius": 0.1, "step_size": 0.025, "steps": 10}
    alone = train(make_config(tmp_path / "at", at, optim_schedule="constant", **settings))
    settings |= {"method": {"name": "dyart", "steps": 2}, "train_burn_in": 1}
    both = train(make_config(tmp_path / "both", train_burn_in_method="at", **settings))
    assert [record["phase"] for record in both.history] == ["burn-in", "train"]
    same = ("loss", "adversarial_loss", "val_clean", "val_robust")
    assert [both.history[0][key] for key in same] == [alone.history[0][key] for key in same]
    with pytest.raises(RunError, match=r"train\.burn_in_method"):
        train(make_config(tmp_path / "both", **settings), resume=True)


def test_a_burn_in_that_is_missing_is_told_by_a_training_and_not_by_what_prepares_one(tmp_path, capsys):
    words, method = "begins with an untrained network", {"name": "dyart", "steps": 2}
    config = make_config(tmp_path, method=method, train_epochs=1, train_burn_in=0)
    prepare(config)
    assert words not in capsys.readouterr().out
    train(config)
    assert words in capsys.readouterr().out
    train(make_config(tmp_path, method=method, train_epochs=2, train_burn_in=0), resume=True)
    assert words not in capsys.readouterr().out


def test_nothing_to_resume(tmp_path):
    with pytest.raises(RunError, match=f"nothing to resume in {tmp_path}"):
        train(make_config(tmp_path), resume=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"data_name": "cifar10"}, DataError, "dyart data get cifar10"),
        ({"data_name": "nowhere/at/all.npz"}, DataError, "nowhere"),
        ({"data_limit": 20}, ValueError, "batch size is 32, and there are 20 training images"),
        ({"model_name": "no-such-network"}, ValueError, "no-such-network"),
        ({"model_name": "engine_networks:missing"}, RunError, "missing"),
        ({"model_name": "engine_networks:frozen"}, RunError, "engine_networks:frozen has no parameter to train"),
        ({"model_name": "engine_networks:bare"}, RunError, "engine_networks:bare has no parameter to train"),
        (
            {"model_name": "engine_networks:scripted"},
            RunError,
            "TorchScript in it, which can be measured, not trained",
        ),
        ({"train_device": "tpu"}, ValueError, "unknown device 'tpu'"),
        ({"train_device": "cpu:1"}, ValueError, "device 'cpu:1', but processors have no numbers: use cpu"),
        ({"train_burn_in_from": "nowhere"}, RunError, "nowhere is neither a run with checkpoints nor a checkpoint"),
    ],
)
def test_a_start_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, settings, error, words):
    monkeypatch.setenv("DYART_DATA", str(tmp_path / "data"))
    with pytest.raises(error, match=words):
        train(make_config(tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()
    train(make_config(tmp_path / "run", train_epochs=1))


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=rf"cannot (read|write to) {tmp_path}/file/run.*--out"):
        train(make_config(tmp_path / "file/run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_without_permission(tmp_path, mode):
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(mode)
    try:
        with pytest.raises(RunError, match=r"cannot (read|write to) .*--out"):
            train(make_config(tmp_path / "closed/run"))
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_permission_that_is_missing(tmp_path, monkeypatch):
    """The same for root, whom no folder refuses."""

    def refused(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    for name in ("is_file", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(engine_run, "load", lambda *_: None)
            patch.setattr(engine_run, "prepare", lambda *_: None)
            patch.setattr(Path, name, refused)
            with pytest.raises(RunError, match=f"{tmp_path}/run: Permission denied; choose another folder with --out"):
                train(make_config(tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("is_file", "cannot read {}: Read-only file system; make it readable"),
        ("open", "cannot write to {}: Read-only file system; make it writable, or copy the run and resume the copy"),
    ],
)
def test_a_run_that_cannot_be_written_is_not_resumed_elsewhere(tmp_path, monkeypatch, name, words):
    train(make_config(tmp_path / "run", train_epochs=1))
    usual = getattr(Path, name)

    def refused(self, *arguments, **named):
        if self.name in (".lock", "config.yaml"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return usual(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, refused)
        with pytest.raises(RunError) as caught:
            train(make_config(tmp_path / "run", train_epochs=2), resume=True)
    assert str(caught.value) == words.format(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "copy")
    assert train(make_config(tmp_path / "copy", train_epochs=2), resume=True).finished


@pytest.fixture(scope="module")
def natural(tmp_path_factory):
    folder = tmp_path_factory.mktemp("natural") / "run"
    train(make_config(folder, train_epochs=2))
    return folder


@pytest.mark.parametrize("place", ["run", "checkpoint", "file", "wrapped"])
def test_burn_in_from(tmp_path, natural, place):
    source = weighed = natural / "checkpoints/epoch-0002" if place == "checkpoint" else natural
    if place in ("file", "wrapped"):
        source, prefix = tmp_path / "w.pt", "module." if place == "wrapped" else ""
        torch.save({prefix + name: value for name, value in averaged_weights(natural).items()}, source)
    config = make_config(tmp_path / "run", "at", train_burn_in_from=str(source), optim_lr=1e-12, train_epochs=1)
    training = train(config)
    weights = averaged_weights(weighed)
    for name, value in training.model.state_dict().items():
        torch.testing.assert_close(value, weights[name])
    assert training.history[0]["phase"] == "train"
    fresh = prepare(make_config()).model.state_dict()
    assert not all(torch.equal(fresh[name], value) for name, value in weights.items())


def test_burn_in_from_is_there_after_a_crash_before_the_first_checkpoint(tmp_path, natural):
    config = make_config(tmp_path / "run", "at", train_burn_in_from=str(natural))
    train(config)

    class Crash(Callback):
        def on_step(self, training):
            raise KeyError

    config = make_config(tmp_path / "again", "at", train_burn_in_from=str(natural))
    with pytest.raises(KeyError):
        train(config, callbacks=[Crash()])
    train(config, resume=True)
    assert numbers(tmp_path / "again") == numbers(tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data_name": "moons"}, r"linear\.weight is 3x128 in the file and 2x128 in the network"),
        ({"model_name": "engine_networks:dropout"}, "entries are missing"),
    ],
)
def test_burn_in_from_another_network(tmp_path, natural, settings, words):
    with pytest.raises(RunError, match=f"the weights in {natural} do not fit the network: .*{words}"):
        train(make_config(tmp_path / "run", train_burn_in_from=str(natural), **settings))
    assert not (tmp_path / "run").exists()


def test_burn_in_from_a_damaged_checkpoint(tmp_path, natural):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (natural / "checkpoints/epoch-0002").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "averaged.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"averaged\.safetensors is damaged"):
        train(make_config(tmp_path / "run", train_burn_in_from=str(copy)))


class Moments(Callback):
    """Notes what it is told."""

    def __init__(self, fails=False):
        self.seen, self.fails = [], fails

    def on_start(self, training):
        self.seen.append("start")
        if self.fails:
            raise ImportError("pip install something")

    def on_step(self, training):
        self.seen.append(training.steps_done)

    def on_record(self, training, record):
        self.seen.append(record["kind"])

    def on_end(self, training):
        self.seen.append("end")


def test_the_moments_of_a_training():
    listener = Moments()
    prepare(make_config(train_epochs=2), callbacks=[listener]).run()
    assert listener.seen == ["start", 1, 2, 3, "epoch", 4, "step", 5, 6, "epoch", "end"]
    assert 2 * STEPS == 6


def test_a_callback_that_cannot_start_ends_those_that_did():
    first, second, third = Moments(), Moments(fails=True), Moments()
    with pytest.raises(ImportError):
        prepare(make_config(), callbacks=[first, second, third]).run()
    assert (first.seen, second.seen, third.seen) == (["start", "end"], ["start"], [])


def test_data_that_is_loaded_already(tmp_path):
    train(make_config(tmp_path / "one"))
    train(make_config(tmp_path / "two"), data=load("three-blobs"))
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_errors_are_one_line_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DYART_DATA", str(tmp_path / "data"))
    words = ["--train.device", "cpu", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", "cifar10-resnet18-at", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dyart train: ")
    assert "dyart data get cifar10" in said
    assert main(["train", "fashion-mini-cnn-dyart", *words, "--train.batch_size", "100000"]) == 2
    assert "batch" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_means_leave_out_what_is_not_finite():
    meter = Meter()
    assert meter.means() == {}
    for a, b in ((1.0, float("nan")), (2.0, 5.0), (float("inf"), float("nan"))):
        meter.add({"a": torch.tensor(a), "b": torch.tensor(b), "never": torch.tensor(float("nan"))})
    assert meter.means() == {"a": 1.5, "b": 5.0, "never": None}
    meter.add({"b": torch.tensor(7.0), "rare": torch.tensor(1.0)})
    assert meter.means() == {"a": 1.5, "b": 6.0, "never": None, "rare": 1.0}
    again = Meter()
    again.load_state_dict(meter.state_dict(), torch.device("cpu"))
    assert again.means() == meter.means()


def test_a_method_that_logs_now_this_now_that(tmp_path):
    train(make_config(tmp_path, {"name": "engine_networks:Scripted", "changing": True}, train_epochs=1))
    assert {"value1", "value2", "value3"} <= numbers(tmp_path)[-1].keys()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_loss_of_one_element_is_a_number(tmp_path, parts):
    train(make_config(tmp_path, {"name": "engine_networks:OneElement"}, train_epochs=1, train_accumulate=parts))
    record = numbers(tmp_path)[-1]
    assert record["value"] == record["loss"]


class RoomFor(nn.Module):
    """A network on a device with room for so many examples in a training step."""

    def __init__(self, room, features, classes):
        super().__init__()
        self.layer, self.room = nn.Linear(features, classes), room

    def forward(self, inputs):
        if self.training and len(inputs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.layer(inputs)


def test_a_step_that_does_not_fit_says_what_to_do(tmp_path):
    training = prepare(make_config(tmp_path, "at"), tmp_path)
    training = Training(
        training.config, training.data, RoomFor(16, 2, 3), training.method, training.fabric, training.loader, tmp_path
    )
    with pytest.raises(TrainingError, match=r"out of memory in step 1; no checkpoint.*train\.accumulate 2"):
        training.run()


@pytest.mark.parametrize(("size", "parts", "more"), [(32, 1, 2), (32, 2, 4), (48, 4, 8), (45, 1, 3), (7, 1, 7)])
def test_more_parts_divide_the_batch(size, parts, more):
    training = prepare(make_config(train_batch_size=size, train_accumulate=parts))
    assert training._more_parts() == more


def test_a_run_goes_on_with_its_batches_in_parts(tmp_path):
    train(make_config(tmp_path, train_epochs=1))
    training = train(make_config(tmp_path, train_epochs=2, train_accumulate=2), resume=True)
    assert training.stepper.accumulate == 2
    assert training.taken > 0
