"""``dyart margins`` by a boundary search of one's own, as the solver and as the second opinion."""

import json
from pathlib import Path

import pytest
from cli_cases import run
from margins_cases import rows, words_there

OWN = """
def straight(problem, start, steps):
    now = problem.evaluate(start)
    x = problem.into_box(start + 1.001 * problem.project(start, now.gradient, now.value))
    return problem.candidate(x, problem.evaluate(x))


nameless = lambda problem, start, steps: straight(problem, start, steps)
number = 3


def fast(problem, start, steps):
    return straight(problem, start, steps)
"""


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Words for the margins of a linear network, beside a module with searches."""
    words = words_there(tmp_path, monkeypatch)
    (tmp_path / "searches_mine.py").write_text(OWN)
    return [*words, "--count", "40", "--steps", "10"]


def same(one, other):
    margins = [[float(row["margin"]) for row in table if row["found"] == "1"] for table in (one, other)]
    assert len(margins[0]) > 20
    assert margins[0] == pytest.approx(margins[1], rel=0.01)


def test_a_search_of_ones_own_is_the_solver(capsys, words):
    status, out, err = run(capsys, *words, "--solver", "searches_mine:straight", "--cross-check")
    assert status == 0, err
    same(rows("margins.csv"), rows("margins-fast.csv"))
    assert "mean ratio straight / fast" in out
    record = json.loads(Path("margins.json").read_text())
    assert record["settings"]["solver"] == "searches_mine:straight"
    assert record["settings"]["cross_check"] == "fast"
    assert record["passes"] == {"forward": 4, "backward": 3}, "one more of each than it spends, and the inputs"


@pytest.mark.parametrize("name", ["straight", "nameless"])
def test_it_is_the_second_opinion(capsys, words, name):
    file = {"straight": "straight", "nameless": "lambda"}[name]
    for where in ([], ["--out", "here.csv"]):
        status, out, err = run(capsys, *words, "--cross-check", f"searches_mine:{name}", *where)
        assert status == 0, err
        assert f"mean ratio fast / {file}" in out
    for first in ("margins", "here"):
        same(rows(f"{first}.csv"), rows(f"{first}-{file}.csv"))
    assert json.loads(Path("margins.json").read_text())["settings"]["cross_check"] == f"searches_mine:{name}"
    assert not [path.name for path in Path().iterdir() if ":" in path.name]


@pytest.mark.parametrize("option", ["--solver", "--cross-check"])
@pytest.mark.parametrize(
    ("name", "words_of_error"),
    [
        ("searches_mine:strait", "did you mean 'straight'?"),
        ("nowhere_searches:straight", "there is no module 'nowhere_searches'"),
        ("searches_mine:number", "or a function (problem, start, steps)"),
        ("searches_mine:fast", "'fast' is one of ours: rename it"),
        ("slow", "must be one of 'fast', 'fab', 'apgd'"),
    ],
)
def test_what_is_no_search_is_said_before_any(capsys, words, option, name, words_of_error):
    status, _, err = run(capsys, *words, option, name)
    assert status == 2
    assert words_of_error in err
    assert not list(Path().glob("margins*.csv"))


def test_the_second_opinion_on_a_search_of_ones_own_is_another(capsys, words):
    both = ["--solver", "searches_mine:straight", "--cross-check", "searches_mine:straight"]
    status, _, err = run(capsys, *words, *both)
    assert status == 2
    assert "is the solver itself" in err
