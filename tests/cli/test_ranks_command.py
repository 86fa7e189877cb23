"""``--devices`` on the command line: processes that Fabric starts work together, speak once and end together."""

import subprocess
import sys
from pathlib import Path

import pytest

from dyart.cli import main
from dyart.data import ranks
from dyart.data.ranks import Team
from dyart.engine.fabric import make_fabric
from dyart.engine.process_end import WATCHED, ending

NETWORKS = Path(__file__).parents[1] / "engine"


def dyart(*words: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dyart.cli", *words]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(NETWORKS), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_error_of_one_process_ends_all_and_is_told_once(tmp_path):
    recipe = tmp_path / "fails.yaml"
    recipe.write_text(
        "base: fashion-mini-cnn-at\n"
        "method: {name: 'ranks_networks:Fails', rank: 1, step: 2}\n"
        "data: {limit: 60}\ntrain: {batch_size: 20, epochs: 3, device: cpu, loggers: []}\n"
    )
    done = dyart("train", "fails.yaml", "--devices", "2", "--out", "run", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("bad") == 1
    assert "process 1 of 2 (from 0) failed: the batch of process 1 is bad" in done.stderr
    assert "Traceback" not in done.stderr


def test_fabric_does_not_kill_a_process_that_is_about_to_say_why_it_ends():
    watched = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])]
    WATCHED.append(watched)
    child = watched[0]
    with pytest.raises(ValueError, match="bad"), ending():
        raise ValueError("bad")
    assert watched == []
    assert WATCHED == []
    child.wait(60)


def test_a_sharded_network_is_refused_with_a_reason(tmp_path, capsys):
    words = [
        "train",
        "fashion-mini-cnn-at",
        "--train.strategy",
        "fsdp",
        "--devices",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 2
    assert "frozen view of the network on the same storage" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_named_device_is_not_several(monkeypatch):
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        make_fabric("tpu", devices=2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"device 'cuda:1' is one, 2 are asked for"):
        make_fabric("cuda:1", devices=2)


def test_torchrun_knows_how_many_processes_there_are(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_torchelastic_launched", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="torchrun started 6 processes, 4 x 1 are asked for"):
        make_fabric("cpu", devices=4)


def test_one_process_exchanges_nothing(monkeypatch):
    monkeypatch.setattr(ranks, "dist", None)  # whoever looked there would fail
    assert Team().do([lambda: 1, lambda: 2]) == [1, 2]
    assert Team().every("word") == ["word"]
