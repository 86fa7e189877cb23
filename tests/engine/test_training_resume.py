"""A run that ended before its time and was resumed is the run that did not."""

import json
import signal
import time

import pytest
import torch
from engine_cases import (
    STEPS,
    CrashAt,
    CrashError,
    SignalAt,
    assert_same_run,
    last_checkpoint,
    make_config,
    numbers,
)

from dyart.engine import checkpoint as store
from dyart.engine.callbacks import Callback
from dyart.engine.fit import TrainingError
from dyart.engine.run import train
from dyart.engine.stored import RunError

# Two epochs of burn-in and three of the method, three steps each; lines of metrics.jsonl every four steps.
CASES = {
    "natural": {"method": "natural"},
    "at": {"method": "at"},
    "dyart": {"method": "dyart"},
    "accumulated": {"method": "dyart", "train_accumulate": 2},
    "dropout": {"method": "natural", "model_name": "engine_networks:dropout"},
    "clipped one-cycle": {
        "method": "at",
        "optim_clip": 0.1,
        "optim_schedule": "one-cycle",
        "optim_averaging": "released",
    },
}
LONG = {"train_burn_in": 2}
END = 5 * STEPS


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run of every case, made once."""
    made = {}

    def run(case):
        if case not in made:
            made[case] = tmp_path_factory.mktemp("whole") / "run"
            train(make_config(made[case], **LONG, **CASES[case]))
        return made[case]

    return run


def test_two_runs_say_the_same(tmp_path, whole):
    train(make_config(tmp_path / "again", **LONG, **CASES["dyart"]))
    assert_same_run(tmp_path / "again", whole("dyart"))
    records = numbers(whole("dyart"))
    assert [r["step"] for r in records if r["kind"] == "step"] == [4, 8, 12]
    assert [(r["epoch"], r["phase"]) for r in records if r["kind"] == "epoch"] == [
        (1, "burn-in"),
        (2, "burn-in"),
        (3, "train"),
        (4, "train"),
        (5, "train"),
    ]
    # The comparison is worth something: the search finds points, and another seed gives other numbers.
    assert all(r["used"] > 0 for r in records if r.get("phase") == "train")
    train(make_config(tmp_path / "other", seed=4, **LONG, **CASES["dyart"]))
    assert numbers(tmp_path / "other") != records


def test_a_line_covers_the_steps_since_the_last_one_in_its_phase(tmp_path, whole):
    train(make_config(tmp_path, **LONG, **CASES["dyart"], train_log_every=1))
    losses = {r["step"]: r["loss"] for r in numbers(tmp_path) if r["kind"] == "step"}
    found = {r["step"]: r["loss"] for r in numbers(whole("dyart")) if r["kind"] == "step"}
    # Steps 5 and 6 are the burn-in's, whose loss is another.
    for step, steps in ((4, (1, 2, 3, 4)), (8, (7, 8)), (12, (9, 10, 11, 12))):
        assert found[step] == pytest.approx(sum(losses[each] for each in steps) / len(steps), rel=1e-4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [5, 7, 11])
def test_crash_and_resume(tmp_path, whole, case, step):
    """In the burn-in, in the first step after it, and in the middle of the method's second epoch."""
    folder = tmp_path / "run"
    config = make_config(folder, **LONG, **CASES[case])
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(step)])
    assert last_checkpoint(folder).name == f"epoch-{(step - 1) // STEPS:04d}"
    resumed = train(config, resume=True)
    assert resumed.steps_done == END
    assert_same_run(folder, whole(case))


def test_an_epoch_that_was_stopped_in_the_middle_has_the_seconds_of_both_parts(tmp_path):
    class Slow(Callback):
        def on_step(self, training):
            time.sleep(0.2)

    config = make_config(tmp_path, **LONG, **CASES["natural"])
    with pytest.raises(TrainingError, match="stopped by SIGTERM"):
        train(config, callbacks=[Slow(), SignalAt(STEPS + 2)])
    resumed = train(config, resume=True)
    seconds = [record["train_seconds"] for record in resumed.history]
    assert seconds[0] >= 0.2 * STEPS
    assert seconds[1] >= 0.2 * 2
    assert seconds[2] < 0.2


@pytest.mark.parametrize("case", ["accumulated", "dropout"])
@pytest.mark.parametrize("step", [1, 3, 6, 7, 8, 15])
def test_signal_and_resume(tmp_path, whole, case, step):
    """After the first step, the last of an epoch, of the burn-in, after it, within an epoch, and the very last."""
    folder = tmp_path / "run"
    config = make_config(folder, **LONG, **CASES[case])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingError, match=f"stopped by SIGTERM after step {step};.*step-0+{step}.*--resume"):
        train(config, callbacks=[SignalAt(step)])
    assert signal.getsignal(signal.SIGTERM) == before
    assert last_checkpoint(folder).name == f"step-{step:08d}"
    train(config, resume=True)
    assert_same_run(folder, whole(case))


def test_many_interruptions(tmp_path, whole):
    folder = tmp_path / "run"
    config = make_config(folder, **LONG, **CASES["dyart"])
    for step in range(1, END + 1):
        with pytest.raises(TrainingError):
            train(config, resume=step > 1, callbacks=[SignalAt(step)])
    train(config, resume=True)
    assert_same_run(folder, whole("dyart"))


class CrashAfterRecord(Callback):
    """Ends a training between the line of an epoch and its checkpoint."""

    def on_record(self, training, record):
        if record["kind"] == "epoch" and record["epoch"] == 3:
            raise CrashError


def test_a_line_without_its_checkpoint_is_not_written_twice(tmp_path, whole):
    folder = tmp_path / "run"
    config = make_config(folder, **LONG, **CASES["at"])
    with pytest.raises(TrainingError):
        train(config, callbacks=[SignalAt(3 * STEPS)])
    with pytest.raises(CrashError):
        train(config, resume=True, callbacks=[CrashAfterRecord()])
    assert numbers(folder)[-1]["epoch"] == 3
    train(config, resume=True)
    assert_same_run(folder, whole("at"))


def test_a_line_cut_short_and_a_checkpoint_half_written(tmp_path, whole):
    folder = tmp_path / "run"
    config = make_config(folder, **LONG, **CASES["at"])
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(8)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "epo')
    (folder / "checkpoints/.epoch-0003").mkdir()
    (folder / "checkpoints/.epoch-0003/model.safetensors").write_bytes(b"half")
    (folder / "checkpoints/.epoch-0009").mkdir()
    train(config, resume=True)
    assert_same_run(folder, whole("at"))
    assert not list((folder / "checkpoints").glob(".*"))


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    folder = tmp_path / "run"
    config = make_config(folder)
    first = train(config)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = train(config, resume=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    assert again.steps_done == first.steps_done == 3 * STEPS
    assert again.history == first.history
    assert (again.best, again.best_epoch) == (first.best, first.best_epoch)


@pytest.mark.parametrize("early_stop", [None, 1])
def test_with_nothing_left_to_train_a_change_is_not_taken(tmp_path, capsys, early_stop):
    folder = tmp_path / "run"
    # Without a step to speak of, no epoch is better than the first.
    config = make_config(folder, train_early_stop=early_stop, optim_lr=1e-9)
    assert train(config).steps_done == (3 if early_stop is None else 2) * STEPS
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    again = train(make_config(folder, train_early_stop=early_stop, optim_lr=0.5), resume=True)
    said = capsys.readouterr().out
    assert f"nothing is left to train in {folder}: optim.lr 0.5 (was 1e-09) is not taken" in said
    assert ("raise train.epochs" if early_stop is None else "raise train.early_stop") in said
    assert "from step" not in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    assert (again.taken, again.config) == (0, config), "what is measured next is the run as it is"


def test_a_run_that_is_asked_for_less_patience_stops_there(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(CrashError):
        train(make_config(folder, optim_lr=1e-9), callbacks=[CrashAt(2 * STEPS + 1)])
    before = (folder / "config.yaml").read_bytes()
    assert train(make_config(folder, optim_lr=1e-9, train_early_stop=1), resume=True).taken == 0
    assert (folder / "config.yaml").read_bytes() == before


def test_before_the_first_checkpoint_a_resumed_run_begins_anew(tmp_path, whole):
    folder = tmp_path / "run"
    config = make_config(folder, **LONG, **CASES["at"])
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(2)])
    assert not (folder / "checkpoints").exists()
    train(config, resume=True)
    assert_same_run(folder, whole("at"))


def test_checkpoints_of_some_epochs_only(tmp_path):
    settings = {"train_checkpoint_every": 3, "train_epochs": 5, "eval_every": 2}
    train(make_config(tmp_path / "whole", "at", **settings))
    config = make_config(tmp_path / "run", "at", **settings)
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(4 * STEPS + 2)])
    train(config, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_network_with_batch_norm(tmp_path):
    settings = {"data_name": "fashion-mini", "data_limit": 128, "model_name": "cnn", "train_batch_size": 64}
    settings |= {"data_crop": 2, "data_flip": True, "eval_steps": 1, "train_epochs": 2}
    train(make_config(tmp_path / "whole", "dyart", **settings))
    config = make_config(tmp_path / "run", "dyart", **settings)
    with pytest.raises(TrainingError):
        train(config, callbacks=[SignalAt(3, signal.SIGINT)])
    train(config, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_bf16_is_fp32_on_a_cpu_and_says_so(tmp_path, capsys):
    """In bf16 itself a run is resumed by test_gpu_training.py."""
    train(make_config(tmp_path / "bf16", "at", train_precision="bf16"))
    assert capsys.readouterr().out.count("training in fp32: bf16 is for GPUs\n") == 1
    train(make_config(tmp_path / "fp32", "at"))
    assert numbers(tmp_path / "fp32") == numbers(tmp_path / "bf16")


def test_torchs_generators_are_left_as_they_were(tmp_path):
    before = torch.get_rng_state()
    train(make_config(tmp_path / "run", model_name="engine_networks:dropout"))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_network_draws_depends_on_the_seed_and_not_on_the_caller(tmp_path):
    for name, seed, callers in (("a", 3, 0), ("b", 3, 1), ("c", 4, 0)):
        torch.manual_seed(callers)
        train(make_config(tmp_path / name, seed=seed, model_name="engine_networks:dropout"))
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b") != numbers(tmp_path / "c")


def test_resuming_with_another_network_says_so(tmp_path):
    train(make_config(tmp_path / "run"))
    with pytest.raises(RunError, match=r"begun with model\.name mlp \(now engine_networks:dropout\)"):
        train(make_config(tmp_path / "run", model_name="engine_networks:dropout"), resume=True)


@pytest.mark.parametrize("settings", [{"seed": 5}, {"train_batch_size": 16}, {"data_limit": 64}, {"method": "at"}])
def test_what_a_run_is_made_of_stays(tmp_path, settings):
    train(make_config(tmp_path / "run"))
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(RunError, match="was begun with"):
        train(make_config(tmp_path / "run", **settings), resume=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_what_changes_on_the_way_is_recorded(tmp_path):
    folder = tmp_path / "run"
    train(make_config(folder, optim_schedule="constant"))
    train(make_config(folder, optim_schedule="constant", train_epochs=4, optim_lr=0.1), resume=True)
    (change,) = json.loads((folder / "environment.json").read_text())["changes"]
    assert change == {"step": 3 * STEPS, "train.epochs": ["3", "4"], "optim.lr": ["0.2", "0.1"]}


def test_another_number_of_threads_is_told_and_recorded(tmp_path, capsys):
    """On a CPU the order of sums depends on it: the rest is no longer bit for bit what it would have been."""
    folder = tmp_path / "run"
    train(make_config(folder, optim_schedule="constant"))
    path, now = folder / "environment.json", torch.get_num_threads()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": 99}))
    train(make_config(folder, optim_schedule="constant", train_epochs=4), resume=True)
    assert f"threads {now} (was 99)" in capsys.readouterr().err
    (change,) = json.loads(path.read_text())["changes"]
    assert change["threads"] == ["99", str(now)]


def test_what_a_run_goes_on_with_is_told_and_recorded(tmp_path, capsys):
    folder = tmp_path / "run"
    train(make_config(folder, optim_schedule="constant"))
    path = folder / "environment.json"
    facts = json.loads(path.read_text())
    torch_now = facts["versions"]["torch"]
    path.write_text(json.dumps(facts | {"versions": facts["versions"] | {"torch": "2.0.0"}, "commit": "0ld"}))
    train(make_config(folder, optim_schedule="constant", train_epochs=4), resume=True)
    assert f"versions.torch {torch_now} (was 2.0.0)" in capsys.readouterr().err
    found = json.loads(path.read_text())
    (change,) = found["changes"]
    assert change.keys() == {"step", "train.epochs", "versions.torch", "commit"}
    assert change["versions.torch"] == ["2.0.0", torch_now]
    assert change["commit"] == ["0ld", str(facts["commit"])]
    assert found["versions"] == facts["versions"], "the newest stand where they always do"


def test_more_epochs_are_kept_in_the_configuration(tmp_path):
    folder = tmp_path / "run"
    train(make_config(folder, optim_schedule="constant"))
    train(make_config(folder, optim_schedule="constant", train_epochs=5), resume=True)
    assert numbers(folder)[-1]["epoch"] == 5
    assert "epochs: 5" in (folder / "config.yaml").read_text()
    assert json.loads((last_checkpoint(folder) / store.MANIFEST).read_text())["step"] == 5 * STEPS


def test_new_settings_of_the_optimizer_take_effect(tmp_path):
    """What the run's own record says was used."""
    ends = {}
    for decay in (0.0, 0.5):
        folder = tmp_path / str(decay)
        train(make_config(folder, method="natural", optim_weight_decay=0.0, train_epochs=1))
        later = make_config(folder, method="natural", optim_weight_decay=decay, train_epochs=2)
        training = train(later, resume=True)
        assert {group["weight_decay"] for group in training.optimizer.param_groups} <= {0.0, decay}
        ends[decay] = training.model.state_dict()
    assert any(not torch.equal(ends[0.0][name], ends[0.5][name]) for name in ends[0.0])
