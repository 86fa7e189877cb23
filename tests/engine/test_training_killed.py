"""Processes that are killed in mid-run."""

import os
import signal
import subprocess
import sys
import time

import pytest
from engine_cases import assert_same_run, last_checkpoint, make_config, numbers

from dyart.cli import main
from dyart.engine.run import train
from dyart.recipes import dump

EPOCHS, STEPS = 8, 30
SETTINGS = {"method": "at", "data_limit": 960, "train_epochs": EPOCHS, "train_burn_in": 2, "train_log_every": 1}
ENTRY = "import sys; from dyart.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(make_config(folder, **SETTINGS))
    return folder


def begun(folder):
    """Begin the run in another process; return it, stopped in the middle of an epoch, with some epochs done."""
    recipe = folder.with_suffix(".yaml")
    recipe.write_text(dump(make_config(folder, **SETTINGS)))
    command = [sys.executable, "-c", ENTRY, "train", str(recipe), "--quiet"]
    process = subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
        if not (folder / "metrics.jsonl").is_file():
            continue
        process.send_signal(signal.SIGSTOP)
        records = numbers(folder)
        epochs = [record for record in records if record["kind"] == "epoch"]
        if len(epochs) >= 3 and records[-1]["kind"] == "step" and records[-1]["step"] % STEPS not in (0, STEPS - 1):
            return process
        process.send_signal(signal.SIGCONT)
    process.kill()
    pytest.fail(f"the run was never seen in mid-run: {process.communicate()}")


def assert_mid_run(process, folder):
    assert process.poll() is None  # alive
    records = numbers(folder)
    done = sum(record["kind"] == "epoch" for record in records)
    assert 0 < done < EPOCHS + 2
    assert records[-1]["step"] > done * STEPS


def test_kill_and_resume(tmp_path, whole, capsys):
    folder = tmp_path / "run"
    process = begun(folder)
    assert_mid_run(process, folder)
    process.kill()
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert last_checkpoint(folder).name.startswith("epoch-")
    assert main(["train", str(folder), "--resume", "--quiet"]) == 0
    assert_same_run(folder, whole)


def test_terminate_and_resume(tmp_path, whole):
    folder = tmp_path / "run"
    process = begun(folder)
    assert_mid_run(process, folder)
    process.terminate()
    process.send_signal(signal.SIGCONT)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 2
    name = last_checkpoint(folder).name
    assert name.startswith("step-")
    assert words.startswith("dyart train: stopped by SIGTERM after step ")
    assert name in words
    assert "--resume" in words
    assert int(name.removeprefix("step-")) % STEPS != 0
    assert main(["train", str(folder), "--resume", "--quiet"]) == 0
    assert_same_run(folder, whole)
