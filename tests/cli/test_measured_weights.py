"""Records say which weights they are of, by the name of their checkpoint: a training may go on after them."""

import json

import pytest

from dyart.cli import main
from dyart.engine.stored import checkpoint_of

TINY = ["--data.name", "three-blobs", "--model.name", "mlp", "--train.epochs", "2", "--train.batch_size", "256",
        "--data.crop", "0", "--eval.steps", "2", "--train.loggers", "csv", "--train.device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "run"
    assert main(["train", "fashion-mini-cnn-at", *TINY, "--out", str(folder), "--quiet"]) == 0
    return folder


COMMANDS = {"margins": ["--steps", "5"], "evaluate": ["--attack", "clean"]}
FILES = {"margins": ("margins.csv", "margins.json"), "evaluate": ("", "evaluation.json")}


def record(command, out, *words):
    """Measure what the words name and return what was written."""
    place, name = FILES[command]
    words = [command, *map(str, words), *COMMANDS[command], "--count", "20", "--device", "cpu"]
    assert main([*words, "--out", str(out / place)]) == 0
    return json.loads((out / name).read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_is_recorded_by_its_best_checkpoint_and_a_checkpoint_by_itself(finished, tmp_path, command, monkeypatch):
    best = checkpoint_of(finished)
    other = next(path for path in (finished / "checkpoints").glob("epoch-*") if path != best)
    assert record(command, tmp_path / "best", finished)["checkpoint_name"] == best.name
    assert record(command, tmp_path / "other", other)["checkpoint_name"] == other.name
    monkeypatch.chdir(finished)
    assert record(command, tmp_path / "here", ".")["checkpoint_name"] == best.name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_that_is_of_no_run_has_no_checkpoint(finished, tmp_path, command):
    weights = checkpoint_of(finished) / "averaged.safetensors"
    words = ["--model", "mlp", "--weights", weights, "--data", "three-blobs"]
    assert "checkpoint_name" not in record(command, tmp_path / "mine", *words)


def test_records_of_earlier_versions_are_those_of_the_same_command(finished, capsys):
    names = {"margins": "margins.json", "evaluate": "evaluation-20/evaluation.json"}
    for command, name in names.items():
        words = [command, str(finished), *COMMANDS[command], "--count", "20", "--device", "cpu"]
        assert main(words) == 0
        stored = json.loads((finished / name).read_text())
        (finished / name).write_text(json.dumps({k: v for k, v in stored.items() if k != "checkpoint_name"}))
        capsys.readouterr()
        assert main(words) == 0
        assert "stays as it is" not in capsys.readouterr().out
        assert json.loads((finished / name).read_text())["checkpoint_name"] == checkpoint_of(finished).name
    assert not [*finished.glob("margins-*"), *finished.glob("evaluation-20-*")]


def test_training_on_keeps_a_thorough_evaluation_of_weights_that_are_still_the_best(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", "fashion-mini-cnn-at", *TINY, "--out", str(folder), "--quiet"]) == 0
    assert json.loads((folder / "evaluation.json").read_text())["tier"] == "pgd"
    assert main(["evaluate", str(folder), "--attack", "margins", "--steps", "5", "--device", "cpu"]) == 0
    thorough = (folder / "evaluation.json").read_bytes()
    best = checkpoint_of(folder)
    # Nothing is learnt: the best stays what it was.
    on = ["train", str(folder), "--resume", "--optim.lr", "1e-12"]
    capsys.readouterr()
    assert main([*on, "--train.epochs", "3"]) == 0
    said = capsys.readouterr().out
    assert checkpoint_of(folder) == best
    assert (folder / "evaluation.json").read_bytes() == thorough
    assert "is of, which stays as it is" in said
    assert "later epoch is as good by it, up to 3" in said
