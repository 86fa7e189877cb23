"""``dyart dynamics`` in a working directory with networks of one's own, and what it wrote."""

import csv
import json
from pathlib import Path

import pytest
import torch

from dyart.cli import main

SOURCE = """
import torch
from torch import nn

def net(classes, shape):
    return nn.Linear(shape[0], classes)

def frozen(classes, shape):
    return net(classes, shape).requires_grad_(False)

def normed(classes, shape):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))

def flat():
    class Flat(nn.Linear):
        def forward(self, x):
            return super().forward(x.round(decimals=1))
    return Flat(2, 2)

class Twofold(nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        return (logits, logits) if self.training else logits

def twofold(classes, shape):
    return Twofold(shape[0], classes)

def pictures(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""
WEIGHT, BIAS = torch.tensor([[-2.0, 1.0], [2.0, -1.0]]), torch.tensor([0.5, -0.5])
LINEAR = ["--model", "dynamics_mine:net", "--weights", "w.pt"]
MOONS = [*LINEAR, "--data", "moons"]


def go_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the working directory, with the networks and weights of a linear one, and return it."""
    (place / "dynamics_mine.py").write_text(SOURCE)
    monkeypatch.chdir(place)
    torch.save({"weight": WEIGHT, "bias": BIAS}, "w.pt")
    return place


def dynamics(capsys, *words: str | Path) -> tuple[int, str, str]:
    status = main(["dynamics", *map(str, words), "--steps", "10", "--device", "cpu"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def record(folder: str) -> dict:
    return json.loads(Path(folder, "dynamics.json").read_text())


def rows(folder: str) -> list[dict[str, str]]:
    with Path(folder, "dynamics.csv").open(newline="") as file:
        return list(csv.DictReader(file))
