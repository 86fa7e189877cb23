"""``dyart margins``: which examples, which settings, and what is refused before a search."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dyart.cli import main
from dyart.data import load

SOURCE = "import torch\ndef net(classes, shape):\n    return torch.nn.Linear(shape[0], classes)\n"
IMAGES = (
    "import torch\ndef net(classes, shape):\n"
    "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))\n"
)


@pytest.fixture
def linear(tmp_path, monkeypatch):
    """Words for the margins of a linear network in the working directory, whose answer is known."""
    (tmp_path / "margins_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.tensor([[-2.0, 1.0], [2.0, -1.0]]), "bias": torch.tensor([0.5, -0.5])}, "w.pt")
    return ["margins", "--model", "margins_mine:net", "--weights", "w.pt", "--data", "moons", "--device", "cpu"]


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows(path="margins.csv"):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_margins_are_right_and_named_by_the_places_of_the_examples(capsys, linear):
    status, out, err = run(capsys, *linear, "--count", "50", "--seed", "3")
    assert status == 0, err
    data = load("moons")
    table = rows()
    places = [int(row["index"]) for row in table]
    assert len(set(places)) == 50
    assert max(places) > 60, "not the first fifty"
    assert [int(row["label"]) for row in table] == data.test.labels[places].tolist()
    for row, x in zip(table, data.test.images[places], strict=True):
        phi = abs((-4 * x[0] + 2 * x[1] + 1.0).item())
        if row["found"] == "1" and row["verdict"] == "locally optimal":
            assert float(row["margin"]) == pytest.approx(phi / 6, rel=0.02), "L-inf distance of a line inside the box"
    nearest = min((row for row in table if row["found"] == "1"), key=lambda row: float(row["margin"]))
    assert f"example {nearest['index']}," in out


def test_the_json_beside_it_says_how_the_numbers_were_made(capsys, linear):
    words = ["--count", "40", "--radii", "0.02,8/255", "--steps", "20", "--norm", "linf", "--model-args", "classes=2"]
    status, _, err = run(capsys, *linear, *words, "--out", "here.csv")
    assert status == 0, err
    record = json.loads(Path("here.json").read_text())
    assert record["settings"] == {
        "model": "margins_mine:net",
        "model_args": {"classes": 2},
        "weights": "w.pt",
        "count": 40,
        "seed": 0,
        "device": "cpu",
        "norm": "linf",
        "boundary": "exact",
        "steps": 20,
        "restarts": 1,
        "solver": "fast",
        "batch_size": 256,
    }
    assert record["classes"] == list(load("moons").classes)
    assert record["data"] == "moons"
    assert {"dyart", "torch", "python"} <= record["versions"].keys()
    table = rows("here.csv")
    summary = record["summary"]
    assert summary["examples"] == len(table) == 40
    assert summary["found"] == sum(row["found"] == "1" for row in table)
    assert summary["accuracy"] == pytest.approx(np.mean([row["correct"] == "1" for row in table]))
    beyond = np.mean([row["inside"] == "1" and float(row["margin"]) > 8 / 255 for row in table])
    assert summary["robust"]["8/255"] == pytest.approx(beyond)
    low, high = summary["intervals"]["8/255"]
    assert low < beyond < high


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--radii", "8"], "did you mean 8/255?"),
        (["--radii", "0.1,1"], "the radius 1 is as large as the box"),
        (["--radii", "8", "--norm", "l2"], "the radius 8 is as large as the box"),
        (["--radii", "-0.1"], "positive"),
        (["--radii", "0"], "positive"),
        (["--count", "-3"], "--count"),
    ],
    ids=" ".join,
)
def test_radii_and_counts_that_cannot_be_meant_are_refused(capsys, linear, words, expected, tmp_path):
    words = [f"{words[0]}={words[1]}", *words[2:]]
    status, _, err = run(capsys, *linear, *words)
    assert status == 2
    assert expected in err
    assert not (tmp_path / "margins.csv").exists()


def test_a_large_l2_radius_inside_the_box_is_accepted(capsys, linear):
    assert run(capsys, *linear, "--norm", "l2", "--radii", "1.2", "--count", "20", "--steps", "5")[0] == 0


def test_examples_of_a_set_stored_class_by_class_are_of_all_classes(capsys, tmp_path, monkeypatch):
    """The first images of a folder are all of its first class."""
    generator = np.random.RandomState(0)
    labels = np.repeat(np.arange(4), 30)
    images = generator.randint(0, 256, (120, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    (tmp_path / "margins_images.py").write_text(IMAGES)
    monkeypatch.chdir(tmp_path)
    words = ["--model", "margins_images:net", "--data", "set.npz", "--count", "20", "--steps", "3", "--device", "cpu"]
    status, _, err = run(capsys, "margins", *words)
    assert status == 0, err
    assert {row["label"] for row in rows()} == {"0", "1", "2", "3"}


def test_what_is_wrong_with_a_network_is_said_before_the_search(capsys, linear, tmp_path):
    (tmp_path / "margins_flat.py").write_text(
        "import torch\nclass Flat(torch.nn.Linear):\n"
        "    def forward(self, x):\n        return super().forward(x.round(decimals=1))\n"
        "def net():\n    return Flat(2, 2)\n"
    )
    words = ["margins", "--model", "margins_flat:net", "--data", "moons", "--device", "cpu"]
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "exactly zero for every example" in err
    assert not (tmp_path / "margins.csv").exists()


def test_every_option_has_a_help_text(capsys):
    with pytest.raises(SystemExit):
        main(["margins", "--help"])
    out = capsys.readouterr().out
    described = {line.split()[0]: line for line in out.splitlines() if line.startswith("  --")}
    assert len(described) > 15
    bare = []
    lines = out.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("  --") and "model NAME --" not in line:
            text = line.split("  ")
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            if len([part for part in text if part.strip()]) < 2 and not follows.startswith("      "):
                bare.append(line)
    assert bare == []
