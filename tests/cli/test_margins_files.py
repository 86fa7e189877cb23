"""Files of ``dyart margins``: what is replaced, and what stays."""

import json
from pathlib import Path

import pytest
import torch
from cli_cases import run
from margins_cases import rows, words_there

OTHER = "of more or other examples, of a longer search or of something else"


@pytest.fixture
def linear(tmp_path, monkeypatch):
    """Words for the margins of a linear network in the working directory, whose answer is known."""
    return words_there(tmp_path, monkeypatch)


def test_other_weights_in_a_file_of_the_same_name_have_a_file_of_their_own(capsys, linear):
    assert run(capsys, *linear, "--steps", "5")[0] == 0
    first = Path("margins.csv").read_bytes()
    weights = torch.load("w.pt")
    torch.save({name: 2 * tensor for name, tensor in weights.items()}, "w.pt")
    status, out, _ = run(capsys, *linear, "--steps", "5")
    assert status == 0
    assert f"margins.csv is {OTHER}, and stays as it is" in out
    assert Path("margins.csv").read_bytes() == first


def test_a_record_of_more_examples_or_of_something_else_is_not_replaced(capsys, linear):
    quick = ["--steps", "5"]
    assert run(capsys, *linear, *quick, "--count", "40")[0] == 0
    whole = Path("margins.csv").read_text()
    _, out, _ = run(capsys, *linear, *quick, "--count", "20")
    assert Path("margins.csv").read_text() == whole
    assert len(rows("margins-linf-20.csv")) == 20
    assert f"margins.csv is {OTHER}, and stays" in out
    _, out, _ = run(capsys, *linear, *quick, "--count", "40", "--norm", "l2")
    assert Path("margins.csv").read_text() == whole
    assert json.loads(Path("margins-l2-40.json").read_text())["settings"]["norm"] == "l2"
    _, out, _ = run(capsys, *linear, *quick, "--count", "60")
    assert len(rows()) == 60, "more of the same replaces less"
    assert "stays" not in out
    _, out, _ = run(capsys, *linear, *quick, "--count", "20", "--out", "margins.csv")
    assert len(rows()) == 20, "where --out says so"


@pytest.mark.parametrize(
    "less", [["--steps", "4"], ["--restarts", "1"], ["--seed", "3"], ["--solver", "apgd"]], ids=lambda less: less[0]
)
def test_a_longer_search_or_one_of_other_examples_is_not_replaced(capsys, linear, less):
    words = [*linear, "--count", "20", "--steps", "6", "--restarts", "2"]
    assert run(capsys, *words)[0] == 0
    first = Path("margins.csv").read_bytes()
    out = run(capsys, *words, *less)[1]
    assert f"margins.csv is {OTHER}, and stays" in out
    assert Path("margins.csv").read_bytes() == first
    assert len(rows("margins-linf-20.csv")) == 20
    assert "stays" not in run(capsys, *words, "--steps", "8")[1], "a longer one takes its place"
    assert Path("margins.csv").read_bytes() != first


def test_all_examples_are_among_them_whatever_the_seed(capsys, linear):
    assert run(capsys, *linear, "--steps", "5", "--count", "20", "--seed", "3")[0] == 0
    assert "stays" not in run(capsys, *linear, "--steps", "5")[1]


def test_a_refused_search_replaces_nothing(capsys, linear):
    assert run(capsys, *linear, "--steps", "5", "--count", "20", "--out", "here.csv")[0] == 0
    status, out, err = run(capsys, *linear, "--steps", "5", "--count", "20", "--out", "here.csv", "--radii", "8")
    assert status == 2
    assert "the radius 8 is as large as the box" in err
    assert "will be replaced" not in out


def test_a_csv_without_its_settings_is_judged_by_its_length(capsys, linear):
    Path("margins.csv").write_text("index\n" + "1\n" * 30)
    assert run(capsys, *linear, "--steps", "5", "--count", "20")[0] == 0
    assert len(rows("margins-linf-20.csv")) == 20
    assert run(capsys, *linear, "--steps", "5", "--count", "30")[0] == 0
    assert len(rows()) == 30


def test_what_out_replaces_is_said(capsys, linear):
    assert "replaced" not in run(capsys, *linear, "--count", "30", "--out", "here.csv")[1]
    out = run(capsys, *linear, "--count", "5", "--norm", "l2", "--out", "here.csv")[1]
    assert "here.csv is of 30 examples in linf, and will be replaced" in out


def test_of_vectors_there_are_no_pictures_nor_do_older_ones_stay(capsys, linear):
    Path("margins.pictures.npz").write_bytes(b"of something else")
    assert run(capsys, *linear, "--count", "20")[0] == 0
    assert not Path("margins.pictures.npz").exists()


def test_files_that_no_search_wrote_are_not_replaced(capsys, linear):
    Path("evaluation.json").write_text('{"clean": 0.9, "settings": {}}')
    status, _, err = run(capsys, *linear, "--count", "20", "--out", "evaluation.csv")
    assert status == 2
    assert "settings go to evaluation.json, which is something else" in err
    assert json.loads(Path("evaluation.json").read_text())["clean"] == 0.9
    assert not Path("evaluation.csv").exists()
    for name, content in {"margins.csv": "name,price\nbread,2\n", "margins.json": '{"mine": 1}'}.items():
        Path(name).write_text(content)
        status, out, _ = run(capsys, *linear, "--count", "20")
        assert status == 0
        assert Path(name).read_text() == content
        assert f"{name} is not of a search, and stays as it is" in out
        assert len(rows("margins-linf-20.csv")) == 20
        Path(name).unlink()
    assert run(capsys, *linear, "--count", "20")[0] == 0
    assert len(rows("margins.csv")) == 20


def test_a_named_file_that_no_search_wrote_is_not_replaced(capsys, linear, monkeypatch):
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert {path.name for path in before} == {"margins_mine.py", "w.pt"}
    for path in before:
        with monkeypatch.context() as patch:
            patch.setattr("dyart.cli.margins.look_at", lambda *_, **__: pytest.fail("it measures already"))
            status, out, err = run(capsys, *linear, "--count", "20", "--out", path)
        assert status == 2
        assert f"--out {path} is no CSV file of margins: choose another name" in err
        assert out == ""
    after = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    assert after == before
    for count in (20, 10):
        assert run(capsys, *linear, "--count", count, "--out", "margins.txt")[0] == 0, "its own is replaced"
        assert len(rows("margins.txt")) == count
    Path("margins.json").unlink()
    assert run(capsys, *linear, "--count", "20", "--out", "margins.txt")[0] == 0, "without its settings, too"
