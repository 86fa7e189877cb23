"""What is written of measured dynamics, and read back."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import small_resnet

from dyart.boundary.search import closest_boundary_points
from dyart.dynamics import files
from dyart.dynamics.shares import margin_edges
from dyart.dynamics.step import Dynamics
from dyart.dynamics.table import table


@pytest.fixture(scope="module")
def measured():
    model = small_resnet("group").eval()
    inputs = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(inputs).argmax(dim=1)
    labels[0] = (labels[0] + 1) % 4
    found = closest_boundary_points(model, inputs, labels, steps=30)
    signs = torch.tensor([1.0, -1.0]).repeat(6)
    speeds = {
        "at": torch.where(found.found, -found.margin, math.nan),
        "dyart": torch.where(found.found, signs * found.margin, math.nan),
    }
    return Dynamics(torch.arange(12) + 40, torch.arange(12) // 6, found, speeds)


@pytest.fixture
def written(measured, tmp_path):
    radius = float(measured.found.margin[measured.counted].median()) * 1.01
    settings = {"split": "train", "methods": {"at": {"settings": {"radius": 0.1}}, "dyart": {"settings": {}}}}
    summary = files.write(measured, tmp_path / "new", settings, radius, margin_edges(radius), "at")
    return tmp_path / "new", summary, radius


def test_csv_has_a_line_per_example_with_a_point(measured, written):
    with (written[0] / "dynamics.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    names = ["index", "label", "rival", "margin", "alignment", "optimal", "speed_at", "speed_dyart", "batch"]
    assert list(lines[0]) == names
    assert len(lines) == int(measured.found.found.sum()) == 11
    assert [int(line["index"]) for line in lines] == list(range(41, 52))  # 40 is classified wrongly
    assert [float(line["speed_at"]) for line in lines] == [-float(line["margin"]) for line in lines]


def test_json_has_shares_intervals_and_tests(measured, written):
    folder, summary, radius = written
    stored = json.loads((folder / "dynamics.json").read_text())
    assert stored == summary
    assert stored["split"] == "train"
    assert stored["counts"]["examples"] == 12
    assert stored["counts"]["wrong"] == 1
    below = int((measured.counted & (measured.found.margin < radius)).sum())
    at, dyart = stored["methods"]["at"], stored["methods"]["dyart"]
    assert at["below_radius"]["negative"] == at["below_radius"]["count"] == below
    assert at["settings"] == {"radius": 0.1}
    assert sum(part["count"] for part in dyart["intervals"]) == stored["counts"]["counted"]
    assert dyart["intervals"][-1]["to"] is None
    (test,) = stored["tests"]
    assert (test["first"], test["second"], test["only_second"]) == ("at", "dyart", 0)
    assert test["only_first"] == below - dyart["below_radius"]["negative"]
    assert test["p_value"] == pytest.approx(min(1, 2 / 2 ** test["only_first"]))


def test_pictures_are_those_of_the_lines(measured, written):
    with np.load(written[0] / "dynamics.npz") as stored:
        assert stored["index"].tolist() == list(range(41, 52))
        assert stored["inputs"].dtype == stored["points"].dtype == np.uint8
        assert stored["inputs"].shape == (11, 3, 8, 8)
        far = np.abs(stored["inputs"].astype(int) - stored["points"]).max(axis=(1, 2, 3)) / 255
    np.testing.assert_allclose(far, measured.found.margin[1:].numpy(), atol=1.5 / 255)


def test_steps_are_kept_where_they_are_smaller_than_a_grey_level(measured, tmp_path):
    near = replace(measured.found, points=measured.found.inputs + 1e-3 * measured.found.displacement)
    files.write(replace(measured, found=near), tmp_path, {}, 0.1, margin_edges(0.1), "at")
    with np.load(tmp_path / "dynamics.npz") as stored:
        assert (stored["inputs"] == stored["points"]).mean() > 0.99
        assert stored["steps"].dtype == np.int8
        steps = stored["steps"] * stored["scale"][:, None, None, None]
    expected = 1e-3 * measured.found.displacement[1:].numpy()
    allowed = np.abs(expected).max(axis=(1, 2, 3), keepdims=True) / 254
    assert (np.abs(steps - expected) <= 1.01 * allowed + 1e-7).all()


def test_an_example_on_the_boundary_has_no_step(measured, tmp_path):
    there = replace(measured.found, points=measured.found.inputs.clone())
    files.write(replace(measured, found=there), tmp_path, {}, 0.1, margin_edges(0.1), "at")
    with np.load(tmp_path / "dynamics.npz") as stored:
        assert not stored["steps"].any()
        assert np.isfinite(stored["scale"]).all()


def test_the_csv_has_a_line_for_every_example_with_a_point(measured, written):
    with open(written[0] / "dynamics.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    np.testing.assert_allclose([float(line["margin"]) for line in lines], measured.found.margin[1:].numpy(), rtol=1e-6)
    assert [name for name in lines[0] if name.startswith("speed_")] == ["speed_at", "speed_dyart"]
    assert [bool(int(line["optimal"])) for line in lines] == measured.counted[1:].tolist()


def test_the_table_says_what_counts(written):
    text = table(written[1])
    assert "12 examples: 1 classified wrongly" in text
    assert "100.0 %" in text
    assert "dyart against at, below the radius: -" in text
    assert "exact McNemar" in text


def test_vectors_have_no_pictures(tmp_path):
    model = torch.nn.Linear(2, 2)
    found = closest_boundary_points(model, torch.rand(4, 2), norm="l2")
    nothing = Dynamics(torch.arange(4), torch.zeros(4, dtype=torch.long), found, {"at": torch.ones(4)})
    summary = files.write(nothing, tmp_path, {}, 1e-9, margin_edges(1e-9), "at")
    assert not (tmp_path / "dynamics.npz").exists()
    assert summary["methods"]["at"]["below_radius"]["share"] is None
    assert "-" in table(summary)
