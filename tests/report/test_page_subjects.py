"""Records of several networks, or of several data sets, in one folder are not shown as of one."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from page_cases import Outline, evaluation, write_run

from dyart.cli import main
from dyart.models import build, described
from dyart.report.page import write_page
from dyart.report.page.run import read_runs
from dyart.report.page.subject import other_data, other_network, subject_of

SOURCE = """\
import torch
def net(classes, shape):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, classes))
def flat(classes, shape):
    return torch.nn.Linear(shape[0], classes)
"""
TINY = (
    "--data.name three-blobs --model.name mlp --train.epochs 1 --train.batch_size 64 --data.limit 128 --data.crop 0 "
    "--eval.steps 2 --train.loggers csv --train.device cpu --quiet"
)
NAMED = ("--model", "subjects_mine:net", "--device", "cpu")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a network, and two sets in files of one name."""
    (tmp_path / "subjects_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    for folder, seed in (("a", 0), ("b", 1), ("moved", 0)):
        images = np.random.default_rng(seed).integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
        Path(folder).mkdir()
        np.savez(Path(folder, "test.npz"), test_images=images, test_labels=np.arange(20) % 2)
    return tmp_path


def measure(*words):
    """Evaluate on a/test.npz, and search for margins as the words say, into one folder."""
    common = [*NAMED, "--steps", "5"]
    data = [] if "--data" in words else ["--data", "a/test.npz"]
    assert main(["evaluate", *common, "--data", "a/test.npz", "--attack", "margins", "--out", "mine"]) == 0
    assert main(["margins", *common, *data, *words, "--out", "mine/margins.csv"]) == 0
    (run,) = read_runs([Path("mine")])
    return run


def left_out(words, name="margins.json", first="evaluation.json"):
    place = "measure it into a folder of its own, with --out"
    return [f"{name} is not of what {first} is of ({words}), and is left out: {place}"]


def test_margins_of_the_same_are_shown(here):
    run = measure()
    assert (run.damaged, run.searched) == ([], "")
    assert "found" in run.margins, "a column of margins.csv, and of no evaluation's file"
    assert measure("--data", "moved/test.npz").damaged == [], "data may be moved"
    assert "found" in read_runs([here / "mine"])[0].margins


@pytest.mark.parametrize(
    ("words", "differ"),
    [
        (("--data", "b/test.npz"), "data b/test.npz instead of a/test.npz"),
        (("--mean", "0.5", "--std", "0.25"), "--mean 0.5,0.5,0.5 instead of none"),
    ],
)
def test_margins_of_another_network_or_of_other_data_are_not(here, words, differ):
    run = measure(*words)
    assert run.damaged == left_out(differ)
    assert "found" not in run.margins, "those of the evaluation"
    text = Outline(write_page([here / "mine"]).read_text(encoding="utf-8")).text
    assert left_out(differ)[0] in text


def test_an_evaluation_on_data_of_the_same_name_is_told_beside_the_runs_own(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "evaluation-fog").mkdir()
    for place, data, digest in ((folder, "fashion-mini", "1"), (folder / "evaluation-fog", "fog/fashion-mini", "2")):
        record = evaluation() | {"data": data, "data_digest": digest}
        (place / "evaluation.json").write_text(json.dumps(record | ({"clean": 0.5} if digest == "2" else {})))
    (folder / "evaluation.json").rename(folder / "kept.json")
    assert read_runs([folder])[0].accuracy.clean.value == 0.5, "nothing says which data the run's own are"
    (folder / "kept.json").rename(folder / "evaluation.json")
    text = Outline(write_page([folder]).read_text(encoding="utf-8")).text
    assert "also evaluated in L∞ on 200 test images of fog/fashion-mini (evaluation-fog; APGD): clean 50.0" in text


def test_evaluations_and_speeds_of_another_network_are_left_out_with_their_files(tmp_path):
    folder = write_run(tmp_path / "all")
    (folder / "config.yaml").unlink()
    (folder / "evaluation.json").unlink()
    records = {
        "margins.json": {"settings": {"model": "my:net", "network": "1"}},
        "dynamics.json": json.loads((folder / "dynamics.json").read_text()) | {"digest": "2"},
        "evaluation-other/evaluation.json": evaluation() | {"model": "my:other"},
    }
    (folder / "evaluation-other").mkdir()
    for name, record in records.items():
        (folder / name).write_text(json.dumps(record))
    (run,) = read_runs([folder])
    assert [words.split(" is of (")[1].split(")")[0] for words in run.damaged] == [
        "other weights",
        "the network my:other instead of my:net",
    ]
    assert (run.accuracy, run.others, run.dynamics, run.shares, run.pictures) == (None, [], None, None, None)
    assert run.margins is not None


def test_what_a_record_does_not_say_is_no_difference():
    own = subject_of({"model": "my:net", "mean": [0.5], "std": [0.1], "asked": {"network": "1"}, "data": "a/x"})
    known = subject_of({"settings": {"run_or_checkpoint": "w.safetensors"}, "data": "moved/x", "data_digest": "1"})
    assert (other_network(known, own), other_data(known, own)) == ("", "")
    same = subject_of({"settings": {"model": "my:net", "mean": [0.5], "std": [0.1], "network": "1"}})
    assert (other_network(same, own), other_data(same, own)) == ("", "")
    arguments = subject_of({"named": {"model": "my:net", "mean": [0.5], "std": [0.1], "model_args": {"width": 2}}})
    assert other_network(arguments, own) == "--model-args width=2 instead of none"


def test_dynamics_of_a_run_are_not_those_of_another_network():
    of_run = subject_of(
        {"methods": {}, "network": "cnn", "checkpoint": "runs/a/checkpoints/epoch-0001", "weights": "raw"}
    )
    assert other_network(of_run, subject_of({"settings": {"model": "my:net"}})) == "the network cnn instead of my:net"
    assert other_network(of_run, subject_of({"settings": {"run_or_checkpoint": "runs/a"}})) == ""


@pytest.mark.parametrize("damage", [{"asked": "x"}, {"settings": ["x"]}, {"named": 3}, {"mean": 0.5}, {"robust": "x"}])
def test_a_damaged_record_does_not_end_the_page(tmp_path, damage):
    folder = write_run(tmp_path / "all")
    (folder / "config.yaml").unlink()
    for name in ("evaluation.json", "margins.json", "dynamics.json"):
        path = folder / name
        record = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(record | damage))
    assert write_page([folder]).is_file()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with its own evaluation, margins and speeds, as the commands leave them."""
    folder = tmp_path_factory.mktemp("subjects") / "run"
    assert main(["train", "fashion-mini-cnn-at", *TINY.split(), "--out", str(folder)]) == 0
    assert main(["margins", str(folder), "--count", "40", "--steps", "5", "--device", "cpu"]) == 0
    assert main(["dynamics", str(folder), "--count", "64", "--steps", "5", "--device", "cpu"]) == 0
    return folder


def test_the_records_of_a_training_are_of_one_network_without_its_configuration(trained, tmp_path):
    """Its evaluation has the digest of the weights under the word that its dynamics have the network's name under."""
    records = {name: json.loads((trained / name).read_text()) for name in ("evaluation.json", "dynamics.json")}
    of_evaluation, of_dynamics = map(subject_of, records.values())
    assert (of_evaluation.model, of_evaluation.weights) == ("", records["evaluation.json"]["network"])
    assert (of_dynamics.model, of_dynamics.weights) == ("mlp", "")
    assert other_network(subject_of({"asked": {"network": "1"}}), of_evaluation) == "other weights"
    copy = shutil.copytree(trained, tmp_path / "copy", ignore=shutil.ignore_patterns("config.yaml", "checkpoints"))
    (run,) = read_runs([copy])
    assert run.damaged == []
    assert None not in (run.accuracy, run.margins, run.dynamics, run.shares)


def measured_into(folder, *named):
    """Write evaluation, margins and speeds of a network that is named into a folder."""
    words = [*map(str, named), "--device", "cpu", "--data", "three-blobs"]
    few = ["--count", "40", "--steps", "5"]
    for place in (folder, folder / "evaluation-mine"):
        assert main(["evaluate", *words, *few, "--attack", "margins", "--fresh", "--out", str(place)]) == 0
    assert main(["margins", *words, *few, "--out", str(folder / "margins.csv")]) == 0
    assert main(["dynamics", *words, "--count", "64", "--steps", "5", "--out", str(folder)]) == 0


RECORDS = ("evaluation.json", "margins.json", "dynamics.json", "evaluation-mine/evaluation.json")


@pytest.mark.parametrize("way", ["factory", "own name", "file"])
def test_records_of_no_run_are_left_out_of_a_runs_folder(here, trained, way):
    folder = shutil.copytree(trained, here / "run")
    assert read_runs([folder])[0].damaged == []
    described.save(build("mlp", 3, (2,)).state_dict(), "other.safetensors", described.Description("mlp", 3, (2,)))
    named = {
        "factory": (["--model", "subjects_mine:flat"], "the network subjects_mine:flat instead of mlp"),
        "own name": (["--model", "mlp", "--weights", "other.safetensors"], "the weights other.safetensors"),
        "file": (["other.safetensors"], "the weights other.safetensors"),
    }
    words, why = named[way]
    measured_into(folder, *words)
    (run,) = read_runs([folder])
    assert run.damaged == [line for name in RECORDS for line in left_out(why, name, "config.yaml")]
    assert (run.accuracy, run.others, run.margins, run.dynamics, run.shares, run.pictures) == (None, [], *[None] * 4)
    assert run.data_digest == ""
    assert left_out(why, "margins.json", "config.yaml")[0] in Outline(write_page([folder]).read_text("utf-8")).text


def test_a_runs_own_weights_are_known_in_a_file(here, trained):
    folder = shutil.copytree(trained, here / "run")
    assert main(["export", str(folder)]) == 0
    words = [str(folder / "export" / "model.safetensors"), "--data", "three-blobs", "--steps", "5", "--device", "cpu"]
    assert main(["margins", *words, "--out", str(folder / "margins.csv")]) == 0
    assert main(["dynamics", *words, "--out", str(folder)]) == 0
    (run,) = read_runs([folder])
    assert run.damaged == []
    assert "found" in run.margins
    assert run.shares is not None
