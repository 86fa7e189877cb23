"""Processes that are killed in mid-run: kill -9, SIGTERM, Ctrl-C."""

import os
import random
import signal
import time

import pytest
from engine_cases import assert_same_run, last_checkpoint, make_config, numbers
from processes import ended, started, stopped_when, trained
from scenes import SCENES, killed_in

from dyart.cli import main
from dyart.engine.lock import FILE as LOCK
from dyart.engine.run import train

EPOCHS, STEPS = 4, 20
SETTINGS = {"method": "at", "data_limit": 640, "train_epochs": EPOCHS, "train_burn_in": 2, "train_log_every": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(make_config(folder, **SETTINGS))
    return folder


def begun(folder):
    """Begin the run in another process; return it, stopped in the middle of an epoch, with some epochs done."""
    process = trained(make_config(folder, **SETTINGS))

    def reached(records):
        epochs = sum(record["kind"] == "epoch" for record in records)
        return epochs >= 3 and records[-1]["kind"] == "step" and records[-1]["step"] % STEPS not in (0, STEPS - 1)

    stopped_when(process, folder, reached)
    assert_mid_run(process, folder)
    return process


def assert_mid_run(process, folder):
    assert process.exitcode is None  # alive
    records = numbers(folder)
    done = sum(record["kind"] == "epoch" for record in records)
    assert 0 < done < EPOCHS + 2
    assert records[-1]["step"] > done * STEPS


def said(folder):
    return folder.with_suffix(".said").read_text()


def test_kill_and_resume(tmp_path, whole, capsys):
    folder = tmp_path / "run"
    process = begun(folder)
    process.kill()
    assert ended(process) == -signal.SIGKILL
    assert last_checkpoint(folder).name.startswith("epoch-")
    assert (folder / LOCK).exists(), "the lock's file is left, and is no obstacle"
    assert main(["train", str(folder), "--resume", "--quiet"]) == 0
    assert_same_run(folder, whole)
    assert not (folder / LOCK).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_saves(tmp_path, whole, number):
    folder = tmp_path / "run"
    process = begun(folder)
    os.kill(process.pid, number)
    os.kill(process.pid, signal.SIGCONT)
    assert ended(process) == 128 + number
    name = last_checkpoint(folder).name
    assert name.startswith("step-")
    first, second = said(folder).split("\n")[1:3]
    assert first == f"{number.name}: saving after this step; once more to stop at once, without saving"
    assert second.startswith(f"dyart train: stopped by {number.name} after step {int(name.removeprefix('step-'))};")
    assert name in second
    assert "--resume" in second
    assert int(name.removeprefix("step-")) % STEPS != 0
    assert main(["train", str(folder), "--resume", "--quiet"]) == 0
    assert_same_run(folder, whole)


@pytest.mark.parametrize(("first", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_second_ctrl_c_stops_at_once(tmp_path, first, status):
    """The step never ends: only what stops at once stops."""
    folder = tmp_path / "run"
    process = started(killed_in, "stuck", make_config(folder, **SETTINGS), tmp_path / "run.said")
    deadline = time.monotonic() + 60
    while not (tmp_path / "stuck").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, first)
    time.sleep(0.3)
    assert process.exitcode is None, "the first one waits for the step"
    os.kill(process.pid, signal.SIGINT)
    assert ended(process) == status
    assert "saving after this step" in said(folder)
    assert last_checkpoint(folder).name == "epoch-0001", "what was saved before is kept"


@pytest.mark.parametrize("scene", SCENES)
def test_killed_in(tmp_path, whole, scene):
    """In the burn-in, in the first step after it, in the validation, and at three points of saving."""
    folder = tmp_path / "run"
    process = started(killed_in, scene, make_config(folder, **SETTINGS), tmp_path / "run.said")
    assert ended(process) == -signal.SIGKILL, said(folder)
    assert (tmp_path / "killed").read_text() == scene
    train(make_config(folder, **SETTINGS), resume=True)
    assert_same_run(folder, whole)


def test_killed_at_random_moments(tmp_path, whole):
    """Again and again, in one run, which in the end is the run that was not."""
    folder, draw = tmp_path / "run", random.Random(3)
    config, kills = make_config(folder, **SETTINGS), 0
    while kills < 3:
        process = trained(config, resume=(folder / "config.yaml").exists())
        target = (kills + draw.random()) * 30 + 10

        def reached(records, target=target):
            return bool(records) and records[-1]["step"] >= target

        stopped_when(process, folder, reached)
        assert numbers(folder)[-1]["step"] < (EPOCHS + 2) * STEPS, "in mid-run"
        process.kill()
        assert ended(process) == -signal.SIGKILL
        kills += 1
    train(config, resume=True)
    assert_same_run(folder, whole)


def test_terminated_in_the_validation(tmp_path, whole):
    """It ends, the epoch is saved, and no further step is taken."""
    folder = tmp_path / "run"
    process = started(killed_in, "terminated", make_config(folder, **SETTINGS), tmp_path / "run.said")
    assert ended(process) == 2
    assert last_checkpoint(folder).name == f"step-{3 * STEPS:08d}"
    assert numbers(folder)[-1]["epoch"] == 3
    train(make_config(folder, **SETTINGS), resume=True)
    assert_same_run(folder, whole)
