"""The scripts behind the published results, from one end to the other, on the embedded set with tiny settings."""

import csv
import json
import shutil
import sys

import pytest
from bench_cases import module
from safetensors.torch import load_file

from dyart.engine.metrics import read_metrics

train_and_attack, run_records, paper, whole, figures, dynamics = (
    module(name)
    for name in (
        "train_and_attack",
        "run_records",
        "paper_dynamics",
        "whole_training",
        "docs_figures",
        "dynamics_tables",
    )
)
SMALL = ["--data.limit", "512", "--train.device", "cpu", "--train.batch_size", "64"]


def attack(place, *words):
    places = ["--results", place / "results", "--weights", place / "weights", "--out", place / "run"]
    settings = ["--radii", "0.05,0.1", "--images", "48", "--batch", "48", "--train.epochs", "2", "--eval.steps", "2"]
    recipe = ["fashion-mini-cnn-at", "--name", "mine"]
    return train_and_attack.main([str(word) for word in [*recipe, *places, *settings, *SMALL, *words]])


def test_a_run_is_trained_then_attacked_and_never_twice(tmp_path):
    assert attack(tmp_path, "--stage", "train", "--train.burn_in", "0") == 0
    path = tmp_path / "results" / "mine.json"
    trained = run_records.read(path)
    assert "evaluations" not in trained
    assert trained["epochs"] == len(trained["validation"]["epoch"]) == 2
    assert trained["wall_seconds"] >= trained["train_seconds"] > 0
    assert "out" not in trained["settings"]
    kept = load_file(tmp_path / "weights" / "mine.safetensors")
    assert {str(value.dtype) for value in kept.values() if value.is_floating_point()} == {"torch.float16"}
    shutil.rmtree(tmp_path / "run")  # the attacks need weights and record alone
    calls = ["--stage", "attack", "--attacks", "margins", "--last", ""]
    assert attack(tmp_path, *calls, "--model.activation", "silu") == 1
    assert "another setting of model.activation" in run_records.read(path)["failed"]["error"]
    file = tmp_path / "weights" / "mine.safetensors"
    own = file.read_bytes()
    file.write_bytes(own[:-1] + bytes([own[-1] ^ 1]))
    assert attack(tmp_path, *calls) == 1
    assert "not what was trained" in run_records.read(path)["failed"]["error"]
    file.write_bytes(own)
    assert attack(tmp_path, *calls) == 0
    (one,) = run_records.read(path)["evaluations"]
    assert one["images"] == 48
    for radius in ("0.05", "0.1"):
        assert run_records.flags_of(one, radius).mean() == one["robust"][radius]
    assert run_records.flags_of(one, "clean").mean() == one["clean"] > one["robust"]["0.1"]
    assert attack(tmp_path, "--attacks", "margins", "apgd", "--last", "0.1") == 0
    record = run_records.read(path)
    assert [(each["checkpoint"], each["tier"]) for each in record["evaluations"]] == [
        ("best", "apgd"),
        ("best", "margins"),
        ("last", "apgd"),
    ]
    under_pgd = [{radius: run_records.unpacked(flags, 48) for radius, flags in each["resists_pgd"].items()}
                 for each in record["evaluations"]]  # fmt: skip
    assert [set(each) for each in under_pgd] == [{"0.05", "0.1"}, set(), {"0.1"}]
    assert sum(map(sum, under_pgd[0].values())) < 2 * run_records.flags_of(record["evaluations"][0], "clean").sum()
    for radius, flags in under_pgd[0].items():
        assert (flags | ~run_records.flags_of(record["evaluations"][0], radius)).all(), "PGD is one of the attacks"
        assert not (flags & ~run_records.flags_of(record["evaluations"][0], "clean")).any()
    assert ("same_as" in record["evaluations"][2]) == (record["best_epoch"] == 2)
    assert record["robust"]["0.1"] <= one["robust"]["0.1"]
    before = path.stat().st_mtime_ns
    assert attack(tmp_path, "--attacks", "margins", "apgd", "--last", "0.1") == 0
    assert path.stat().st_mtime_ns == before
    run_records.write(path, record | {"failed": {"stage": "attack", "error": "of an earlier try"}})
    assert attack(tmp_path, "--attacks", "margins", "apgd", "--last", "0.1") == 0
    assert run_records.read(path) == record


def test_what_an_attack_needs_is_asked_for_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(SystemExit, match="pip install pyautoattack"):
        attack(tmp_path, "--attacks", "apgd", "autoattack")
    assert list(tmp_path.iterdir()) == []


def test_a_trial_is_attacked_on_training_images_that_it_never_saw(tmp_path):
    whole = len(train_and_attack.load("fashion-mini").fit)
    words = ["--judge", "40", "--last", "", "--attacks", "margins", "--train.epochs", "1"]
    assert attack(tmp_path, *words, "--data.limit", "512") == 0
    assert attack(tmp_path / "most", *words, "--data.limit", str(whole), "--stage", "train") == 0
    record = run_records.read(tmp_path / "results" / "mine.json")
    assert record["settings"]["data"]["limit"] == 512
    assert [(one["tier"], one["images"]) for one in record["evaluations"]] == [("margins", 40)]
    most = run_records.read(tmp_path / "most" / "results" / "mine.json")
    assert most["settings"]["data"]["limit"] == whole - 40
    with pytest.raises(SystemExit, match="leaves no images"):
        attack(tmp_path, "--judge", str(whole))
    with pytest.raises(SystemExit, match="number of images"):
        attack(tmp_path, "--judge", "-1")
    assert record["judge"] == 40
    assert attack(tmp_path, "--stage", "attack") == 1, "test images are attacked of trainings that saw all others"
    assert "--judge 40" in run_records.read(tmp_path / "results" / "mine.json")["failed"]["error"]


def test_judged_images_are_the_last_that_training_may_use():
    data = train_and_attack.load("fashion-mini")
    judged = train_and_attack.judged(data, 40)
    rows = data.fit[-40:]
    assert (judged.test.images == data.train.images[rows]).all()
    assert (judged.test.labels == data.train.labels[rows]).all()
    assert not set(rows) & set(data.fit[: len(data.fit) - 40])
    assert not set(rows) & set(data.holdout)


def test_a_training_that_fails_is_recorded(tmp_path, capsys):
    assert attack(tmp_path, "--optim.lr", "1e30", "--optim.clip", "null", "--train.burn_in", "0") == 1
    failed = run_records.read(tmp_path / "results" / "mine.json")["failed"]
    assert failed["stage"] == "train"
    assert "not finite" in failed["error"]
    assert str(tmp_path) not in json.dumps(failed)
    assert attack(tmp_path, "--stage", "attack") == 1
    assert "no training to attack" in run_records.read(tmp_path / "results" / "mine.json")["failed"]["error"]


NETWORK = ["--prefix", "fashion-mini-cnn", "--model.normalization", "group", "--optim.lr", "0.05", "--optim.clip", "1"]


def test_one_update_on_two_networks(tmp_path, monkeypatch):
    results = tmp_path / "results"
    words = ["--work", tmp_path / "work", "--out", results, *NETWORK, *SMALL[:2], "--device", "cpu", "--steps", "10"]
    words += ["--radius", "0.1", "--r0", "0.2", "--count", "128", "--images", "100", "--train.burn_in", "0"]
    words += [
        "--natural-clean",
        "0.5",
        "--robust-clean",
        "0.3",
        "--robust-accuracy",
        "0.01",
        "--eval.every",
        "1",
        "--eval.steps",
        "2",
    ]
    late = [*map(str, words), "--seconds", "0"]
    assert paper.main(late) == train_and_attack.STOPPED  # a step, a checkpoint, and out of time
    assert not results.exists()
    assert paper.main([*map(str, words), "--seconds", "60"]) == 0
    content = json.loads((results / "paper-dynamics.json").read_text())
    assert [record["model"] for record in content["records"]] == ["natural", "partially robust"]
    rows = list(csv.DictReader((results / "paper-dynamics.csv").read_text().splitlines()))
    for record in content["records"]:
        own = [row for row in rows if row["model"] == record["model"]]
        assert len(own) == record["dynamics"]["counts"]["counted"] > 0
        for method in ("at", "dyart"):
            below = record["dynamics"]["methods"][method]["below_radius"]
            vulnerable = [float(row[method]) for row in own if float(row["margin"]) < 0.1]
            assert abs(len(vulnerable) - below["count"]) <= 1  # margins are written with five digits
            assert abs(sum(speed < 0 for speed in vulnerable) - below["negative"]) <= 1
        assert record["methods"]["dyart"]["settings"]["alpha"] == 8
    monkeypatch.setattr(figures, "RESULTS", results)
    clouds = figures.clouds()
    assert list(clouds["natural"]) == ["at", "dyart", "AT (paper)"]
    assert figures.DRAWINGS["dynamics-scatter"].draw() is not None
    assert figures.DRAWINGS["dynamics-bars"].draw() is not None
    monkeypatch.setattr(dynamics, "read", lambda path: content if path.name.startswith("paper-d") else STATED)
    assert "not run yet" not in dynamics.one_update()
    assert "seed 0" in dynamics.one_update_conditions()


STATED = dynamics.stated()


def test_a_whole_training_in_several_calls(tmp_path):
    words = ["--work", tmp_path / "work", "--out", tmp_path / "results", *NETWORK, *SMALL, "--radius", "0.1"]
    words += ["--iterations", "24", "--drop", "16", "--gradient-every", "4", "--search-steps", "5", "--images", "50"]
    words += ["--monitor.every", "8", "--monitor.examples", "16", "--eval.every", "1", "--train.log_every", "1"]
    words += ["--eval.steps", "2", "--eval.train_examples", "64"]
    own = ["--method.steps", "3", "--method.r0", "0.2", "--method.lam", "20"]
    call = ["dyart", *map(str, words), "--clean", "0.3", *own]
    assert whole.main([*call, "--seconds", "0"]) == train_and_attack.STOPPED
    statuses = [whole.main([*call, "--seconds", "2"])]
    while statuses[-1] == train_and_attack.STOPPED and len(statuses) < 20:
        statuses.append(whole.main([*call, "--seconds", "4"]))
    assert statuses[-1] == 0
    record = run_records.read(tmp_path / "results" / "whole-training-dyart.json")
    assert record["epochs"] == 3
    assert record["curves"]["negative_share"]["step"] == [4, 8, 12, 16, 20, 24]
    assert record["curves"]["negative_share_of_step"]["step"] == [8, 16, 24]
    assert record["curves"]["robust"]["step"] == [8, 16, 24]
    assert record["settings"]["method"]["lam"] == 20
    assert record["test"]["test_images"] == 50
    steps = [line for line in read_metrics(tmp_path / "work" / "dyart" / "metrics.jsonl") if line["kind"] == "step"]
    rates = {line["step"]: line["lr"] for line in steps}
    assert [rates[step] for step in (16, 17)] == pytest.approx([0.05, 0.005])
