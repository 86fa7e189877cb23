"""Trainings on one process and on two, and what is compared between them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_cases import last_state, numbers
from torch import nn

from dyart.boundary.search import closest_boundary_points
from dyart.data import load
from dyart.data.loader import as_tensors
from dyart.data.ranks import Team
from dyart.evaluation.evaluate import evaluate
from dyart.evaluation.result import Evaluation
from dyart.recipes import Config, dump
from dyart.recipes.load import check, merge

HERE = Path(__file__).parent
STEPS = 3  # of an epoch
BASE = {
    "seed": 5,
    "data": {"name": "fashion-mini", "limit": 120, "crop": 2, "flip": True},
    "model": {"name": "ranks_networks:grouped"},
    "optim": {"lr": 0.05, "weight_decay": 0.001, "clip": 1.0},
    "train": {"epochs": 7, "log_every": 5, "checkpoint_every": 99, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 1, "every": 7, "radii": [0.05]},
}
# A batch of an odd number: two processes have 19 and 20 of it.
BATCH = {"train": {"batch_size": 39}}
COMMAND = ["margins", "--model", "cnn", "--data", "fashion-mini", "--count", "60", "--batch-size", "4", "--steps", "4"]
BURNT_IN = {"train": {"burn_in": 3, "epochs": 4}}


def make(out: Path, method: dict, *more: dict) -> Config:
    """Return a configuration; ``more`` are trees of keys, e.g. ``{"train": {"accumulate": 3}}``."""
    tree = merge(merge(BASE, BATCH), {"method": method, "out": str(out)})
    for keys in more:
        tree = merge(tree, keys)
    return check(tree)


def together(trainings: list[tuple[Config, bool]], folder: Path, count: int = 2) -> list[dict]:
    """Train configurations (and whether each is resumed), then measure, on so many processes; return what each says."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, (config, resume) in enumerate(trainings):
        (folder / f"{number}.yaml").write_text(dump(config), encoding="utf-8")
        listed.append([str(folder / f"{number}.yaml"), resume])
    command = [*COMMAND, "--weights", str(folder / "weights.pt"), "--out", str(folder / "command.csv")]
    jobs = {"trainings": listed, "measured": str(folder / "measured"), "command": command}
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    printed = finish(started([sys.executable, str(HERE / "ranks_worker.py"), str(folder / "jobs.json")], count))
    said = [json.loads((folder / f"said-{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]
    return [words | {"printed": text} for words, text in zip(said, printed, strict=True)]


def measured(folder: Path, team: Team) -> Evaluation:
    """Evaluate a network, and search its margins, with or without others; the records are in the folder."""
    data = load("fashion-mini")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).eval()
    labels = model(torch.from_numpy(np.array(data.test.images[:30])).float() / 255).argmax(dim=1)
    labels[::4] = data.test.labels[0]
    found = evaluate(
        model,
        data.test.images[:30],
        labels,
        [0.01, 0.03],
        "pgd",
        batch_size=4,
        folder=folder,
        preflight=False,
        team=team,
    )
    inputs, _ = as_tensors(data.test, slice(0, 30), torch.device("cpu"))
    points = closest_boundary_points(
        model, inputs, labels, steps=5, restarts=3, rivals=2, batch_size=7, divide=team.do if team.count > 1 else None
    )
    if team.rank == 0:
        points.to_csv(folder / "margins.csv")
    return found


def started(command: list[str], count: int) -> list[subprocess.Popen]:
    """Start processes as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own = ({"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "test"} for rank in range(count))
    return [beside(command, world | mine) for mine in own]


def beside(command: list[str], more: dict | None = None) -> subprocess.Popen:
    """Start a process that finds the tests' networks; its output is one text."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    env |= {key: str(value) for key, value in (more or {}).items()}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(processes: list[subprocess.Popen], seconds: float = 300) -> list[str]:
    """Return what processes print; if one fails, or hangs, end them all and fail with that."""
    try:
        said = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
    return said


def farthest(one: Path, other: Path) -> float:
    """Return the largest difference between the last weights, averages and momenta of two runs."""
    first, second = last_state(one), last_state(other)
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def assert_alike(one: Path, other: Path, within: float = 1e-6) -> None:
    """Assert that two runs ended with the same weights, to rounding, and said the same on the way."""
    assert farthest(one, other) < within
    lines, others = numbers(one), numbers(other)
    assert [line.keys() for line in lines] == [line.keys() for line in others]
    for line, beside_it in zip(lines, others, strict=True):
        for name, value in line.items():
            if isinstance(value, float):
                assert beside_it[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
            else:
                assert value == beside_it[name], name
