"""The command line as a person uses it: help, errors on one line, training, resuming, margins, the demo."""

import contextlib
import csv
import json

import pytest
import torch
from cli_cases import TINY, run

from dyart.cli import main
from dyart.cli.demo import _make_room
from dyart.engine.stored import RunError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "fashion-mini-cnn-at", *TINY, "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.mark.parametrize("command", ["demo", "train", "margins", "data", "recipes"])
def test_every_command_has_help(capsys, command):
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    assert f"dyart {command}" in capsys.readouterr().out


def test_no_command_shows_what_there_is(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert all(command in out for command in ("demo", "train", "margins", "data", "recipes"))


def test_help_of_a_recipe_shows_its_own_values(capsys):
    status, out, _ = run(capsys, "train", "fashion-mini-cnn-dyart", "--help", "--optim.lr", "0.07")
    assert status == 0
    assert "--method.alpha" in out
    assert "default: 0.07" in " ".join(out.split())
    assert "how strongly small margins come first" in " ".join(out.split())


def test_print_config_is_a_recipe_and_runs_nothing(capsys, tmp_path):
    status, out, _ = run(capsys, "train", "cifar10-resnet18-dyart", "--method.r0", "12/255", "--print_config")
    assert status == 0
    assert "r0: 12/255" in out
    path = tmp_path / "again.yaml"
    path.write_text(out)
    assert run(capsys, "train", path, "--print_config")[1] == out
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "nothing-like-it"], "dyart recipes"),
        (["train", "fashion-mini-cnn-dyar"], "fashion-mini-cnn-dyart"),
        (["train", "fashion-mini-cnn-at", "--optim.lrr", "1"], "did you mean optim.lr?"),
        (["train", "fashion-mini-cnn-at", "--train.epochs", "many"], "train.epochs"),
        (["train", "fashion-mini-cnn-dyart", "--method.r0", "0"], "r0 must be positive"),
        (["train", "fashion-mini-cnn-dyart", "--method.norm", "l7"], "method.norm"),
        (["train", "fashion-mini-cnn-at", "--model.name", "resnt18"], "resnet18"),
        (["train", "fashion-mini-cnn-at", "--train.batch_size", "9999"], "at most 4976"),
        (["train", "fashion-mini-cnn-at", "--data.name", "cifar10"], "dyart data get cifar10"),
        (["train", "fashion-mini-cnn-at", "--data.name", "no/such/folder"], "no/such/folder"),
        (["train", "fashion-mini-cnn-at", "--device", "tpu"], "auto, cpu, cuda"),
        (["train", "fashion-mini-cnn-at", "--resume"], "nothing to resume"),
        (["train", "fashion-mini-cnn-at", "--out"], "--out needs a value"),
        (["margins"], "--model"),
        (["margins", "no-such-run"], "no-such-run"),
        (["margins", "--model", "json:loads", "--data", "moons"], "json:loads"),
        (["data", "get", "no-such-set"], "no-such-set"),
        (["recipes", "no-such-recipe"], "no-such-recipe"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_users_error_is_one_line_that_says_what_to_do(capsys, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYART_DATA", str(tmp_path / "data"))
    status, _, err = run(capsys, *words)
    assert status == 2
    assert expected in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists(), "a failed start leaves nothing behind"


def test_a_radius_far_from_the_one_it_is_judged_by_is_mentioned(capsys, tmp_path):
    words = [*TINY, "--out", tmp_path / "run", "--quiet"]
    status, out, err = run(capsys, "train", "fashion-mini-cnn-at", *words, "--method.name", "trades")
    assert status == 0, err
    assert "method.radius is 8/255 and eval.radius 0.1: is that meant?" in out + err


def test_steps_that_end_short_of_the_radius_are_mentioned(capsys, tmp_path):
    words = [*TINY, "--quiet", "--out"]
    short = ["--method.radius", "0.1", "--method.steps", "2", "--method.step_size", "2/255"]
    status, _, err = run(capsys, "train", "fashion-mini-cnn-at", *words, tmp_path / "short", *short)
    assert status == 0, err
    assert "method.steps 2 of method.step_size 2/255 lead 0.0157 far, and method.radius is 0.1" in err
    assert "Usual is --method.step_size 0.125" in err
    status, _, err = run(capsys, "train", "fashion-mini-cnn-at", *words, tmp_path / "long")
    assert status == 0, err
    assert "method.step_size" not in err


def test_a_training_without_a_recipe_is_an_error(capsys):
    status, _, err = run(capsys, "train", "--device", "cpu")
    assert status == 2
    assert "name a RECIPE, e.g. fashion-mini-cnn-dyart: dyart recipes lists all" in err


def test_help_calls_numbers_numbers(capsys):
    status, out, _ = run(capsys, "train", "fashion-mini-cnn-at", "--help")
    assert status == 0
    assert "(type: number, default: 0.9)" in out
    assert "Radius" not in out


@pytest.mark.parametrize(
    ("name", "returned", "expected"),
    [
        ("bare", "model(batch.inputs).sum()", "must return (loss, metrics)"),
        (
            "number",
            "(model(batch.inputs).sum(), {'mean': 0.5})",
            "the metric 'mean' of the method 'own_number:Own' must",
        ),
        ("rows", "(model(batch.inputs).sum(), {'mean': batch.inputs.detach()})", "must be one number, e.g. its mean"),
        ("taken", "(model(batch.inputs).sum(), {'lr': batch.inputs.mean()})", "logs 'lr', a name of the run's own"),
        ("vector", "(model(batch.inputs).sum(dim=1), {})", "must be a scalar with a gradient, got a tensor of shape"),
        ("loose", "(model(batch.inputs).sum().detach(), {})", "without a gradient (detached?)"),
    ],
)
def test_a_loss_without_metrics_is_explained(capsys, tmp_path, monkeypatch, name, returned, expected):
    (tmp_path / f"own_{name}.py").write_text(
        "from dyart.methods.natural import Natural\n"
        "class Own(Natural):\n"
        "    def loss(self, model, batch, crafted):\n"
        f"        return {returned}\n"
    )
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "--method.name", f"own_{name}:Own", "--out", "run", "--quiet"]
    status, _, err = run(capsys, "train", "fashion-mini-cnn-natural", *words)
    assert status == 2
    assert expected in err


@pytest.mark.parametrize(("moved", "said"), [("batch.inputs + 2", True), ("batch.inputs / 2", False)])
def test_points_outside_the_bounds_are_told(capsys, tmp_path, monkeypatch, moved, said):
    (tmp_path / f"points_{said}.py").write_text(
        "import torch.nn.functional as F\n"
        "from dyart.methods.at import AT\n"
        "class Own(AT):\n"
        "    def craft(self, model, batch):\n"
        f"        return {moved}\n"
    )
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "--method.name", f"points_{said}:Own", "--out", "run", "--quiet"]
    status, out, err = run(capsys, "train", "fashion-mini-cnn-at", *words)
    assert status == 0, err
    assert out.count("outside its bounds: if that is not meant, clip them") == said


def test_unknown_arguments_are_refused(capsys):
    with pytest.raises(SystemExit) as leave:
        main(["recipes", "--optim.lr", "3"])
    assert leave.value.code == 2
    assert "--optim.lr" in capsys.readouterr().err


def test_a_training_writes_its_folder(finished):
    assert {"config.yaml", "metrics.jsonl", "environment.json", "evaluation.json", "checkpoints"} <= {
        path.name for path in finished.iterdir()
    }
    measured = json.loads((finished / "evaluation.json").read_text())
    curve = list(measured["robust"].values())
    assert list(measured["robust"]) == ["0.025", "0.05", "0.1", "0.15", "0.2"]
    assert curve == sorted(curve, reverse=True)
    assert 0 <= curve[0] <= measured["clean"] <= 1


def test_a_folder_that_holds_a_run_is_not_overwritten(capsys, finished):
    before = (finished / "metrics.jsonl").read_bytes()
    status, _, err = run(capsys, "train", "fashion-mini-cnn-at", *TINY, "--out", finished)
    assert status == 2
    assert "--resume" in err
    assert "--out" in err
    assert (finished / "metrics.jsonl").read_bytes() == before
    status, _, err = run(capsys, "train", finished)
    assert status == 2
    assert "--resume" in err


def test_a_finished_run_resumes_to_itself(capsys, finished):
    before = (finished / "metrics.jsonl").read_bytes()
    assert run(capsys, "train", finished, "--resume", "--quiet")[0] == 0
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_run_is_not_resumed_under_another_configuration(capsys, finished):
    before = (finished / "config.yaml").read_bytes()
    status, _, err = run(capsys, "train", finished, "--resume", "--seed", "5", "--quiet")
    assert status == 2
    assert "seed 0 (now 5)" in err
    assert (finished / "config.yaml").read_bytes() == before
    assert run(capsys, "train", finished, "--resume", "--eval.attack", "none", "--quiet")[0] == 0


def test_radii_of_the_soft_boundary_are_refused_before_the_search(capsys, finished, tmp_path):
    words = ["margins", finished, "--boundary", "soft", "--radii", "0.1", "--out", tmp_path / "m.csv"]
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "--boundary exact" in err


def test_margins_of_a_run(capsys, finished, tmp_path):
    path = tmp_path / "m.csv"
    words = ["margins", finished, "--count", "40", "--steps", "10", "--radii", "0.02,1/10", "--out", path]
    status, out, _ = run(capsys, *words, "--device", "cpu")
    assert status == 0
    assert "40 examples" in out
    assert "1/10" in out
    with path.open() as file:
        assert len(list(csv.reader(file))) == 41


def test_no_example_is_no_measurement(capsys, finished, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("what was measured before")
    status, _, err = run(capsys, "margins", finished, "--count", "0", "--out", path)
    assert status == 2
    assert "--count" in err
    assert path.read_text() == "what was measured before"


def test_margins_cross_checked_by_another_solver(capsys, finished, tmp_path):
    path = tmp_path / "m.csv"
    words = ["margins", finished, "--count", "40", "--steps", "20", "--cross-check", "--out", path, "--device", "cpu"]
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert "cross-check on 40 examples" in out
    assert "mean ratio fast / apgd" in out
    assert (tmp_path / "m-apgd.csv").is_file()


@pytest.mark.parametrize(
    ("options", "names"), [(["--norm", "l1"], "fast / fab"), (["--solver", "apgd"], "apgd / fast")]
)
def test_the_second_opinion_is_of_a_solver_that_can_give_it(capsys, finished, tmp_path, options, names):
    words = ["margins", finished, "--count", "6", "--steps", "5", "--cross-check", "--out", tmp_path / "m.csv"]
    status, out, err = run(capsys, *words, *options, "--device", "cpu")
    assert status == 0, err
    assert f"mean ratio {names}" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cross-check", "fabb"], "must be one of 'fast', 'fab', 'apgd'"),
        (["--cross-check", "fast"], "the solver itself"),
        (["--cross-check", "apgd", "--norm", "l1"], "knows the norms"),
    ],
)
def test_no_second_opinion_is_said_before_the_first_search(capsys, finished, tmp_path, options, words):
    status, _, err = run(capsys, "margins", finished, "--out", tmp_path / "m.csv", *options)
    assert status == 2
    assert words in err
    assert not list(tmp_path.iterdir())


def test_margins_of_a_network_and_weights_of_ones_own(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\ndef net(classes, shape):\n    return torch.nn.Linear(shape[0], classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.tensor([[4.0, 0.0], [0.0, 4.0]]), "bias": torch.zeros(2)}, tmp_path / "w.pt")
    words = ["margins", "--model", "mine:net", "--data", "moons", "--count", "30", "--steps", "5", "--device", "cpu"]
    status, _, err = run(capsys, *words, "--weights", "w.pt")
    assert status == 0, err
    assert (tmp_path / "margins.csv").is_file()
    torch.save({"weight": torch.zeros(5, 2), "bias": torch.zeros(5)}, tmp_path / "bad.pt")
    status, _, err = run(capsys, *words, "--weights", "bad.pt")
    assert status == 2
    assert "do not fit" in err
    status, _, err = run(capsys, *words, "--weights", "nowhere.pt")
    assert status == 2
    assert "nowhere.pt" in err


def test_the_demo_runs_and_leaves_other_folders_alone(capsys, tmp_path):
    folder = tmp_path / "demo"
    status, out, err = run(capsys, "demo", "--quick", "--out", folder)
    assert status == 0, err
    assert all(word in out for word in ("natural", "AT", "DyART", "margin search", "PGD-20"))
    rows = json.loads((folder / "demo.json").read_text())
    assert [row["method"] for row in rows] == ["natural", "AT", "DyART"]
    assert (folder / "margins.png").stat().st_size > 10_000
    assert "$ dyart dynamics" in out
    for name in ("at", "dyart"):
        head = (folder / name / "dynamics.csv").read_text().splitlines()[0]
        assert "speed_at,speed_dyart" in head
        assert json.loads((folder / name / "evaluation.json").read_text())["images"] == 100
    page = (folder / "report.html").read_text()
    assert "The dyart demo" in page
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("what I saw")
    _make_room(folder)  # as the next demo does
    assert sorted(path.name for path in folder.iterdir()) == ["demo.json", "mine"]
    assert (folder / "mine" / "notes.txt").read_text() == "what I saw"
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    status, _, err = run(capsys, "demo", "--quick", "--out", other)
    assert status == 2
    assert (other / "thesis.tex").read_text() == "years of work"
    for content in ('{"name": "my demo"}', "[]", "[1]", "no JSON"):
        (other / "demo.json").write_text(content)
        with pytest.raises(RunError, match="holds no demo"):
            _make_room(other)
        assert (other / "demo.json").read_text() == content


def test_data_list_names_every_set(capsys, tmp_path):
    status, out, _ = run(capsys, "data", "list", "--root", tmp_path)
    assert status == 0
    for name in ("fashion-mini", "mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet", "moons"):
        assert name in out


def test_a_finished_run_keeps_its_evaluation_when_it_is_resumed(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--train.epochs", "1", "--train.burn_in", "0", "--data.limit", "256", "--eval.attack", "none"]
    assert main(["train", "fashion-mini-cnn-natural", *words, "--out", str(out), "--quiet"]) == 0
    (out / "evaluation.json").write_text('{"of": "a stronger attack"}')
    assert main(["train", str(out), "--resume", "--quiet"]) == 0
    assert "nothing is left to train" in capsys.readouterr().out
    assert (out / "evaluation.json").read_text() == '{"of": "a stronger attack"}'


def test_an_evaluation_that_is_interrupted_leaves_a_training_that_is_done(tmp_path, capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    out = tmp_path / "my run"
    words = ["--train.burn_in", "0", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr("dyart.evaluation.quick.measure_run", interrupted)
        status, _, err = run(capsys, "train", "fashion-mini-cnn-natural", *TINY, *words, "--out", out)
        assert status == 130
        assert f"interrupted; the training is done, and `dyart train '{out}' --resume` measures it\n" in err
    assert not (out / "evaluation.json").exists()
    assert run(capsys, "train", out, "--resume")[0] == 0
    assert (out / "evaluation.json").is_file(), "the advice was right"
    with monkeypatch.context() as patch:
        patch.setattr("dyart.evaluation.quick.measure_run", interrupted)
        status, _, err = run(capsys, "train", out, "--resume", "--train.epochs", "3", "--quiet")
        assert f"{out}/evaluation.json is older than it, and `dyart evaluate '{out}'` measures it\n" in err
    before = (out / "evaluation.json").read_bytes()
    status, said, err = run(capsys, "evaluate", out, "--attack", "margins", "--steps", "2")
    assert status == 0, err
    assert "stays as it is" not in said
    assert (out / "evaluation.json").read_bytes() != before


def test_a_run_to_resume_that_is_not_there(tmp_path, capsys):
    assert main(["train", str(tmp_path / "nope"), "--resume"]) == 2
    assert f"there is no folder {tmp_path / 'nope'}" in capsys.readouterr().err
