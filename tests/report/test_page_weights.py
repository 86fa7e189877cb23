"""The page says where a record is of other weights than those that are the run's best by now."""

import json
import re
import shutil

import pytest
from page_cases import HOSTILE, evaluation, write_run

from dyart.report.page import write_page
from dyart.report.page.run import read_runs

EARLIER, BEST = "epoch-0011", "epoch-0014"
WORDS = "of epoch 11; the best is epoch 14 now"


def change(path, **entries):
    stored = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(stored | entries))


@pytest.fixture
def folder(tmp_path):
    """A run that went on after its margins: its best checkpoint is another one now."""
    folder = write_run(tmp_path / "mine")
    (folder / "checkpoints").mkdir()
    change(folder / "checkpoints" / "index.json", last="epoch-0015", best=BEST)
    change(folder / "margins.json", settings={"run_or_checkpoint": "runs/mine"})
    return folder


def texts(folder) -> dict[str, str]:
    """Return the text of every section of the page."""
    page = write_page([folder]).read_text(encoding="utf-8")
    parts = re.findall(r'<section id="(\w+)".*?>(.*?)</section>', page, re.S)
    return {name: " ".join(re.sub(r"<[^>]*>", " ", part).split()) for name, part in parts}


def having(folder) -> set[str]:
    return {name for name, text in texts(folder).items() if "the best is" in text}


def test_margins_of_an_earlier_best_epoch_are_said_to_be(folder):
    assert not having(folder), "records of earlier versions do not say what they are of"
    change(folder / "margins.json", checkpoint_name=BEST)
    assert not having(folder)
    change(folder / "margins.json", checkpoint_name=EARLIER)
    assert having(folder) == {"runs", "accuracy", "margins"}
    found = texts(folder)
    assert re.search(
        rf"median margin 0\.\d+ L∞, the 48 classified correctly, of 60 {WORDS} losing margin", found["runs"]
    )
    assert f"mine: margins {WORDS}. To measure that: dyart margins {folder}" in found["margins"]
    assert re.search(r"Distance of \d+ test examples", found["margins"])
    assert re.search(r"by the margins alone, of \d+ images", found["accuracy"])
    for name in ("dynamics.csv", "dynamics.json"):
        (folder / name).unlink()
    (folder / "dynamics.npz").rename(folder / "margins.pictures.npz")
    assert "vulnerable" in having(folder), "whose gallery is of the margins now"


def test_dynamics_of_an_earlier_best_epoch_are_said_to_be(folder):
    change(folder / "dynamics.json", checkpoint=f"runs/mine/checkpoints/{BEST}")
    assert not having(folder)
    change(folder / "dynamics.json", checkpoint=f"runs/mine/checkpoints/{EARLIER}")
    assert having(folder) == {"runs", "dynamics", "vulnerable"}
    found = texts(folder)
    assert re.search(rf"losing margin 30\.0\s% of those below 0\.1 {WORDS}", found["runs"])
    assert f"mine: dynamics {WORDS}. To measure that: dyart dynamics {folder}" in found["dynamics"]


def test_an_evaluation_of_an_earlier_best_epoch_is_said_to_be(folder):
    change(folder / "evaluation.json", checkpoint="best", checkpoint_name=BEST)
    assert not having(folder)
    change(folder / "evaluation.json", checkpoint_name=EARLIER)
    assert having(folder) == {"runs", "accuracy"}
    found = texts(folder)
    assert found["runs"].count(WORDS) == 2, "clean and robust"
    assert f"mine: accuracy {WORDS}. To measure that: dyart evaluate {folder}" in found["accuracy"]


def test_an_evaluation_beside_the_runs_own_says_so_in_its_sentence(folder):
    change(folder / "evaluation.json", checkpoint_name=BEST)
    (folder / "evaluation-50").mkdir()
    change(folder / "evaluation-50" / "evaluation.json", **evaluation(), checkpoint_name=EARLIER)
    found = texts(folder)
    assert re.search(rf"also evaluated in L∞ on [^:]*: clean [^:]*\. That is {WORDS}\.", found["accuracy"])
    assert having(folder) == {"accuracy"}


def test_distances_of_an_evaluation_are_of_its_weights(folder):
    (folder / "margins.csv").rename(folder / "per_example.csv")
    (folder / "margins.json").unlink()
    change(folder / "evaluation.json", checkpoint_name=EARLIER)
    assert having(folder) == {"runs", "accuracy", "margins"}
    (folder / "per_example.csv").unlink()
    assert "margins" not in having(folder), "there are none"


def test_margins_of_the_best_weights_beside_earlier_ones_are_shown(folder):
    change(folder / "margins.json", checkpoint_name=EARLIER)
    lines = (folder / "margins.csv").read_text().splitlines()
    (folder / "margins-linf-20.csv").write_text("\n".join(lines[:21]) + "\n")
    change(folder / "margins-linf-20.json", settings={"run_or_checkpoint": "runs/mine"}, checkpoint_name=BEST)
    (run,) = read_runs([folder])
    assert (len(run.margins["index"]), run.searched) == (20, BEST)
    change(folder / "margins-linf-20.json", checkpoint_name="epoch-0012")
    (run,) = read_runs([folder])
    assert (len(run.margins["index"]), run.searched) == (len(lines) - 1, EARLIER)


@pytest.mark.parametrize("index", [None, "{", "{}"])
def test_a_copy_without_checkpoints_has_its_page(folder, index):
    shutil.rmtree(folder / "checkpoints")
    if index is not None:
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "index.json").write_text(index)
    change(folder / "margins.json", checkpoint_name=EARLIER)
    change(folder / "evaluation.json", checkpoint_name=EARLIER)
    change(folder / "dynamics.json", checkpoint=f"runs/mine/checkpoints/{EARLIER}")
    assert not having(folder)
    assert "median margin" in texts(folder)["runs"]


def test_checkpoints_are_named_as_a_person_would(folder):
    change(folder / "checkpoints" / "index.json", best="step-00000120")
    change(folder / "margins.json", checkpoint_name=HOSTILE[0])
    assert "the best is step 120 now" in texts(folder)["margins"]
    assert HOSTILE[0] not in write_page([folder]).read_text(encoding="utf-8")
