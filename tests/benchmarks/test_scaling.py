"""The cost model of larger trainings: computed from the steps that are measured now."""

import json

import pytest
from bench_cases import module

scaling = module("scaling")


def test_what_is_published_follows_from_the_measured_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scaling.py", "--out", str(tmp_path)])
    scaling.main()
    anew, published = (json.loads((folder / "scaling.json").read_text()) for folder in (tmp_path, scaling.RESULTS))
    assert anew == published


def test_a_fit_gives_back_the_steps_it_was_made_of():
    records = json.loads((scaling.RESULTS / "steps.json").read_text())["records"]
    own = [r for r in records if (r["network"], r["normalization"]) == ("resnet18", "batch")]
    numbers = scaling.fit(own)
    for record in own:
        if (record["method"], record["batch"]) in scaling.FITTED:
            assert scaling.predicted(numbers, record) == pytest.approx(record["ms"])
