"""The result object in words and tables."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import torch
from result_cases import EXAMPLES, VERDICTS, handmade, search
from torch import Tensor

import dyart


@pytest.fixture(scope="module")
def searched() -> dyart.BoundaryPoints:
    return search()


# Words


def test_the_summary_counts_and_names_the_problem(searched):
    text = repr(handmade())
    assert "7 examples, l2, exact boundary: 6 inside, 5 found, 3 locally optimal" in text
    assert "median margin 0.25" in text
    assert "\n" not in text
    median = searched.margin[searched.found].double().quantile(0.5)  # of an even number: between the two
    assert f"7 examples, linf, exact boundary: 6 inside, 6 found, {int(searched.optimal.sum())} " in repr(searched)
    assert f"median margin {float(median):.4g}" in repr(searched)


def test_the_summary_of_nothing_has_no_median(searched):
    assert repr(searched[:0]).startswith("BoundaryPoints(0 examples")
    assert "median" not in repr(searched[:0])
    assert "median" not in repr(handmade()[4:6])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (0, ["class 0: locally optimal", "l2 margin 0.25", "towards class 1", "phi at the point -0.001", "slope 4"]),
        (1, ["not closest", "alignment 0.700", "above 0.9"]),
        (2, ["off the boundary", "phi at the point -0.5", "at most 0.1"]),
        (3, ["flat", "slope 1e-06"]),
        (4, ["not found", "more steps or restarts; perhaps the network predicts only this class around here"]),
        (5, ["not inside", "phi is -1.5 at the input", "no margin"]),
        (6, ["example 6, class 0: locally optimal", "margin 0.125", "towards class 2"]),
    ],
)
def test_every_verdict_is_explained_with_its_numbers(row, words):
    sentence = handmade().explain(row)
    assert sentence.startswith(f"example {row}, ")
    for word in words:
        assert word in sentence
    assert "nan" not in sentence


def test_the_soft_boundary_is_called_phi_with_a_capital():
    assert "Phi at the point" in handmade(boundary="soft").explain(0)
    assert "Phi is -1.5" in handmade(boundary="soft").explain(5)


def test_a_search_that_finds_nothing_says_so():
    def constant(x: Tensor) -> Tensor:
        return torch.stack([x.sum(dim=1) * 0 + 2, x.sum(dim=1) * 0], dim=1)

    found = dyart.closest_boundary_points(constant, torch.full((2, 3), 0.5), steps=2)
    assert found.verdict == ["not found", "not found"]
    assert "not found" in found.explain(1)
    assert found.margin.isnan().all()
    assert (found.rival == -1).all()
    assert torch.equal(found.points, found.inputs)


def test_an_example_that_is_not_there_cannot_be_explained(searched):
    with pytest.raises(IndexError):
        searched.explain(EXAMPLES)


def test_examples_outside_their_class_are_explained_when_signed():
    found = search(signed=True)
    assert found.margin[3] < 0
    sentence = found.explain(3)
    assert "not inside" not in sentence
    assert f"margin {float(found.margin[3]):.4g}" in sentence


# Tables


def read(path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("make", [handmade, search, lambda: search(signed=True, boundary="soft")])
def test_a_table_read_back_holds_the_same_numbers(make, tmp_path):
    found = make()
    found.to_csv(tmp_path / "margins.csv")
    rows = read(tmp_path / "margins.csv")
    assert len(rows) == len(found)
    for number, row in enumerate(rows):
        assert int(row["index"]) == number
        assert int(row["label"]) == int(found.labels[number])
        assert int(row["rival"]) == int(found.rival[number])
        assert row["verdict"] == found.verdict[number]
        for name in ("correct", "inside", "found", "optimal"):
            assert row[name] == str(int(getattr(found, name)[number])), name
        for name in ("margin", "value", "alignment", "input_value"):
            written, held = float(row[name]), float(getattr(found, name)[number])
            assert written == held or (math.isnan(written) and math.isnan(held)), name


def test_a_margin_that_does_not_exist_is_nan_in_the_table(tmp_path):
    handmade().to_csv(tmp_path / "margins.csv")
    rows = read(tmp_path / "margins.csv")
    assert [row["margin"] for row in rows].count("nan") == 2
    assert [row["verdict"] for row in rows] == VERDICTS


def test_the_columns_are_a_contract(tmp_path):
    handmade().to_csv(tmp_path / "margins.csv")
    header = (tmp_path / "margins.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "index,label,rival,correct,inside,found,margin,value,alignment,optimal,input_value,verdict,lost"


@pytest.mark.parametrize(
    "index",
    [
        [70, 60, 50, 40, 30, 20, 10],
        range(100, 107),
        np.arange(7) * 11,
        torch.arange(7) * 11,
    ],
    ids=["list", "range", "numpy", "tensor"],
)
def test_a_table_names_the_examples_as_asked(index, tmp_path):
    # Whoever sorts the examples by margin has their numbers in a tensor.
    handmade().to_csv(tmp_path / "margins.csv", index=index)
    assert [row["index"] for row in read(tmp_path / "margins.csv")] == [str(int(name)) for name in index]


MASK = torch.tensor([False, True, False, True, False, False, True])


@pytest.mark.parametrize(
    "index",
    [MASK, MASK.numpy(), MASK.tolist(), MASK.nonzero(), MASK.nonzero()[:, 0]],
    ids=["mask", "numpy", "list", "nonzero", "numbers"],
)
def test_a_part_is_named_by_what_chose_it(index, tmp_path):
    found = handmade()
    found[MASK].to_csv(tmp_path / "part.csv", index=index)
    found.to_csv(tmp_path / "whole.csv")
    assert [row["index"] for row in read(tmp_path / "part.csv")] == ["1", "3", "6"]
    whole = read(tmp_path / "whole.csv")
    assert read(tmp_path / "part.csv") == [whole[1], whole[3], whole[6]], "so that they can be joined"


def test_a_mask_that_chose_others_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="index names 3 examples, but there are 2"):
        handmade()[:2].to_csv(tmp_path / "margins.csv", index=MASK)


@pytest.mark.parametrize("length", [0, 6, 8])
def test_a_wrong_number_of_names_is_an_error_that_leaves_no_file(length, tmp_path):
    with pytest.raises(ValueError):
        handmade().to_csv(tmp_path / "margins.csv", index=range(length))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_number_of_names_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "margins.csv"
    handmade().to_csv(path)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        handmade().to_csv(path, index=[1, 2, 3])
    assert path.read_bytes() == before


def test_the_error_for_names_says_how_many_are_needed(tmp_path):
    with pytest.raises(ValueError, match=r"index.*3.*7|index.*7.*3"):
        handmade().to_csv(tmp_path / "margins.csv", index=[1, 2, 3])


def test_a_table_replaces_an_older_one_and_a_path_may_be_a_string(tmp_path):
    path = tmp_path / "margins.csv"
    handmade().to_csv(path)
    handmade()[:2].to_csv(str(path))
    assert [row["verdict"] for row in read(path)] == VERDICTS[:2]


def test_the_table_says_which_points_were_lost(tmp_path):
    found = handmade()
    found.to_csv(tmp_path / "margins.csv")
    assert {row["lost"] for row in read(tmp_path / "margins.csv")} == {""}, "nobody knows"
    lost = torch.arange(len(found)) == 2
    dataclasses.replace(found, lost=lost).to_csv(
        tmp_path / "margins.csv", files=["f"] * len(found), columns={"x": lost}
    )
    rows = read(tmp_path / "margins.csv")
    assert [row["lost"] for row in rows] == [str(int(one)) for one in lost]
    assert list(rows[0])[-3:] == ["file", "lost", "x"]


def test_columns_of_one_s_own_come_last(tmp_path):
    found = handmade()
    speed = torch.arange(len(found)) / 10
    found.to_csv(tmp_path / "margins.csv", columns={"speed": speed, "split": ["test"] * len(found)})
    with (tmp_path / "margins.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[-2:] == ["speed", "split"]
    assert [float(row["speed"]) for row in rows] == pytest.approx(speed.tolist())
    assert {row["split"] for row in rows} == {"test"}
    with pytest.raises(ValueError, match="'speed' has 1 examples, but there are"):
        found.to_csv(tmp_path / "other.csv", columns={"speed": speed[:1]})
    with pytest.raises(ValueError, match="there is a column 'margin' already"):
        found.to_csv(tmp_path / "other.csv", columns={"margin": speed})
    assert not (tmp_path / "other.csv").exists()
