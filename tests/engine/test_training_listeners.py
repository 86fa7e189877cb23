"""Loggers and the display."""

import csv
import io
import re
import signal
import sys
import types

import pytest
import torch
from engine_cases import CrashAt, CrashError, SignalAt, make_config, numbers
from rich.console import Console

from dyart.engine import display
from dyart.engine.display import Display
from dyart.engine.fit import TrainingError
from dyart.engine.loggers import LoggersCallback
from dyart.engine.run import prepare, train


def rows(folder):
    with (folder / "csv/metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_epochs_in_csv(folder):
    epochs = [record for record in numbers(folder) if record["kind"] == "epoch"]
    found = rows(folder)
    assert len(found) == len(epochs)
    for row, record in zip(found, epochs, strict=True):
        for name in ("epoch", "step", "loss", "val_clean", "val_robust"):
            assert float(row[name]) == record[name]


def test_csv(tmp_path):
    """Burn-in and method log different values: the columns are those of both."""
    train(make_config(tmp_path, "dyart", train_burn_in=1, train_loggers=["csv"]), callbacks=[LoggersCallback()])
    assert_epochs_in_csv(tmp_path)
    assert [row["used"] == "" for row in rows(tmp_path)] == [True, False, False, False]


def test_loggers_of_a_resumed_run_hold_every_epoch_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make_config(tmp_path, "at", train_loggers=["csv", "tensorboard"], train_checkpoint_every=2, train_epochs=4)
    with pytest.raises(CrashError):
        train(config, callbacks=[LoggersCallback(), CrashAt(11)])
    assert len(rows(tmp_path)) == 3
    train(config, resume=True, callbacks=[LoggersCallback()])
    assert_epochs_in_csv(tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("val_robust")
    records = [record for record in numbers(tmp_path) if record["kind"] == "epoch"]
    assert [event.step for event in events] == [record["step"] for record in records]
    assert [event.value for event in events] == pytest.approx([record["val_robust"] for record in records])


class FakeRun:
    def __init__(self, settings):
        self.settings, self.logged, self.finished, self.id = settings, [], False, settings.get("id") or "id-1"
        self.info = types.SimpleNamespace(run_id=settings.get("run_id") or "id-1")

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


def fake_wandb(runs):
    return types.SimpleNamespace(init=lambda **settings: runs.append(FakeRun(settings)) or runs[-1])


def fake_mlflow(runs):
    module = types.SimpleNamespace(set_experiment=lambda name: None, log_dict=lambda values, name: None)

    def start_run(**settings):
        runs.append(FakeRun(settings))
        module.log_metrics, module.end_run = runs[-1].log, runs[-1].finish
        return runs[-1]

    module.start_run = start_run
    return module


@pytest.mark.parametrize(("name", "fake", "key"), [("wandb", fake_wandb, "id"), ("mlflow", fake_mlflow, "run_id")])
def test_services(tmp_path, monkeypatch, name, fake, key):
    runs: list[FakeRun] = []
    monkeypatch.setitem(sys.modules, name, fake(runs))
    config = make_config(tmp_path, "at", train_loggers=[name])
    with pytest.raises(TrainingError):
        train(config, callbacks=[LoggersCallback(), SignalAt(7)])
    train(config, resume=True, callbacks=[LoggersCallback()])
    assert [run.finished for run in runs] == [True, True]
    # The same run there, too.
    assert [run.settings[key] for run in runs] == [None, "id-1"]
    logged = [(step, values) for run in runs for step, values in run.logged]
    records = numbers(tmp_path)
    assert [step for step, _ in logged] == [record["step"] for record in records]
    for (_, values), record in zip(logged, records, strict=True):
        assert values[f"{record['kind']}/loss"] == record["loss"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_service_whose_package_is_missing(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    config = make_config(tmp_path, train_loggers=["csv", name])
    console = recording(terminal=True)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        train(config, callbacks=[Display(console=console), LoggersCallback()])
    # The cursor, hidden while there is a bar, is back.
    said = console.file.getvalue()
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")
    # With the package installed, or without the logger, the run goes on.
    train(make_config(tmp_path, train_loggers=["csv"]), resume=True, callbacks=[LoggersCallback()])
    assert_epochs_in_csv(tmp_path)


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    config = make_config(tmp_path, train_loggers=["csv", "tensorboard"], train_epochs=1)
    train(config, callbacks=[LoggersCallback()])
    assert_epochs_in_csv(tmp_path)
    assert not (tmp_path / "tensorboard").exists()


def test_without_a_folder_nothing_is_logged():
    prepare(make_config(train_loggers=["csv"], train_epochs=1), callbacks=[LoggersCallback()]).run()


def recording(terminal=False, width=100):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False)


def lines(console):
    return console.file.getvalue().splitlines()


def test_one_line_per_epoch(tmp_path):
    console = recording()
    config = make_config(tmp_path, "dyart", train_burn_in=1, recipe="three-blobs-mlp-dyart")
    train(config, callbacks=[Display(console=console)])
    said = lines(console)
    assert said[0].startswith("three-blobs-mlp-dyart: dyart on three-blobs, mlp")
    assert "1 + 3 epochs of 3 steps, cpu" in said[0]
    assert said[1].split() == ["epoch", "phase", "loss", "clean", "robust", "used", "margin", "s"]
    table = [line.split() for line in said[2:6]]
    epochs = [record for record in numbers(tmp_path) if record["kind"] == "epoch"]
    assert [row[0] for row in table] == ["1/4", "2/4", "3/4", "4/4"]
    assert [row[1] for row in table] == ["burn-in", "train", "train", "train"]
    for row, record in zip(table, epochs, strict=True):
        assert row[2:5] == [
            f"{record['loss']:.3f}",
            f"{100 * record['val_clean']:.1f}",
            f"{100 * record['val_robust']:.1f}",
        ]
        assert (row[-1] == "*") == record["best"]
    best = next(record["epoch"] for record in reversed(epochs) if record["best"])
    assert said[6] == f"best by validation: epoch {best} (*), {tmp_path}/checkpoints/epoch-{best:04d}"
    assert len(said) == 7
    assert "\x1b" not in console.file.getvalue()  # no bar where there is no terminal


def test_nothing_used():
    """With a tiny r0 no point counts."""
    console = recording()
    method = {"name": "dyart", "steps": 2, "r0": 1e-9, "lam": 1.0}
    training = prepare(make_config(method=method, eval_every=2, optim_lr=1e-9), callbacks=[Display("title", console)])
    training.run()
    assert all(record["used"] == 0 for record in training.history)
    assert lines(console)[0].startswith("title: ")
    assert len(lines(console)) == 5


def test_a_bar_with_the_time_left_on_a_terminal(tmp_path):
    console = recording(terminal=True)
    train(make_config(tmp_path, train_epochs=3, data_limit=None), callbacks=[Display(console=console)])
    assert re.search(r"\d+/168\b", console.file.getvalue())
    assert "left" in console.file.getvalue()


def test_names_are_shown_as_they_are(tmp_path):
    """Brackets are markup to rich, and long lines are folded."""
    folder = tmp_path / "with [bold] brackets" / ("long" * 30)
    console = recording(width=60)
    train(make_config(folder, recipe="[red]mine[/red]"), callbacks=[Display(console=console)])
    assert lines(console)[0].startswith("[red]mine[/red]: natural on")
    assert str(folder) in lines(console)[-1]


def test_a_resumed_display_says_from_where(tmp_path):
    config = make_config(tmp_path)
    with pytest.raises(TrainingError):
        train(config, callbacks=[SignalAt(4, signal.SIGINT)])
    console = recording()
    train(config, resume=True, callbacks=[Display(console=console)])
    assert lines(console)[0].endswith("from step 4")
    assert [line.split()[0] for line in lines(console)[2:4]] == ["2/3", "3/3"]


def test_the_table_is_output_and_the_bar_is_not(tmp_path, capsys):
    """Into a file goes what a training has to say, and nothing else."""
    train(make_config(tmp_path), callbacks=[Display()])
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["1/3", "2/3", "3/3"]
    assert "best by validation" in out
    assert "\x1b" not in out
    assert err == ""


def test_the_bar_stays_on_a_terminal_when_the_table_goes_into_a_file(tmp_path, capsys, monkeypatch):
    display = Display()
    display.bar = recording(terminal=True)
    train(make_config(tmp_path), callbacks=[display])
    assert "1/3" in capsys.readouterr().out
    assert "left" in display.bar.file.getvalue()


@pytest.mark.parametrize(("processes", "layer", "told"), [(1, 1, False), (2, 1, True), (2, 0, False)])
def test_several_processes_are_said_to_have_batch_norms_of_their_own(processes, layer, told):
    fabric = types.SimpleNamespace(world_size=processes, device=torch.device("cpu"))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), [torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4)][layer])
    training = types.SimpleNamespace(fabric=fabric, model=model)
    assert display._where(training) == ("cpu" if processes == 1 else "2 processes (cpu)")
    assert bool(display._shares(training)) == told
