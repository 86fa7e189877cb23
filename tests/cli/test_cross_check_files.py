"""Where ``dyart margins --cross-check`` puts the second opinion: not in the place of what is somebody else's."""

import csv
import json
from pathlib import Path

import pytest
import torch

from dyart.cli import main

FOREIGN = "name,price\nbread,2\n"


@pytest.fixture
def search(tmp_path, monkeypatch, capsys):
    """A search with a second opinion, in the working directory; returns status, output and errors."""
    (tmp_path / "opinions_mine.py").write_text(
        "import torch\ndef net(classes, shape):\n    return torch.nn.Linear(shape[0], classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.tensor([[-2.0, 1.0], [2.0, -1.0]]), "bias": torch.tensor([0.5, -0.5])}, "w.pt")
    words = ["margins", "--model", "opinions_mine:net", "--weights", "w.pt", "--data", "moons", "--device", "cpu"]

    def run(count, *more, check=True):
        status = main([*words, "--steps", "5", "--count", str(count), *(["--cross-check"] if check else []), *more])
        return status, *capsys.readouterr()

    return run


def examples(name):
    with open(name) as file:
        return len(list(csv.DictReader(file)))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_named_place_is_refused_before_the_search_where_the_second_opinion_would_replace_something(search, kind):
    Path("here-apgd.csv").mkdir() if kind == "folder" else Path("here-apgd.csv").write_text(FOREIGN)
    status, out, err = search(20, "--out", "here.csv")
    assert status == 2
    assert f"here-apgd.csv is {'a folder' if kind == 'folder' else 'not of a search'}, and the second opinion" in err
    assert "choose another --out" in err
    assert out == ""
    assert not Path("here.csv").exists()
    assert kind == "folder" or Path("here-apgd.csv").read_text() == FOREIGN
    assert search(20, "--out", "here.csv", check=False)[0] == 0, "without it, nothing is in the way"


def test_a_search_of_its_own_is_no_second_opinion(search):
    assert search(30, "--out", "here-apgd.csv", check=False)[0] == 0
    before = Path("here-apgd.csv").read_text()
    status, _, err = search(20, "--out", "here.csv")
    assert status == 2
    assert "here-apgd.csv is of a search of its own" in err
    assert Path("here-apgd.csv").read_text() == before


def test_its_own_second_opinion_is_replaced(search):
    for count in (20, 10):
        status, out, err = search(count, "--out", "here.csv")
        assert status == 0, err
        assert examples("here.csv") == examples("here-apgd.csv") == count
        assert "the second opinion: here-apgd.csv" in out


def test_without_a_named_place_both_files_go_elsewhere(search):
    Path("margins-apgd.csv").write_text(FOREIGN)
    status, out, err = search(20)
    assert status == 0, err
    assert Path("margins-apgd.csv").read_text() == FOREIGN
    assert not Path("margins.csv").exists()
    assert examples("margins-linf-20.csv") == examples("margins-linf-20-apgd.csv") == 20
    assert json.loads(Path("margins-linf-20.json").read_text())["cross_check"]["both"] > 0
    assert "margins-apgd.csv is not of a search, and stays as it is" in out
    assert search(20, check=False)[0] == 0
    assert examples("margins.csv") == 20


def test_a_second_opinion_on_more_examples_stays(search):
    assert search(30)[0] == 0
    status, out, _ = search(20)
    assert status == 0
    assert (examples("margins-apgd.csv"), examples("margins-linf-20-apgd.csv")) == (30, 20)
    assert "margins.csv is of more or other examples" in out
    Path("margins.csv").unlink()
    Path("margins.json").unlink()
    _, out, _ = search(20)
    assert examples("margins-apgd.csv") == 30
    assert "margins-apgd.csv is of more examples, and stays as it is" in out
    assert search(40)[0] == 0
    assert examples("margins.csv") == examples("margins-apgd.csv") == 40, "more of the same replaces less"
