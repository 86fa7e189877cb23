"""``dyart dynamics`` on networks that were not trained here: named by --model, or by a file that says what it is of."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dynamics_cases import BIAS, LINEAR, MOONS, WEIGHT, dynamics, go_there, record, rows
from torch import nn

from dyart.cli import main
from dyart.cli.parsers import with_values
from dyart.data import load
from dyart.dynamics.settings import choose, usual_radius
from dyart.engine.run import train
from dyart.evaluation.examples import model_digest
from dyart.recipes import resolve
from dyart.recipes.load import check
from dyart.report.page.run import read_runs
from dyart.report.page.write import write_page


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working directory with networks, and weights of a linear one."""
    return go_there(tmp_path, monkeypatch)


def margins(weight: torch.Tensor, bias: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the L-inf distances of a linear network with two classes, signed."""
    sign = 1.0 - 2.0 * labels
    return sign * (inputs @ (weight[0] - weight[1]) + bias[0] - bias[1]) / (weight[0] - weight[1]).abs().sum()


def test_the_speed_is_the_derivative_of_the_margin_along_the_step(capsys, here):
    points = np.random.RandomState(0).rand(80, 2).astype(np.float32)
    labels = (torch.from_numpy(points) @ WEIGHT.T + BIAS).argmax(1).numpy()
    np.savez("set.npz", train_images=points, train_labels=labels, test_images=points, test_labels=labels)
    words = ["--data", "set.npz", "--count", "64", "--batch-size", "32", "--methods", "natural"]
    status, out, err = dynamics(capsys, *LINEAR, *words)
    assert status == 0, err
    table, data = rows("dynamics-w"), load("set.npz").train
    assert len(table) == 64, "all are classified correctly"
    for number in ("0", "1"):
        batch = [row for row in table if row["batch"] == number]
        index = [int(row["index"]) for row in batch]
        x, y = torch.from_numpy(data.images[index]), torch.from_numpy(data.labels[index])
        assert [int(row["label"]) for row in batch] == y.tolist()
        weight, bias = WEIGHT.clone().requires_grad_(), BIAS.clone().requires_grad_()
        F.cross_entropy(x @ weight.T + bias, y).backward()
        point = (WEIGHT, BIAS)
        direction = (-weight.grad, -bias.grad)
        now, speed = torch.func.jvp(lambda w, b, x=x, y=y: margins(w, b, x, y), point, direction)
        # Beyond the box a margin is longer than that of the plane.
        inside = (now > 0) & (x - now[:, None] > 0).all(1) & (x + now[:, None] < 1).all(1)
        assert inside.sum() > 5
        found = torch.tensor([[float(row["margin"]), float(row["speed_natural"])] for row in batch])
        torch.testing.assert_close(found[inside, 0], now[inside], rtol=0.01, atol=1e-5)
        torch.testing.assert_close(found[inside, 1], speed[inside], rtol=0.02, atol=1e-4)
    assert "dynamics_mine:net on set.npz, weights of w.pt" in out
    assert "dynamics-w/dynamics-scatter.png" in out
    assert Path("dynamics-w/dynamics-bars.png").stat().st_size > 2000


def test_the_record_says_what_was_measured_and_how(capsys, here):
    words = ["--count", "40", "--batch-size", "20", "--mean", "0.1,0.2", "--std", "1,2", "--model-args", "classes=2"]
    status, out, err = dynamics(capsys, *MOONS, *words, "--seed", "3", "--at.steps", "2", "--out", "there")
    assert status == 0, err
    stored = record("there")
    named = {"model": "dynamics_mine:net", "weights": "w.pt", "model_args": {"classes": 2}}
    assert stored["named"] == named | {"mean": [0.1, 0.2], "std": [1.0, 2.0]}
    assert (stored["checkpoint"], stored["weights"], stored["split"]) == (None, "of a file", "train")
    assert (stored["batches"], stored["batch_size"], stored["seed"]) == (2, 20, 3)
    assert (stored["norm"], stored["radius_text"], stored["step"]) == ("linf", "8/255", "-grad L")
    assert list(stored["methods"]) == ["at", "dyart"]
    assert stored["methods"]["at"]["settings"]["steps"] == 2
    assert stored["methods"]["at"]["settings_from"] == "the method's defaults for radius 8/255, changed: steps"
    assert stored["methods"]["dyart"]["settings_from"] == "the method's defaults for radius 8/255"
    assert "the run" not in out


def test_looking_at_training_mode_leaves_the_statistics_of_batch_norm_as_they_are(capsys, here):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    network(5.0 * torch.rand(64, 2))  # statistics unlike those of the data
    torch.save(network.state_dict(), "w.pt")
    words = ["--model", "dynamics_mine:normed", "--weights", "w.pt", "--data", "moons", "--count", "32"]
    assert dynamics(capsys, *words, "--methods", "natural")[0] == 0
    assert record("dynamics-w")["digest"] == model_digest(network)


def test_in_l1_there_is_dyart_and_what_does_not_know_it_is_named(capsys, here):
    words = [*MOONS, "--count", "32", "--batch-size", "32", "--norm", "l1", "--radius", "0.3"]
    status, _, err = dynamics(capsys, *words, "--methods", "dyart")
    assert status == 0, err
    settings = record("dynamics-w")["methods"]["dyart"]["settings"]
    assert (settings["norm"], settings["r0"]) == ("l1", pytest.approx(0.6))
    status, _, err = dynamics(capsys, *words)
    assert status == 2
    assert "at works in linf, the search for margins (--norm) in l1, which it does not know: leave it out" in err


def test_the_advice_on_norms_names_a_setting_of_the_method(capsys, here):
    status, _, err = dynamics(capsys, *MOONS, "--dyart.norm", "l2", "--methods", "dyart")
    assert status == 2
    assert "--dyart.norm linf --dyart.r0 0.5" in err


def test_one_mean_is_that_of_all_channels(capsys, here):
    points = np.random.RandomState(0).randint(0, 256, (40, 4, 4, 3), np.uint8)
    np.savez("colour.npz", test_images=points, test_labels=np.arange(40) % 2)
    words = ["--model", "dynamics_mine:pictures", "--data", "colour.npz", "--methods", "natural", "--count", "16"]
    status, _, err = dynamics(capsys, *words, "--batch-size", "16", "--mean", "0.5", "--std", "0.25")
    assert status == 0, err
    status, _, err = dynamics(capsys, *words, "--batch-size", "16", "--mean", "127.5", "--std", "127.5")
    assert status == 2
    assert "write --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5" in err
    status, _, err = dynamics(capsys, *words, "--mean", "0.5,0.5", "--std", "0.5,0.5")
    assert "--mean has 2 numbers, images of colour.npz have 3 channels" in err


@pytest.mark.parametrize("words", [["--at.radius", "8"], ["--dyart.r0=16"]])
def test_a_length_of_a_method_larger_than_the_box_is_refused(capsys, here, words):
    status, _, err = dynamics(capsys, *MOONS, *words)
    assert status == 2
    assert words[0].split("=")[0] in err
    assert "/255" in err


def test_the_next_command_names_the_network_in_full(capsys, here):
    words = ["--model-args", "classes=2", "--mean", "0.1,0.2", "--std", "1,2"]
    assert dynamics(capsys, *MOONS, *words, "--count", "32", "--methods", "natural", "--out", "there")[0] == 0
    (found,) = read_runs([Path("there")])
    command = found.command("evaluate")
    assert "--model-args classes=2 --mean 0.1,0.2 --std 1.0,2.0" in command
    assert main([*shlex.split(command)[1:], "--attack", "clean", "--device", "cpu"]) == 0
    Path("there/dynamics.json").unlink()
    assert read_runs([Path("there")])[0].command("evaluate") == command, "from the record of an evaluation"


def test_a_runs_record_that_was_put_elsewhere_names_its_checkpoint(capsys, here):
    brief = {"data.limit": 64, "train.epochs": 1, "train.batch_size": 32, "eval.attack": "none", "out": "run"}
    train(resolve("fashion-mini-cnn-natural", brief))
    assert dynamics(capsys, "run", "--count", "16", "--methods", "natural", "--out", "there")[0] == 0
    (found,) = read_runs([Path("there")])
    assert str(found.config["model.weights"]).startswith("run/checkpoints/epoch-")
    page = write_page([Path("there")]).read_text()
    assert "A network with the weights run/checkpoints/epoch-" in page
    assert "--model NAME" not in page


def test_radius_and_settings_are_those_of_the_recipes_for_the_data(capsys, here):
    words = ["--model", "dynamics_mine:pictures", "--data", "fashion-mini", "--count", "16", "--batch-size", "16"]
    status, _, err = dynamics(capsys, *words, "--methods", "at", "--norm", "l2")
    assert status == 0, err
    stored = record("dynamics-dynamics_mine-pictures")
    assert (stored["radius_text"], stored["weights"]) == ("1", "as made")
    assert stored["methods"]["at"]["settings_from"] == "the recipe fashion-mini-cnn-l2-at"
    assert stored["methods"]["at"]["settings"]["norm"] == "l2"
    assert "no --weights: the network is measured with the weights it is made with" in err
    assert Path("dynamics-dynamics_mine-pictures/dynamics.npz").is_file(), "pictures for a page"


def test_recipes_are_of_the_norm_that_is_asked_for():
    assert str(usual_radius("fashion-mini", "linf")) == "0.1"
    assert float(usual_radius("cifar10", "l2")) == 0.5
    assert str(usual_radius("cifar10", "linf")) == "8/255"
    assert usual_radius("cifar10", "l1") is None
    assert usual_radius("moons", "linf") is None
    other = resolve("fashion-mini-cnn-l2-dyart")
    assert choose("at", other).origin == "the recipe fashion-mini-cnn-l2-at"
    trades = choose("trades", other)
    assert (trades.origin, trades.method.norm) == ("the method's defaults for radius 1", "l2")
    assert choose("natural", other).origin == "the recipe fashion-mini-cnn-natural", "it has no norm"


def test_examples_of_data_in_one_part_are_called_by_their_rows(capsys, here):
    points = load("moons").train
    np.savez("one.npz", images=points.images[:100], labels=points.labels[:100])
    for split in ("train", "test"):
        words = [*LINEAR, "--data", "one.npz", "--count", "100", "--batch-size", "10", "--methods", "natural"]
        status, _, err = dynamics(capsys, *words, "--split", split, "--out", split)
        assert status == 0, err
        assert "no test part was given" in err
        assert "only these are measured" not in err
        index = [int(row["index"]) for row in rows(split)]
        assert [int(row["label"]) for row in rows(split)] == points.labels[index].tolist()
    parts = [{int(row["index"]) for row in rows(split)} for split in ("train", "test")]
    assert not parts[0] & parts[1]
    assert max(parts[0]) > 85 > 80 >= len(parts[0])


def test_evaluations_margins_and_dynamics_know_data_by_one_digest(capsys, here):
    """By it a report tells whether two records are of the same data."""
    points, found = load("moons").test, {}
    for name, first in (("a", 0), ("b", 40)):
        chosen = slice(first, first + 40)
        np.savez(f"{name}.npz", test_images=points.images[chosen], test_labels=points.labels[chosen])
        words = [*LINEAR, "--data", f"{name}.npz", "--device", "cpu"]
        assert main(["evaluate", *words, "--attack", "clean", "--count", "20", "--out", f"{name}-e"]) == 0
        assert main(["margins", *words, "--steps", "5", "--out", f"{name}-m/margins.csv"]) == 0
        assert dynamics(capsys, *words[:-2], "--methods", "natural", "--out", f"{name}-d")[0] == 0
        records = (f"{name}-e/evaluation.json", f"{name}-m/margins.json", f"{name}-d/dynamics.json")
        found[name] = {json.loads(Path(record).read_text())["data_digest"] for record in records}
    assert [len(digests) for digests in found.values()] == [1, 1]
    assert found["a"] != found["b"]


def test_a_test_part_alone_is_measured_where_nothing_else_is_asked_for(capsys, here):
    points = load("moons").test
    np.savez("test.npz", test_images=points.images[:40], test_labels=points.labels[:40])
    words = [*LINEAR, "--data", "test.npz", "--batch-size", "20", "--methods", "natural"]
    status, out, err = dynamics(capsys, *words)
    assert status == 0, err
    assert "test.npz has no training part: its test examples are measured" in err
    assert "40 test examples in 2 batches" in out
    assert record("dynamics-w")["split"] == "test"
    status, _, err = dynamics(capsys, *words, "--split", "train", "--out", "there")
    assert status == 2
    assert "test.npz has no training part: leave --split train out" in err
    assert not Path("there").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "name a run, a checkpoint or a published model, or a network with --model"),
        (["--weights", "w.pt"], "name a run, a checkpoint"),
        (["w.pt"], "w.pt does not say which network it belongs to: name that with --model NAME"),
        (LINEAR, "--model needs --data NAME"),
        ([*LINEAR, "--data", "mons"], "did you mean 'moons'?"),
        (["--model", "dynamics_mine:nett", "--data", "moons"], "did you mean 'net'?"),
        (["--model", "dynamics_mine:net", "--weights", "v.pt", "--data", "moons"], "there is no file v.pt"),
        (["--model", "dynamics_mine:net", "--data", "three-blobs", "--weights", "w.pt"], "the data has 3"),
        ([".", "--model", "dynamics_mine:net", "--data", "moons"], "both name a network: leave one of them out"),
        (["w.pt", "v.pt", "--model", "dynamics_mine:net", "--data", "moons"], "--model names one network"),
        ([*MOONS, "--mean", "0.5,0.5"], "--mean and --std go together"),
        ([*MOONS, "--averaged"], "--averaged belongs to a run"),
        ([*MOONS, "--update", "optimizer"], "--update optimizer belongs to a run"),
        ([*MOONS, "--norm", "l2"], "--norm l2 needs --radius: the usual one is of linf"),
        ([*MOONS, "--radius", "8"], "did you mean 8/255?"),
        ([*MOONS, "--count", "0"], "--count must be at least 1, got 0"),
        ([*MOONS, "--methods", "dyrat"], "did you mean 'dyart'"),
        ([*MOONS, "--at.radus", "1"], "did you mean at.radius"),
        ([*MOONS, "--at.radius"], "--at.radius needs a value"),
        ([*MOONS, "--at.norm", "l2"], "at works in l2, the search for margins (--norm) in linf: give it the same"),
        (["--model", "dynamics_mine:flat", "--data", "moons"], "exactly zero for every example"),
        (["--model", "dynamics_mine:frozen", "--data", "moons"], "no parameter to train"),
        (["--model", "dynamics_mine:twofold", "--data", "moons"], "fails in training mode, in which a step is taken"),
        (["--model", "dynamics_mine:normed", "--data", "moons", "--batch-size", "1"], "on a batch of 1: Expected more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_said_before_any_work(capsys, here, monkeypatch, words, expected):
    monkeypatch.setattr("dyart.cli.dynamics.measure", lambda *_, **__: pytest.fail("measured"))
    last = words[-1:] == ["--at.radius"]
    status = main(["dynamics", *(["--device", "cpu"] if last else []), *words, *([] if last else ["--device", "cpu"])])
    err = capsys.readouterr().err
    assert status == 2
    assert expected in err
    assert expected in err.splitlines()[-1]
    assert {path.name for path in here.iterdir()} <= {"dynamics_mine.py", "w.pt", "__pycache__"}, "nothing is left"


@pytest.mark.parametrize("words", [["--batch-size", "0"], ["--norm", "l3"]], ids=" ".join)
def test_values_that_cannot_be_meant_are_refused(capsys, here, words):
    with pytest.raises(SystemExit):
        dynamics(capsys, *MOONS, *words)
    assert words[0] in capsys.readouterr().err


def test_values_of_settings_are_no_places_of_runs():
    words = ["dynamics", "--at.radius", "0.1", "run", "--dyart.lam=3", "there", "--at.steps", "--seed", "-1"]
    joined = ["dynamics", "--at.radius=0.1", "run", "--dyart.lam=3", "there", "--at.steps", "--seed", "-1"]
    assert with_values(words) == joined
    assert with_values(["--at.radius", "-1", "run"]) == ["--at.radius=-1", "run"]


def test_a_run_is_measured_as_it_was_trained(capsys, tmp_path):
    settings = {"data": {"name": "moons", "limit": 400}, "model": {"name": "mlp"}, "method": {"name": "natural"}}
    brief = {"epochs": 8, "batch_size": 32, "device": "cpu", "loggers": []}
    run = tmp_path / "run"
    train(check({**settings, "train": brief, "eval": {"attack": "none", "steps": 1}, "out": str(run)}))
    for words in (["--norm", "l2"], ["--data", "moons"], ["--batch-size", "16"]):
        status, _, err = dynamics(capsys, run, *words)
        assert status == 2
        assert f"{words[0]}: a run is measured as it was trained. dyart export {run} writes" in err
    status, _, err = dynamics(capsys, run, "--weights", "w.pt")
    assert (status, "--weights belong to --model, which is missing" in err) == (2, True)
    # What it advises: the same network from a file, and both in one picture.
    assert main(["export", str(run)]) == 0
    file = run / "export" / "model.safetensors"
    words = ["--count", "32", "--methods", "natural", "--radius", "0.1", "--out", tmp_path / "out"]
    status, out, err = dynamics(capsys, run, file, *words, "--data", "moons")
    assert (status, "--data: a run is measured" in err) == (2, True)
    status, out, err = dynamics(capsys, run, file, *words)
    assert status == 0, err
    assert f"mlp on moons, weights of {file}" in out
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"run", "model"}
    assert ">model<" in (tmp_path / "out" / "dynamics-bars.svg").read_text()
    assert dynamics(capsys, run, file, *words)[0] == 0, "figures of records in the folders beside them are its own"


def test_a_page_shows_what_was_measured_of_a_network(capsys, here):
    assert dynamics(capsys, *MOONS, "--count", "64", "--norm", "l2", "--radius", "0.3")[0] == 0
    (run,) = read_runs([here / "dynamics-w"])
    assert (run.trained, run.norm, str(run.radius), run.has_radius) == (False, "l2", "0.3", True)
    again = run.command("dynamics")
    assert again == f"dyart dynamics --model dynamics_mine:net --weights w.pt --data moons --norm l2 --out {run.folder}"
    page = write_page([here / "dynamics-w"]).read_text(encoding="utf-8")
    assert "Network dynamics_mine:net with the weights w.pt on moons: measured here, not trained here." in page
    assert 'id="dynamics"' in page
    assert 'id="training"' not in page
    assert "nothing was measured there" in _refused(capsys, here)


def _refused(capsys, folder: Path) -> str:
    (folder / "empty").mkdir()
    assert main(["report", str(folder / "empty")]) == 2
    return capsys.readouterr().err
