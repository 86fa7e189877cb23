"""Evaluations on a page: which one is drawn as the run's own, and what is told of the others."""

import json
import os
import re

import pytest
from page_cases import Outline, alarm, evaluation, write_run

from dyart.report.page import write_page
from dyart.report.page.run import read_runs


def test_a_part_of_the_test_set_is_shown_as_such(tmp_path):
    folder = write_run(tmp_path / "run")
    part = json.loads((folder / "evaluation.json").read_text()) | {"images": 50, "drawn_from": 200, "clean": 0.82}
    for age, name in enumerate(("evaluation-50", "evaluation-20")):
        (folder / name).mkdir()
        (folder / name / "evaluation.json").write_text(json.dumps(part))
        os.utime(folder / name / "evaluation.json", (1000 - age, 1000 - age))
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "also evaluated in L∞ on 50 of 200 test images (evaluation-50; APGD): clean 82.0" in text
    assert "clean accuracy 80.0" in text, "cards and plots show the whole"
    (folder / "evaluation.json").unlink()
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "evaluated on 50 of 200 test images only (evaluation-50)" in text
    assert "dyart evaluate" not in text


def test_every_evaluation_of_a_run_is_told(tmp_path):
    folder = write_run(tmp_path / "run")
    others = {
        "evaluation-100": evaluation() | {"images": 100, "drawn_from": 200, "clean": 0.79},
        "evaluation-100-margins": evaluation() | {"norm": "l2", "attack": "boundary search", "robust": {"0.5": 0.3}},
        "evaluation-pgd": evaluation() | {"attack": "PGD", "alarms": [alarm("PGD stops early.")]},
    }
    for name, record in others.items():
        (folder / name).mkdir()
        (folder / name / "evaluation.json").write_text(json.dumps(record))
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert text.count("also evaluated") == 3
    assert "also evaluated in L∞ on 100 of 200 test images (evaluation-100; APGD): clean 79.0" in text
    assert "also evaluated in L2 on 200 test images (evaluation-100-margins; boundary search): clean 80.0" in text
    assert "77000111" not in text, "the examples of an alarm are in the record"
    assert re.search(r"also evaluated in L∞ on 200 test images \(evaluation-pgd; PGD\): [^:]* PGD stops early\.", text)
    (folder / "evaluation.json").write_text(json.dumps(evaluation() | {"norm": "l1"}))
    (run,) = read_runs([folder])
    assert (run.accuracy.norm, len(run.others)) == ("linf", 3)
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "also evaluated in L1 on 200 test images (evaluation.json; APGD)" in text


def test_distances_of_an_evaluation_on_other_data_are_not_the_runs_own(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "margins.csv").rename(folder / "per_example.csv")
    assert read_runs([folder])[0].margins is not None
    (folder / "evaluation.json").write_text(json.dumps(evaluation() | {"data": "/my/other.npz"}))
    assert read_runs([folder])[0].margins is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"norm": "l2", "images": 200}, "also evaluated in L2 on 200 test images (evaluation-pgd; APGD): clean 80.0"),
        (
            {"data": "/my/other.npz"},
            "also evaluated in L∞ on 200 test images of /my/other.npz (evaluation-pgd; APGD): clean",
        ),
    ],
)
def test_an_evaluation_in_another_norm_or_on_other_data_is_not_drawn_as_the_runs_own(tmp_path, other, words):
    folder = write_run(tmp_path / "run")
    (folder / "evaluation-pgd").mkdir()
    (folder / "evaluation-pgd" / "evaluation.json").write_text(json.dumps(evaluation() | other))
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert words in text
    assert "robust at 0.1 60.0" in text, "of the run's own"
    (folder / "evaluation.json").unlink()
    (run,) = read_runs([folder])
    assert run.accuracy is None
    (folder / "evaluation-50").mkdir()
    (folder / "evaluation-50" / "evaluation.json").write_text(json.dumps(evaluation() | {"images": 50}))
    os.utime(folder / "evaluation-50" / "evaluation.json", (1000, 1000))
    (run,) = read_runs([folder])
    assert run.accuracy.images == 50, "the older one, which is in its norm and on its data"
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "evaluated on 50 test images (evaluation-50)" in text
    (folder / "evaluation.json").write_text(json.dumps(evaluation() | other))
    assert read_runs([folder])[0].accuracy.images == 50


def test_an_evaluation_without_margins_does_not_pass_for_one_with(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "margins.csv").unlink()
    (folder / "per_example.csv").write_text("index,label,correct,margin\n0,1,1,\n1,1,0,\n")
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "dyart margins" in text
    assert "by the margins alone" not in text


def by_class(count):
    return {str(label): {"clean": 0.9, "0.05": 0.8, "0.1": 0.01 * label} for label in range(count)}


def test_classes_are_told_apart_where_the_record_has_them(tmp_path):
    folder = write_run(tmp_path / "run")
    assert "By class" not in Outline(write_page([folder]).read_text(encoding="utf-8")).text
    (folder / "evaluation.json").write_text(json.dumps(evaluation() | {"by_class": by_class(10)}))
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "By class" in text
    table = text[text.index("By class") :][:600]
    assert re.search(r"T-shirt/top\s+Trouser", table), table
    assert re.search(r"robust at 0\.1; small: clean\s+0\.0.%\s*90\.0.%\s*1\.0.%\s*90\.0.%", table), table


def test_of_many_classes_the_lowest_are_shown(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "evaluation.json").write_text(json.dumps(evaluation() | {"by_class": by_class(60)}))
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "lowest 10" in text
    assert "class 11" not in text
