"""What an evaluation leaves behind: JSON, CSV, flags, and the table for a person."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch
from evaluate_cases import Mlp, examples, short

import dyart
from dyart.evaluation.intervals import wilson
from dyart.evaluation.records import write_records
from dyart.evaluation.settings import named_radii

RADII = ["2/255", 8 / 255, "0.1"]


@pytest.fixture
def result(monkeypatch):
    short(monkeypatch)
    model = Mlp()
    inputs, labels = examples(model)
    return dyart.evaluate(model, inputs, labels, RADII, "apgd", facts={"data": "made up", "notes": ["grey"]})


def test_json_has_what_a_number_depends_on(result, tmp_path):
    result.to_json(tmp_path / "evaluation.json")
    stored = json.loads((tmp_path / "evaluation.json").read_text())
    assert stored["data"] == "made up"
    assert stored["images"] == 30
    assert stored["clean"] == result.clean_accuracy == 28 / 30
    assert list(stored["robust"]) == ["2/255", "8/255", "0.1"]
    assert stored["robust"]["8/255"] == result.robust_accuracy[8 / 255]
    assert stored["radii"]["8/255"] == 8 / 255
    assert set(stored["intervals"]) == {"clean", "2/255", "8/255", "0.1"}
    for name, share in [("clean", stored["clean"]), *stored["robust"].items()]:
        assert stored["intervals"][name] == list(wilson(round(30 * share), 30))
    assert stored["attack"] == "boundary search, PGD-20 on the margin loss, APGD-CE, APGD-T"
    assert (stored["tier"], stored["norm"], stored["settings"]["seed"], stored["strict"]) == ("apgd", "linf", 0, False)
    assert stored["settings"]["search_restarts"] == 2
    assert stored["settings"]["precision"] == "ieee"
    assert stored["versions"]["torch"]
    assert set(stored["passes"]["by_attack"]) == {"clean", "margins", "pgd", "apgd-ce", "apgd-t"}
    assert stored["passes"]["forward"] == pytest.approx(result.passes["forward"])
    assert set(stored["seconds"]) == {"all", *stored["passes"]["by_attack"]}
    assert sum(stored["inferred"].values()) > 0
    assert stored["after"]["apgd-t"] == stored["robust"]
    assert stored["notes"][0] == "grey"
    by_class, labels = stored["by_class"], result.verdicts.labels
    assert list(by_class) == [str(label) for label in np.unique(labels)]
    for name, share in [("clean", stored["clean"]), *stored["robust"].items()]:
        counts = [by_class[label][name] * (labels == int(label)).sum() for label in by_class]
        assert sum(counts) == pytest.approx(30 * share)


def test_csv_has_one_line_per_example(result, tmp_path):
    result.to_csv(tmp_path / "per_example.csv")
    with open(tmp_path / "per_example.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert [row["index"] for row in rows] == [str(i) for i in range(30)]
    resists = result.verdicts.resists
    for number, row in enumerate(rows):
        if number < 2:
            assert row["correct"] == "0"
            assert {row[r] for r in ("2/255", "8/255", "0.1")} == {"wrong"}
            assert row["margin"] == row["broken_at"] == ""
            continue
        words = [row[r] for r in ("2/255", "8/255", "0.1")]
        assert [word != "broken" for word in words] == resists[number].tolist()
        smallest = [r for r, word in zip((2 / 255, 8 / 255, 0.1), words, strict=True) if word == "broken"]
        assert (float(row["broken_at"]) if row["broken_at"] else None) == (smallest[0] if smallest else None)
        assert float(row["margin"]) == result.verdicts.margin[number]
        assert float(row["closest"]) <= float(row["margin"])
        assert {row[f"condition_{name}"] for name in "abc"} <= {"0", "1"}
    assert {"broken_at_margins", "broken_at_pgd", "broken_at_apgd-ce", "broken_at_apgd-t"} <= set(rows[0])


def test_the_epoch_of_other_weights_is_not_kept(result, tmp_path):
    for name, epoch in (("epoch-0007", 7), ("epoch-0009", None)):
        before = {"checkpoint_name": "epoch-0007", "epoch": 7, "seconds_per_epoch": 2.5}
        (tmp_path / "evaluation.json").write_text(json.dumps(before))
        write_records(dataclasses.replace(result, facts={"checkpoint_name": name}), tmp_path)
        stored = json.loads((tmp_path / "evaluation.json").read_text())
        assert (stored.get("epoch"), stored["seconds_per_epoch"], stored["checkpoint_name"]) == (epoch, 2.5, name)


def test_a_folder_gets_all_three_and_keeps_what_it_knows_of_the_training(result, tmp_path):
    (tmp_path / "evaluation.json").write_text(json.dumps({"clean": 0.1, "epoch": 7, "seconds_per_epoch": 2.5}))
    write_records(result, tmp_path)
    stored = json.loads((tmp_path / "evaluation.json").read_text())
    assert (stored["epoch"], stored["seconds_per_epoch"], stored["clean"]) == (7, 2.5, 28 / 30)
    with np.load(tmp_path / "evaluation.npz", allow_pickle=False) as flags:
        assert flags.files == ["clean", "2/255", "8/255", "0.1"]
        assert flags["8/255"].mean() == stored["robust"]["8/255"]
        assert flags["clean"].dtype == bool
    assert (tmp_path / "per_example.csv").is_file()


def test_the_table_has_a_line_per_radius_and_the_cost(result):
    text = str(result)
    lines = text.splitlines()
    assert lines[0].startswith("30 examples, linf, boundary search")
    assert "95 % interval" in lines[1]
    assert lines[2].split()[:2] == ["clean", "93.33"]
    line = next(line for line in lines if line.startswith("8/255"))
    assert line.split()[1] == f"{100 * result.robust_accuracy[8 / 255]:.2f}"
    assert "backward passes per example" in text
    assert "APGD-T has 3 target classes instead of 9" in text
    assert repr(result).count("\n") == 0


def test_clean_accuracy_alone_has_no_robust_one(tmp_path):
    model = Mlp()
    inputs, labels = examples(model)
    result = dyart.evaluate(model, inputs, labels, attack="clean", folder=tmp_path)
    assert result.robust_accuracy == {}
    assert result.passes == {"forward": 1.0, "backward": 0.0}
    assert json.loads((tmp_path / "evaluation.json").read_text())["robust"] == {}
    assert "no attack" in str(result)


def test_radii_keep_their_names_and_come_in_order():
    model = Mlp()
    inputs, labels = examples(model)
    result = dyart.evaluate(model, inputs, labels, [0.1, "4/255", 2 / 255, 4 / 255, 0.2], "margins")
    assert [str(radius) for radius in result.robust_accuracy] == ["2/255", "4/255", "0.1", "0.2"]
    shares = list(result.robust_accuracy.values())
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("kind", [np.float32, lambda radius: torch.tensor(radius, dtype=torch.float32)])
def test_radii_in_single_precision_are_named_as_they_were_written(kind):
    names = [str(radius) for radius in named_radii([kind(value) for value in (8 / 255, 0.05, 0.2, 1 / 7)])]
    assert names == ["8/255", "0.05", "0.14285715", "0.2"]
