"""``dyart dynamics`` and ``dyart curves``, end to end on small things."""

import csv
import errno
import json
import shutil
from pathlib import Path

import pytest

from dyart.cli import main
from dyart.dynamics.watch import Watch
from dyart.engine.run import train
from dyart.recipes import resolve


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "natural"
    words = (
        "--data.limit 400 --train.epochs 2 --train.batch_size 64 --train.loggers csv --eval.steps 2 --train.device cpu"
    )
    train(resolve("fashion-mini-cnn-natural", [*words.split(), "--out", str(folder)]))
    return folder


def dynamics(*words: str | Path) -> int:
    return main(["dynamics", *map(str, words), "--steps", "12", "--device", "cpu"])


def test_everything_is_written_into_the_runs_folder(run, capsys):
    assert dynamics(run, "--count", "100") == 0
    names = {"dynamics.csv", "dynamics.json", "dynamics.npz"}
    names |= {f"dynamics-{kind}.{suffix}" for kind in ("scatter", "bars") for suffix in ("pdf", "svg", "png")}
    assert names <= {path.name for path in run.iterdir() if path.stat().st_size > 0}
    summary = json.loads((run / "dynamics.json").read_text())
    assert summary["split"] == "train"
    assert summary["weights"] == "raw"
    assert summary["counts"]["examples"] == 128  # two whole batches
    assert summary["radius"] == 0.1
    assert summary["methods"]["at"]["settings"]["radius"] == 0.1  # the recipe's, for this data
    assert summary["methods"]["dyart"]["settings_from"] == "the recipe fashion-mini-cnn-dyart"
    with (run / "dynamics.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {"speed_at", "speed_dyart"} <= set(lines[0])
    counted = [line for line in lines if line["optimal"] == "1" and float(line["margin"]) < 0.1]
    negative = sum(float(line["speed_at"]) < 0 for line in counted)
    assert summary["methods"]["at"]["below_radius"]["negative"] == negative
    assert summary["methods"]["at"]["below_radius"]["count"] == len(counted)
    shown = capsys.readouterr().out
    assert "share of negative speed" in shown
    assert "dyart against at" in shown
    assert "dynamics-bars.png" in shown
    assert "note:" not in shown


def test_the_data_of_a_run_have_the_digest_that_an_evaluation_records(run, tmp_path):
    words = ["--count", "50", "--attack", "clean", "--device", "cpu", "--out", str(tmp_path)]
    assert main(["evaluate", str(run), *words]) == 0
    assert dynamics(run, "--out", tmp_path, "--count", "64", "--methods", "at") == 0
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("evaluation.json", "dynamics.json"))
    assert first["data_digest"] == second["data_digest"]


def test_a_record_of_other_settings_is_said_to_be_replaced(run, tmp_path, capsys):
    def said(*words: str) -> str:
        assert dynamics(run, "--out", tmp_path, "--count", "64", *words) == 0
        return capsys.readouterr().out

    assert "will be replaced" not in said()
    record = json.loads((tmp_path / "dynamics.json").read_text())
    assert record.pop("data_digest")
    assert "will be replaced" not in said()
    (tmp_path / "dynamics.json").write_text(json.dumps(record))
    assert "will be replaced" not in said(), "an earlier version kept no digest"
    other = said("--seed", "1", "--dyart.lam", "2")
    words = "another seed and choice of methods or of their settings"
    assert f"{tmp_path / 'dynamics.json'} was measured with {words}, and will be replaced\n" in other


def test_fewer_examples_do_not_replace_more(run, tmp_path, capsys):
    run = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("dynamics*"))
    for count in (65, 64, 1):
        assert dynamics(run, "--count", str(count), "--methods", "at") == 0
    said = capsys.readouterr().out
    assert "128 train examples (2 whole batches; --count 65), " in said
    assert "64 train examples in 1 batch, " in said
    assert "64 train examples (1 whole batch; --count 1), " in said
    stays = f"{run / 'dynamics.json'} is of 128 examples, and stays as it is (--out {run} would replace it)\n"
    assert said.count(stays) == 2
    assert json.loads((run / "dynamics.json").read_text())["counts"]["examples"] == 128
    beside = run / "dynamics-train-64"
    assert json.loads((beside / "dynamics.json").read_text())["counts"]["examples"] == 64
    assert (beside / "dynamics-scatter.png").is_file()
    assert dynamics(run, "--count", "64", "--methods", "at", "--out", run) == 0
    assert f"{run / 'dynamics.json'} was measured with another number of batches, and will" in capsys.readouterr().out
    for count, checkpoint in ((100, run), (64, run / "checkpoints" / "epoch-0001"), (64, run)):
        assert dynamics(checkpoint, "--count", str(count), "--methods", "at") == 0
        assert json.loads((run / "dynamics.json").read_text())["counts"]["examples"] == 128
    record = json.loads((run / "dynamics.json").read_text())
    (run / "dynamics.json").write_text(json.dumps(record | {"checkpoint": "checkpoints/epoch-0001"}))
    assert dynamics(run, "--count", "64", "--methods", "at") == 0
    record = json.loads((run / "dynamics.json").read_text())
    assert record["counts"]["examples"] == 64, "of the best epoch, where the other was the best one before"


def test_options_reach_the_measurement(run, tmp_path, capsys):
    words = [
        "--methods",
        "trades",
        "--against",
        "natural",
        "--split",
        "test",
        "--update",
        "optimizer",
        "--out",
        tmp_path,
    ]
    assert dynamics(run, *words, "--count", "64", "--radius", "8/255", "--trades.radius", "0.05", "--seed", "3") == 0
    summary = json.loads((tmp_path / "dynamics.json").read_text())
    assert list(summary["methods"]) == ["natural", "trades"]
    assert (summary["split"], summary["update"], summary["seed"]) == ("test", "optimizer", 3)
    assert (summary["radius"], summary["radius_text"]) == (8 / 255, "8/255")
    assert summary["methods"]["trades"]["settings"]["radius"] == 0.05
    assert summary["methods"]["natural"]["settings_from"] == "the run"
    assert "its state as saved" in summary["step"]
    assert summary["tests"][0]["first"] == "natural"
    said = capsys.readouterr().out
    assert "SGD, rate" in said
    assert "vulnerable below 8/255, trades attacks within 0.05: --radius" in said
    assert "under the optimizer's step" in (tmp_path / "dynamics-scatter.svg").read_text()
    assert "under the optimizer's step" in (tmp_path / "dynamics-bars.svg").read_text()


def test_several_runs_share_their_figures(run, tmp_path):
    again = shutil.copytree(run, tmp_path / "copy")
    assert dynamics(run, again, "--count", "64", "--methods", "at", "--out", tmp_path / "all") == 0
    folders = sorted(path.name for path in (tmp_path / "all").iterdir() if path.is_dir())
    assert folders == ["copy", "natural"]
    assert all((tmp_path / "all" / folder / "dynamics.csv").is_file() for folder in folders)
    assert (tmp_path / "all" / "dynamics-scatter.pdf").is_file()
    assert ">natural<" in (tmp_path / "all" / "dynamics-bars.svg").read_text()


def test_without_a_folder_every_run_keeps_its_own_records(run, tmp_path, monkeypatch):
    """Where a report finds them; the figures of all are apart."""
    monkeypatch.chdir(tmp_path)
    without = shutil.ignore_patterns("dynamics*")
    one, other = (shutil.copytree(run, tmp_path / name, ignore=without) for name in ("one", "other"))
    assert dynamics(one, other, "--count", "64", "--methods", "at") == 0
    assert all((folder / "dynamics.csv").is_file() for folder in (one, other))
    apart = tmp_path / "runs" / "dynamics"
    assert (apart / "dynamics-scatter.png").is_file()
    assert not any(path.is_dir() for path in apart.iterdir())
    epochs = sorted((one / "checkpoints").iterdir())[:2]
    assert len(epochs) == 2
    assert dynamics(*epochs, "--count", "64", "--methods", "at") == 0
    assert sum(path.is_dir() for path in apart.iterdir()) == 2, "two of one run go beside each other"


def test_runs_that_cannot_share_figures_are_refused_before_any_work(run, tmp_path, capsys):
    assert dynamics(run, run) == 2
    assert "the same network is named twice" in capsys.readouterr().err
    other = shutil.copytree(run, tmp_path / "copy")
    config = (other / "config.yaml").read_text().replace("  radius: 0.1\n", "  radius: 0.2\n")
    (other / "config.yaml").write_text(config)
    assert dynamics(run, other) == 2
    assert "choose one by --radius" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "dyrat"], "did you mean 'dyart'"),
        (["--at.radus", "1"], "did you mean at.radius"),
        (["--nonsense", "1"], "--METHOD.KEY VALUE"),
        (["--count", "0"], "count must be at least 1"),
        (["--steps", "1"], "--steps must be at least 2, got 1"),
        (["--radius", "8"], "--radius 8 is larger than the box of all inputs (1): did you mean 8/255?"),
        (["--averaged", "--update", "optimizer"], "without --averaged"),
    ],
)
def test_mistakes_are_one_line(run, words, message, capsys):
    assert main(["dynamics", str(run), "--device", "cpu", "--count", "64", *words]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert not out, "before anything is said of what is measured"


def test_a_folder_that_is_no_run_is_named(tmp_path, capsys):
    assert dynamics(tmp_path) == 2
    assert "neither a run with checkpoints nor a checkpoint" in capsys.readouterr().err


def test_a_radius_must_be_positive(run, capsys):
    with pytest.raises(SystemExit):
        dynamics(run, "--radius", "0")
    assert "must be positive" in capsys.readouterr().err


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit):
        main(["dynamics", "--help"])
    shown = capsys.readouterr().out
    assert "--at.radius 0.05" in shown
    assert "--against" in shown


def test_curves_of_a_run(run, tmp_path, capsys):
    assert main(["curves", str(run), "--out", str(tmp_path / "curves")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 2000
    said = capsys.readouterr().out
    drawn = "; means of batches are drawn instead"
    words = "natural has no accuracies on training images (eval.train_examples{}); no negative shares (monitor.every)"
    assert words.format(drawn) in said
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    copied = shutil.copytree(run, tmp_path / "bare")
    few = [{key: value for key, value in record.items() if "accuracy" not in key} for record in records]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in few))
    assert main(["curves", str(copied)]) == 0
    assert words.format("") in capsys.readouterr().out


def test_curves_replace_figures_of_dyart_alone(run, tmp_path, capsys):
    for _ in range(2):
        assert main(["curves", str(run), "--out", str(tmp_path / "mine.png")]) == 0
    for suffix in ("pdf", "svg", "png"):
        capsys.readouterr()
        path = tmp_path / f"mine.{suffix}"
        before = path.read_bytes()
        path.write_bytes(b"a photograph")
        assert main(["curves", str(run), "--out", str(tmp_path / "mine.png")]) == 2
        assert f"{path} was not drawn by dyart, and would be replaced: choose" in capsys.readouterr().err
        assert path.read_bytes() == b"a photograph"
        path.write_bytes(before)


def test_curves_of_several_runs_lie_above_them(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        shutil.copytree(run, tmp_path / "runs" / name)
    assert main(["curves", "runs/a"]) == 0
    alone = (tmp_path / "runs" / "a" / "curves.svg").read_bytes()
    assert main(["curves", "runs/a", "runs/b"]) == 0
    assert "figure: runs/curves.png" in capsys.readouterr().out
    assert (tmp_path / "runs" / "a" / "curves.svg").read_bytes() == alone


def test_curves_of_a_watched_run_lack_nothing(tmp_path, capsys):
    words = "--data.name three-blobs --data.limit 96 --data.crop 0 --model.name mlp --train.epochs 2 --train.loggers []"
    words += " --train.batch_size 32 --eval.steps 2 --eval.every 1"
    words += " --monitor.every 1 --monitor.radius 1 --monitor.steps 5"
    run = tmp_path / "at"
    train(resolve("fashion-mini-cnn-at", [*words.split(), "--out", str(run)]), callbacks=[Watch()])
    assert main(["curves", str(run), "--out", str(tmp_path / "curves")]) == 0
    assert "has no" not in capsys.readouterr().out
    drawn = (tmp_path / "curves.svg").read_text()
    assert all(f">{kind}, {place}<" in drawn for kind in ("clean", "robust") for place in ("held out", "training"))


def test_curves_of_runs_with_one_method_are_all_drawn(run, tmp_path, capsys):
    again = [shutil.copytree(run, tmp_path / name / "natural") for name in "ab"]
    assert main(["curves", *map(str, [run, *again]), "--out", str(tmp_path / "curves")]) == 0
    drawn = (tmp_path / "curves.svg").read_text()
    assert all(f">natural, {name}/natural<" in drawn for name in "ab")
    assert main(["curves", str(run), str(run)]) == 2
    assert "the same run is named twice" in capsys.readouterr().err


def test_published_curves_go_below_ours(run, tmp_path):
    (tmp_path / "shares.csv").write_text("iteration,natural\n100,0.4\n200,0.3\n")
    words = ["--paper", str(tmp_path / "shares.csv"), "--out", str(tmp_path / "curves")]
    assert main(["curves", str(run), *words]) == 0
    drawn = (tmp_path / "curves.svg").read_text()
    assert ">natural (ours)<" in drawn
    assert ">negative speed (the paper's)<" in drawn or "negative speed (the paper&#x27;s)" in drawn


def test_where_nothing_can_be_written_nothing_is_measured(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dyart.cli.dynamics.measure", lambda *_, **__: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    assert dynamics(run, "--out", tmp_path / "file") == 2

    def refused(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)  # as in a folder that is read-only
    assert dynamics(run, "--out", tmp_path) == 2
    assert "choose another folder with --out" in capsys.readouterr().err


def test_the_monitor_of_a_loop_of_ones_own_is_drawn(run, tmp_path, capsys):
    lines = [
        {"step": step, "negative_share": share, "margin_quantiles": {"0.5": 0.1}}
        for step, share in ((5, 0.4), (10, 0.3))
    ]
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "monitor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    places = [str(tmp_path / name / "monitor.jsonl") for name in ("mine", "other")]
    assert main(["curves", *places]) == 0
    assert not (tmp_path / "mine" / "curves.svg").exists()
    drawn = (tmp_path / "curves.svg").read_text()
    assert ">negative speed<" in drawn
    assert all(f">{name}<" in drawn for name in ("mine", "other"))
    assert ">accuracy<" not in drawn
    (tmp_path / "mine" / "monitor.jsonl").write_text("")
    assert main(["curves", places[0]]) == 2
    assert "has no observations of vulnerable examples to draw" in capsys.readouterr().err


def test_curves_of_a_file_of_weights_say_what_to_give(tmp_path, capsys):
    (tmp_path / "w.safetensors").write_bytes(b"\xd7\x00")
    assert main(["curves", str(tmp_path / "w.safetensors")]) == 2
    assert "to draw: give a run's folder, or the monitor.jsonl" in capsys.readouterr().err
