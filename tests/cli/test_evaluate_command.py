"""``dyart evaluate`` as a person uses it: a run, a network of their own, a part of the test set, a stop on the way."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dyart.cli import main
from dyart.data import load
from dyart.engine.stored import checkpoint_of
from dyart.evaluation.journal import FILE as JOURNAL
from dyart.models import build

TINY = ["--data.name", "three-blobs", "--model.name", "mlp", "--train.epochs", "2", "--train.batch_size", "256",
        "--data.crop", "0", "--eval.steps", "2", "--train.loggers", "csv", "--train.device", "cpu"]  # fmt: skip


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "fashion-mini-cnn-at", *TINY, "--out", str(folder), "--quiet"]) == 0
    return folder


def test_help_explains_the_attacks(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for part in ("autoattack", "--strict", "--fresh", "--radii", "goes on where it was", "one boundary search"):
        assert part in words


def test_a_run_is_evaluated_into_its_own_folder(capsys, finished):
    before = json.loads((finished / "evaluation.json").read_text())
    status, out, err = run(capsys, "evaluate", finished, "--attack", "margins", "--device", "cpu")
    assert (status, err) == (0, "")
    stored = json.loads((finished / "evaluation.json").read_text())
    assert stored["clean"] == before["clean"]
    assert list(stored["robust"]) == list(before["robust"]), "the run's own radii"
    assert all(stored["robust"][r] <= before["robust"][r] + 0.01 for r in stored["robust"])
    assert stored["seconds_per_epoch"] == before["seconds_per_epoch"]
    assert (stored["data"], stored["checkpoint"], stored["tier"]) == ("three-blobs", "best", "margins")
    assert stored["images"] == before["images"]
    with open(finished / "per_example.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == stored["images"]
    for radius, share in stored["robust"].items():
        assert any(line.startswith(radius) and f"{100 * share:.2f}" in line for line in out.splitlines())


def test_a_part_of_the_test_set_does_not_replace_the_record_of_the_whole(capsys, finished):
    before = (finished / "evaluation.json").read_text()
    status, out, _ = run(capsys, "evaluate", finished, "--attack", "pgd", "--count", 40, "--radii", "0.05,20/255")
    assert status == 0
    assert (finished / "evaluation.json").read_text() == before
    stored = json.loads((finished / "evaluation-40" / "evaluation.json").read_text())
    assert stored["images"] == 40
    assert list(stored["robust"]) == ["0.05", "20/255"]
    assert str(finished / "evaluation-40" / "per_example.csv") in out


def test_the_same_command_goes_on_after_a_stop(capsys, finished, tmp_path):
    command = ["evaluate", finished, "--attack", "margins", "--count", 60, "--batch-size", 20, "--out", tmp_path]
    assert run(capsys, *command)[0] == 0
    whole = json.loads((tmp_path / "evaluation.json").read_text())
    journal = tmp_path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]))
    status, _, err = run(capsys, *command, "--seed", 1)
    assert status == 2
    assert "--fresh" in err
    assert err.count("\n") == 1
    assert run(capsys, *command)[0] == 0
    assert json.loads((tmp_path / "evaluation.json").read_text())["robust"] == whole["robust"]
    assert journal.read_bytes().splitlines(keepends=True)[: len(lines) - 2] == lines[:-2], "what was done stays"
    assert run(capsys, *command, "--seed", 1, "--fresh")[0] == 0


def test_a_network_of_ones_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "mlp", "--data", "three-blobs", "--attack", "pgd", "--count", 30, "--radii", "0.01"]
    status, out, _ = run(capsys, "evaluate", *words, "--device", "cpu")
    assert status == 0
    first = tmp_path / "evaluation-mlp-30" / "evaluation.json"
    assert first.is_file()
    assert "30 examples" in out
    # Another network of that name, or another attack, does not take its place: the weights are drawn anew every time.
    kept = first.read_text()
    status, out, _ = run(capsys, "evaluate", *words, "--device", "cpu")
    assert status == 0
    assert first.read_text() == kept
    assert json.loads((tmp_path / "evaluation-mlp-30-pgd" / "evaluation.json").read_text())["images"] == 30
    assert f"{first.relative_to(tmp_path)} is of another evaluation, and stays" in out
    assert run(capsys, "evaluate", *words, "--device", "cpu", "--fresh")[0] == 0
    assert first.read_text() != kept


def test_the_same_command_has_one_record_and_another_one_of_its_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(build("mlp", 3, (2,), seed=0).state_dict(), "my weights.pt")
    words = ["--model", "mlp", "--weights", "my weights.pt", "--data", "three-blobs", "--count", 30, "--device", "cpu"]
    for radii in ("0.01", "0.01", "0.02", "0.02", "0.03"):
        assert run(capsys, "evaluate", *words, "--attack", "pgd", "--radii", radii)[0] == 0
    radii = {
        place.parent.name: list(json.loads(place.read_text())["robust"]) for place in tmp_path.glob("*/evaluation.json")
    }
    name = "evaluation-my-weights-30"
    assert radii == {name: ["0.01"], f"{name}-pgd": ["0.02"], f"{name}-pgd-2": ["0.03"]}


@pytest.mark.parametrize("again", ["0.02,0.01", "0.01,0.02,0.02", "1e-2,0.020"])
def test_radii_in_another_order_or_spelling_are_the_same(capsys, tmp_path, monkeypatch, again):
    monkeypatch.chdir(tmp_path)
    torch.save(build("mlp", 3, (2,), seed=0).state_dict(), "w.pt")
    words = [
        "evaluate",
        "--model",
        "mlp",
        "--weights",
        "w.pt",
        "--data",
        "three-blobs",
        "--count",
        30,
        "--device",
        "cpu",
    ]
    words += ["--attack", "pgd"]
    assert run(capsys, *words, "--radii", "0.01,0.02")[0] == 0
    for more in ([], ["--out", "evaluation-w-30"]):
        status, out, _ = run(capsys, *words, "--radii", again, *more)
        assert status == 0
        assert "it was finished before, and nothing was attacked again" in out
    assert [place.name for place in tmp_path.glob("evaluation*")] == ["evaluation-w-30"]


def test_a_more_thorough_attack_on_the_same_examples_goes_on_in_their_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(build("mlp", 3, (2,), seed=0).state_dict(), "w.pt")
    words = ["evaluate", "--model", "mlp", "--weights", "w.pt", "--data", "three-blobs", "--device", "cpu"]
    words += ["--radii", "0.02", "--count", 20]
    folder = tmp_path / "evaluation-w-20"
    for attack in ("apgd", "autoattack"):
        assert run(capsys, *words, "--attack", attack)[0] == 0
        assert json.loads((folder / "evaluation.json").read_text())["tier"] == attack
    steps = [json.loads(line).get("attack") for line in (folder / "evaluation.journal.jsonl").read_text().splitlines()]
    assert steps.count("apgd-t") == steps.count("margins") == steps.count("fab-t") == 1
    assert run(capsys, *words, "--attack", "apgd")[0] == 0
    assert {place.name for place in tmp_path.glob("evaluation*")} == {folder.name, f"{folder.name}-apgd"}


def test_a_folder_that_is_named_keeps_another_evaluation_too(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(build("mlp", 3, (2,), seed=0).state_dict(), "w.pt")
    network = ["--model", "mlp", "--weights", "w.pt", "--data", "three-blobs", "--device", "cpu"]
    words = ["evaluate", *network, "--out", "here"]
    pgd = [*words, "--attack", "pgd", "--radii", "0.01", "--count", 30]
    assert run(capsys, *pgd)[0] == 0
    kept = Path("here", "evaluation.json").read_text()
    fewer = [*words, "--attack", "margins", "--radii", "0.01", "--count", 20]
    for other in ([*words, "--attack", "clean", "--count", 30], [*pgd, "--radii", "0.02"], fewer):
        status, _, err = run(capsys, *other)
        assert status == 2
        assert "is of another evaluation: choose another --out, or --fresh to replace it" in err
        assert Path("here", "evaluation.json").read_text() == kept
    assert run(capsys, *pgd)[0] == 0, "the same again"
    assert run(capsys, *fewer, "--count", 30)[0] == 0, "more thorough, and no less"
    assert run(capsys, *pgd, "--fresh")[0] == 0
    assert json.loads(Path("here", "evaluation.json").read_text())["tier"] == "pgd"


@pytest.mark.parametrize("other", [["--norm", "l2", "--radii", "0.1"], ["--radii", "0.01"]])
def test_another_norm_or_other_radii_do_not_replace_a_runs_record(capsys, finished, tmp_path, monkeypatch, other):
    monkeypatch.chdir(tmp_path)
    before = json.loads((finished / "evaluation.json").read_text())
    words = ["evaluate", finished, "--device", "cpu", "--attack", "margins"]
    status, out, _ = run(capsys, *words, *other)
    assert status == 0
    assert json.loads((finished / "evaluation.json").read_text()) == before
    assert "is of another evaluation, and stays" in out
    beside = json.loads((finished / "evaluation-margins" / "evaluation.json").read_text())
    assert list(beside["robust"]) == other[-1:]
    shutil.rmtree(finished / "evaluation-margins")


def test_a_quicker_attack_does_not_replace_a_more_thorough_one_in_a_run(capsys, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", finished, "--device", "cpu"]
    assert run(capsys, *words, "--attack", "margins")[0] == 0
    thorough = (finished / "evaluation.json").read_text()
    status, out, _ = run(capsys, *words, "--attack", "pgd")
    assert status == 0
    assert (finished / "evaluation.json").read_text() == thorough
    assert json.loads((finished / "evaluation-pgd" / "evaluation.json").read_text())["tier"] == "pgd"
    other = [*words, "--data", "other.npz", "--attack", "apgd", "--radii", "0.01", "--count", "20"]
    blobs = load("three-blobs").test
    np.savez("other.npz", test_images=blobs.images[:20], test_labels=blobs.labels[:20])
    assert run(capsys, *other)[0] == 0, "more thorough, on other data"
    assert (finished / "evaluation.json").read_text() == thorough
    assert "stays as it is" in out
    checkpoint = min((finished / "checkpoints").glob("epoch-*"))
    status, out, _ = run(capsys, "evaluate", checkpoint, "--device", "cpu", "--attack", "margins", "--count", 20)
    assert status == 0
    best = json.loads(thorough)["checkpoint"] == "best" and checkpoint == checkpoint_of(finished)
    assert str(finished / ("evaluation-20" if best else f"evaluation-{checkpoint.name}-20")) in out


def test_data_that_changed_under_its_name_is_another_evaluation(capsys, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blobs = load("three-blobs").test
    words = ["evaluate", finished, "--device", "cpu", "--data", "mine.npz", "--attack", "margins", "--radii", "0.01"]
    words += ["--out", "there"]
    np.savez("mine.npz", test_images=blobs.images[:20], test_labels=blobs.labels[:20])
    assert "finished before" not in run(capsys, *words)[1]
    first = Path("there/evaluation.json").read_text()
    assert "it was finished before, and nothing was attacked again" in run(capsys, *words)[1]
    np.savez("mine.npz", test_images=blobs.images[:20], test_labels=(blobs.labels[:20] + 1) % 3)
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "is of another evaluation" in err
    assert Path("there/evaluation.json").read_text() == first


def test_without_an_attack_no_norm_needs_radii(capsys, finished, tmp_path):
    words = ["--attack", "clean", "--norm", "l2", "--device", "cpu", "--out", tmp_path / "l2"]
    status, out, err = run(capsys, "evaluate", finished, *words)
    assert (status, err) == (0, "")
    assert "examples, l2, no attack" in out
    stored = json.loads((tmp_path / "l2" / "evaluation.json").read_text())
    assert (stored["norm"], stored["radii"], stored["robust"]) == ("l2", {}, {})
    assert stored["clean"] == json.loads((finished / "evaluation.json").read_text())["clean"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluate"], "--model"),
        (["evaluate", "no-such-run"], "no-such-run"),
        (["evaluate", "RUN", "--count", "0"], "--count"),
        (["evaluate", "RUN", "--norm", "l2"], "--radii"),
        (["evaluate", "RUN", "--radii", "8"], "8/255"),
        (["evaluate", "RUN", "--attack", "pgd", "--norm", "l1", "--radii", "0.1"], "l1"),
        (["evaluate", "RUN", "--attack", "pgd", "--steps", "100"], "--steps: of the boundary search"),
        (["evaluate", "RUN", "--attack", "clean", "--steps", "9", "--restarts", "2"], "--steps and --restarts: of"),
    ],
)
def test_an_error_is_one_line(capsys, finished, words, expected):
    status, _, err = run(capsys, *(finished if word == "RUN" else word for word in words))
    assert status == 2
    assert expected in err
    assert err.count("\n") == 1
