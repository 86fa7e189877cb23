"""Two processes take the steps of one: every method, odd batches, parts, mixing, resuming, stopping."""

from pathlib import Path

import pytest
import torch
from engine_cases import last_checkpoint, last_state, numbers
from ranks_cases import BURNT_IN, COMMAND, STEPS, assert_alike, farthest, make, measured, together

from dyart.cli import main
from dyart.data import load
from dyart.data.ranks import ALONE
from dyart.engine import checkpoint as store
from dyart.engine.fit import TrainingError
from dyart.engine.run import train
from dyart.evaluation.journal import FILE as JOURNAL
from dyart.models import build

BALL = {"steps": 3, "radius": 0.1, "step_size": 0.05}
SEARCH = {"steps": 4, "r0": 0.2, "lam": 20.0}
ONE_STEP = {"train": {"epochs": 1}, "data": {"limit": 39}}
CASES = {
    "at": ({"name": "at", **BALL},),
    "trades": ({"name": "trades", **BALL},),
    "gairat": ({"name": "gairat", "begin": 0, **BALL},),
    "mail": ({"name": "mail-at", "begin": 0, "normalize": True, **BALL},),
    "mma": ({"name": "mma", "steps": 3, "hinge": 0.2, "bisections": 4},),
    "at-awp": ({"name": "at-awp", **BALL},),
    "dyart": ({"name": "dyart", **SEARCH, "steps": 10, "adaptive_steps": True}, BURNT_IN),
    "half without points": ({"name": "ranks_networks:HalfBlind", **SEARCH}, BURNT_IN),
    "coupled": ({"name": "ranks_networks:Coupled"},),
    "in parts": ({"name": "gairat", "begin": 0, **BALL}, {"train": {"accumulate": 3}}),
    "mixed": ({"name": "natural"}, {"data": {"cutmix": 0.7, "label_smoothing": 0.1}, "train": {"accumulate": 3}}),
    "batch norm": ({"name": "natural"}, {"model": {"name": "ranks_networks:batched"}, **ONE_STEP}),
}
GROUPED = [name for name in CASES if name != "batch norm"]
STOPPED = {"name": "ranks_networks:Stopped", "rank": 0, "step": 0}
STOP = 7  # step of the method: in the middle of an epoch


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every case on one process and on two; a run from one to two and one from two to one; what the two said."""
    folder = tmp_path_factory.mktemp("ranks")
    data = load("fashion-mini")
    for name, case in CASES.items():
        train(make(folder / "one" / name, *case), data=data)
    train(make(folder / "one" / "stopped", STOPPED, BURNT_IN), data=data)
    with pytest.raises(TrainingError, match="stopped by SIGTERM"):
        train(make(folder / "two" / "begun by one", {**STOPPED, "step": STOP}, BURNT_IN), data=data)
    begin_to_measure(folder)
    torch.save(build("cnn", 10, data.shape, seed=1).state_dict(), folder / "jobs" / "weights.pt")
    jobs = [(make(folder / "two" / name, *case), False) for name, case in CASES.items()]
    jobs.append((make(folder / "two" / "begun by one", STOPPED, BURNT_IN), True))
    jobs.append((make(folder / "two" / "begun by two", {**STOPPED, "rank": 1, "step": STOP}, BURNT_IN), False))
    said = together(jobs, folder / "jobs")
    train(make(folder / "two" / "begun by two", STOPPED, BURNT_IN), resume=True, data=data)
    return folder, said


def begin_to_measure(folder: Path) -> None:
    """Evaluate on one process, and leave to the others an evaluation that was killed in mid-way."""
    measured(folder / "measured", ALONE)
    (folder / "jobs" / "measured").mkdir(parents=True)
    lines = (folder / "measured" / JOURNAL).read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "jobs" / "measured" / JOURNAL).write_text("".join(lines[:4]), encoding="utf-8")


@pytest.mark.parametrize("name", GROUPED)
def test_two_processes_take_the_steps_of_one(runs, name):
    folder, _ = runs
    assert_alike(folder / "one" / name, folder / "two" / name)


def test_the_cases_are_trainings_of_their_own(runs):
    folder, _ = runs
    assert numbers(folder / "one" / "at")[-1]["step"] == 7 * STEPS > 20
    assert farthest(folder / "one" / "at", folder / "one" / "trades") > 1e-3
    assert farthest(folder / "one" / "gairat", folder / "one" / "in parts") > 1e-6, "weights are normalised in a part"


def test_all_processes_choose_the_same_number_of_steps(runs):
    """By the points of all of them."""
    folder, _ = runs
    one, two = (
        [line["search_steps"] for line in numbers(folder / n / "dyart") if "used" in line] for n in ("one", "two")
    )
    assert one == two
    assert len(set(one)) > 1


def test_one_process_without_points_ends_with_numbers(runs):
    folder, _ = runs
    assert all(tensor.isfinite().all() for tensor in last_state(folder / "two" / "half without points").values())
    shares = [line["used"] for line in numbers(folder / "two" / "half without points") if "used" in line]
    assert 0 < shares[-1] <= 19 / 39


@pytest.mark.parametrize("name", ["begun by one", "begun by two"])
def test_a_run_goes_on_with_another_number_of_processes(runs, name):
    folder, _ = runs
    assert_alike(folder / "one" / "stopped", folder / "two" / name)


def test_a_signal_to_one_process_stops_all_at_one_step(runs):
    first, second = (said["ends"] for said in runs[1])
    assert len(first) == len(second) == 1, "all other trainings ended by themselves"
    step = 3 * STEPS + STOP
    assert f"stopped by a signal to another process after step {step}; the last good checkpoint is" in first[0]
    assert f"stopped by SIGTERM after step {step}" in second[0]


def test_running_means_of_batch_norm_are_those_of_the_whole_batch(runs):
    """After one step from the same weights; variances within a process's share leave out that between the shares."""
    folder, _ = runs
    one, two = (store.read_weights(last_checkpoint(folder / n / "batch norm"), "model") for n in ("one", "two"))
    torch.testing.assert_close(two["norm.running_mean"], one["norm.running_mean"], rtol=0, atol=1e-12)
    torch.testing.assert_close(two["norm.running_var"], one["norm.running_var"], rtol=0.05, atol=0)
    assert two["norm.num_batches_tracked"] == one["norm.num_batches_tracked"]


@pytest.mark.parametrize("name", ["per_example.csv", "margins.csv"])
def test_records_of_evaluation_and_search_are_those_of_one_process(runs, name):
    folder, _ = runs
    one, two = ((folder / place / name).read_bytes() for place in ("measured", "jobs/measured"))
    assert one == two
    assert len(set(one.splitlines())) > 20


def test_an_evaluation_goes_on_where_one_process_was_killed(runs):
    folder, said = runs
    one, two = ((folder / place / JOURNAL).read_text(encoding="utf-8") for place in ("measured", "jobs/measured"))
    assert two.splitlines()[:4] == one.splitlines()[:4]
    assert len(two.splitlines()) == len(one.splitlines()) > 12
    assert said[0]["clean"] == said[1]["clean"] > 0.5


def test_an_error_at_a_piece_of_work_is_raised_by_all(runs):
    for said in runs[1]:
        assert said["told"] == ["[0, 1, 2]", "'the fourth piece'"]


def test_a_command_says_and_writes_what_it_does_on_one_process(runs, tmp_path, capsys):
    folder, said = runs
    path, words = tmp_path / "command.csv", ["--weights", str(folder / "jobs" / "weights.pt")]
    assert main([*COMMAND, *words, "--device", "cpu", "--out", str(path)]) == 0
    assert path.read_bytes() == (folder / "jobs" / "command.csv").read_bytes()
    printed = capsys.readouterr().out.replace(str(path.parent), str(folder / "jobs"))
    assert " 0 found" not in printed
    lines = printed.splitlines()
    assert [line for line in said[0]["printed"].splitlines() if line in lines] == lines
    assert "margin" not in said[1]["printed"], "the first process speaks"
