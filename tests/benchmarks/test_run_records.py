"""The JSON of a published training."""

import json

import numpy as np
import pytest
from bench_cases import RADII, evaluation, module, record

run_records = module("run_records")
RUN = module("plan").load_plan()[0].runs[0]


@pytest.mark.parametrize("count", [1, 7, 8, 1000])
def test_verdicts_survive_as_text(count):
    flags = np.random.default_rng(count).random(count) < 0.5
    text = run_records.packed(flags)
    assert len(text) == 2 * -(-count // 8)
    assert (run_records.unpacked(text, count) == flags).all()


def test_the_best_checkpoint_s_first_evaluation_stands_for_the_run():
    best, last = evaluation([80, 70, 60, 50, 30, 10]), evaluation([70, 60], checkpoint="last")
    made = record(RUN, last, best | {"tier": "autoattack", "clean": 0.1}, best)
    assert [(one["checkpoint"], one["tier"]) for one in made["evaluations"]] == [
        ("best", "apgd"),
        ("best", "autoattack"),
        ("last", "apgd"),
    ]
    assert made["clean"] == 0.8
    assert made["images"] == dict.fromkeys(RADII, 400)
    again = run_records.with_evaluation(made, best | {"clean": 0.9})
    assert len(again["evaluations"]) == 3
    assert again["clean"] == 0.9
    assert run_records.flags_of(best, "8/255").mean() == 0.5


def test_a_whole_record_is_small_and_reads_back(tmp_path):
    """Ten thousand images, two attacks at five radii, 55 epochs: below 60 kB."""
    rng = np.random.default_rng(0)
    names = ("clean", *RADII)
    bits = {name: run_records.packed(rng.random(10_000) < 0.5) for name in names}
    one = evaluation([80, 70, 60, 50, 30, 10]) | {"images": 10_000, "resists": bits}
    last = evaluation([80, 70], checkpoint="last") | {"resists": {name: bits[name] for name in names[:2]}}
    epochs = {key: [0.12345] * 55 for key in "abcdefgh"}
    made = record(RUN, one, one | {"tier": "autoattack"}, last, validation=epochs, words=["--a", "1"])
    path = tmp_path / "folder" / "run.json"
    run_records.write(path, made)
    assert path.stat().st_size < 60_000
    assert run_records.read(path) == json.loads(path.read_text()) == made
    assert "[0.12345, 0.12345" in path.read_text()  # numbers on one line
    assert run_records.read(tmp_path / "none.json") == {}
