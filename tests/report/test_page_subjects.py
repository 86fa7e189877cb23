"""Records of several networks, or of several data sets, in one folder are not shown as of one."""

import json
from pathlib import Path

import numpy as np
import pytest
from page_cases import Outline, evaluation, write_run

from dyart.cli import main
from dyart.report.page import write_page
from dyart.report.page.run import read_runs
from dyart.report.page.subject import other_data, other_network, subject_of

SOURCE = """\
import torch
def net(classes, shape):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, classes))
"""
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


def left_out(words):
    place = "measure it into a folder of its own, with --out"
    return [f"margins.json is not of what evaluation.json is of ({words}), and is left out: {place}"]


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
    of_run = subject_of({"network": "cnn", "checkpoint": "runs/a/checkpoints/epoch-0001", "weights": "raw"})
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
