"""``dyart bench`` on a small scale."""

import json

import pytest

from dyart.cli import main


def test_bench_writes_a_record_per_method(capsys, tmp_path):
    path = tmp_path / "steps.json"
    words = ["bench", "--methods", "natural,at", "--batches", "8", "--rounds", "1", "--out", str(path)]
    assert main(words) == 0
    records = json.loads(path.read_text())["records"]
    assert [(record["network"], record["batch"], record["method"]) for record in records] == [
        ("cnn", 8, "natural"),
        ("cnn", 8, "at"),
    ]
    natural, at = records
    assert natural["ms"] < at["ms"]
    assert 2.7 < natural["passes"] <= 3
    assert natural["ms_q10"] <= natural["ms"] <= natural["ms_q90"]
    out = capsys.readouterr().out
    assert "natural" in out
    assert str(path) in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--networks", "lenet"], "lenet"),
        (["--methods", "attt"], "attt"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
    ],
)
def test_bad_words_are_one_line(words, message, capsys, tmp_path):
    assert main(["bench", *words, "--out", str(tmp_path / "steps.json")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert not (tmp_path / "steps.json").exists()
