"""The queue of published trainings: what fits, what is begun, stopped, gone on with, and recorded."""

import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from bench_cases import evaluation, module, record

plan, run_records, queue = (module(name) for name in ("plan", "run_records", "run_queue"))

PLAN = """
groups:
  one:
    title: One
    epochs: 4
    rows:
      - {label: A, recipe: fashion-mini-cnn-at, seeds: [0, 1]}
      - {label: B, recipe: fashion-mini-cnn-trades}
"""
# Instead of a training: writes its JSON after some seconds, or exits with a status; told to stop, it says so.
WORKER = """
import json, pathlib, signal, sys, time
words = sys.argv[1:]
name, results = (words[words.index(key) + 1] for key in ("--name", "--results"))
folder = pathlib.Path(words[words.index("--out") + 1])
folder.mkdir(parents=True, exist_ok=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
with (folder / "calls.txt").open("a") as file:
    file.write(f"{time.time()}\\n")
seconds, status = float(words[words.index("--data.limit") + 1]) / 10, int(words[words.index("--batch") + 1])
if name.endswith("seed1"):
    status = 0
time.sleep(seconds)
if status:
    print("what went wrong")
    sys.exit(status)
(folder / "calls.txt").open("a").write(f"{time.time()}\\n")
weights = pathlib.Path(words[words.index("--weights") + 1])
for place in (weights, pathlib.Path(results)):
    place.mkdir(parents=True, exist_ok=True)
(weights / f"{name}.safetensors").write_text("weights")
one = {"checkpoint": "best", "tier": "apgd", "images": 10, "robust": {}, "wall_seconds": 1}
(pathlib.Path(results) / f"{name}.json").write_text(json.dumps(
    {"name": name, "recipe": words[0], "train_seconds": 1, "evaluations": [one, one | {"checkpoint": "last"}]}))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(queue, "SCRIPT", tmp_path / "worker.py")
    for name, value in (("RESERVE", 0.1), ("GRACE", 0.5), ("WORTH", 0.5)):
        monkeypatch.setattr(queue, name, value)
    return tmp_path


def call(place, *words, tenths=0, status=0):
    arguments = ["--plan", place / "plan.yaml", "--results", place / "published", "--work", place / "work", *words]
    return queue.main([*map(str, arguments), "--", "--data.limit", str(tenths), "--batch", str(status)])


def test_all_are_run_and_handed_out(place, capsys):
    assert call(place, "--seconds", 30, "--out", place / "out", "run") == 0
    names = ["one-a-seed0", "one-a-seed1", "one-b-seed0"]
    assert sorted(path.stem for path in (place / "out" / "results").iterdir()) == names
    assert sorted(path.stem for path in (place / "out" / "weights").iterdir()) == names
    assert "0 of 3 runs are left" in capsys.readouterr().out
    calls = (place / "work" / "one-a-seed0" / "calls.txt").read_text()
    assert call(place, "--seconds", 30, "run") == 0  # nothing is left to run
    assert (place / "work" / "one-a-seed0" / "calls.txt").read_text() == calls


def test_what_is_published_is_not_run_again(place):
    runs = plan.load_plan(place / "plan.yaml")[0].runs
    done = record(runs[0], evaluation([80, 70]), evaluation([80, 70], checkpoint="last"))
    run_records.write(place / "published" / f"{runs[0].name}.json", done)
    places = [queue.Place(place / "work" / "results", None), queue.Place(place / "published", None)]
    assert [task.run.name for task in queue.tasks(runs, places)] == ["one-b-seed0", "one-a-seed1"]


def test_a_training_of_another_machine_is_attacked_if_its_weights_are_there(place, capsys):
    run = plan.load_plan(place / "plan.yaml")[0].runs[0]
    run_records.write(place / "published" / f"{run.name}.json", record(run))
    assert call(place, "plan") == 0
    assert "train, apgd, last" in capsys.readouterr().out.partition(run.name)[2].splitlines()[0]
    (place / "brought").mkdir()
    (place / "brought" / f"{run.name}.safetensors").write_text("brought")
    brought = ["--weights", place / "brought", "--only", "one-a-seed0"]
    assert call(place, "run", "--seconds", 5, "--whole", *brought) == 0
    assert not (place / "work").exists()  # nothing begun, nothing brought
    assert call(place, "run", "--seconds", 10, *brought, tenths=1, status=3) == 1
    assert (place / "work" / "weights" / f"{run.name}.safetensors").read_text() == "brought"
    kept = run_records.read(place / "work" / "results" / f"{run.name}.json")
    assert kept["train_seconds"] == 250.0
    assert "begun: one-a-seed0 (apgd, last)" in capsys.readouterr().out


def test_weights_that_are_missing_here_are_brought_or_trained_again(place, capsys):
    run = plan.load_plan(place / "plan.yaml")[0].runs[0]
    here = place / "work" / "results" / f"{run.name}.json"
    run_records.write(here, record(run))
    (place / "brought").mkdir()
    (place / "brought" / f"{run.name}.safetensors").write_text("brought")
    only = ["--only", "one-a-seed0", "--seconds", 10]
    assert call(place, "run", *only, "--weights", place / "brought", status=3) == 1
    assert (place / "work" / "weights" / f"{run.name}.safetensors").read_text() == "brought"
    assert run_records.read(here)["train_seconds"] == 250.0
    (place / "work" / "weights" / f"{run.name}.safetensors").unlink()
    run_records.write(here, record(run))
    assert call(place, "run", *only, status=3) == 1
    assert "train_seconds" not in run_records.read(here)
    assert "begun: one-a-seed0 (train, apgd, last)" in capsys.readouterr().out


def test_the_time_cuts_a_run_short_and_the_next_call_goes_on(place, capsys):
    began = time.monotonic()
    assert call(place, "run", "--seconds", 2, "--only", "one-b", tenths=100) == 0
    assert time.monotonic() - began < 3
    assert "stopped: one-b-seed0" in capsys.readouterr().out
    assert not (place / "work" / "results" / "one-b-seed0.json").exists()
    assert call(place, "run", "--seconds", 10, "--only", "one-b") == 0
    assert "done: one-b-seed0" in capsys.readouterr().out


def test_with_whole_nothing_is_begun_that_does_not_fit(place, capsys):
    assert call(place, "run", "--seconds", 20, "--whole") == 0
    assert "begun" not in capsys.readouterr().out


def test_a_failure_is_recorded_with_the_end_of_its_log_and_not_repeated(place, capsys):
    assert call(place, "run", "--seconds", 10, "--only", "one-a", status=3) == 1
    failed = run_records.read(place / "work" / "results" / "one-a-seed0.json")["failed"]
    assert "status 3" in failed["error"]
    assert "what went wrong" in failed["log"]
    out = capsys.readouterr().out
    assert "what went wrong" in out.partition("failed: one-a-seed0")[2].splitlines()[0]
    assert "done: one-a-seed1" in out  # the others go on
    assert call(place, "run", "--seconds", 10, "--only", "one-a") == 0
    assert "begun" not in capsys.readouterr().out
    assert call(place, "run", "--seconds", 10, "--only", "one-a", "--retry") == 0
    assert "done: one-a-seed0" in capsys.readouterr().out


def test_several_run_at_the_same_time(place):
    assert call(place, "run", "--seconds", 20, "--parallel", 3, tenths=10) == 0
    times = [
        [float(line) for line in (place / "work" / name / "calls.txt").read_text().split()]
        for name in ("one-a-seed0", "one-a-seed1", "one-b-seed0")
    ]
    assert max(begin for begin, _ in times) < min(end for _, end in times)


def test_the_plan_and_the_next_commands_are_printed(place, capsys):
    assert call(place, "plan") == 0
    out = capsys.readouterr().out
    assert "0 of 3 runs done" in out
    assert call(place, "plan", "--only", "one-b") == 0
    out = capsys.readouterr().out
    assert "0 of 1 runs done" in out
    assert "one-a" not in out
    one = plan.seconds(plan.load_plan(place / "plan.yaml")[0].runs[0], ["train", "apgd", "last"])
    assert call(place, "next", "--seconds", 2.5 * one) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(commands) == 2
    assert "fashion-mini-cnn-at --name one-a-seed0" in commands[0]
    assert commands[0].endswith("--data.limit 0 --batch 0")


def test_later_tasks_fill_what_earlier_ones_leave():
    runs = [run for group in plan.load_plan() for run in group.runs][:3]
    tasks = [queue.Task(run, ("train",), seconds) for run, seconds in zip(runs, (50.0, 80.0, 20.0), strict=True)]
    assert [task.seconds for task in queue.fitting(tasks, 75)] == [50.0, 20.0]


def test_a_group_s_name_is_not_part_of_another_s():
    one, two = (plan.Run(group, "a", "fashion-mini-cnn-at", 0, 4) for group in ("trials", "fast-trials"))
    assert queue.chosen([one, two], ["trials"]) == [one]
    assert queue.chosen([one, two], ["trials-a"]) == [one, two]
    assert queue.chosen([one, two], ["fast-trials", "trials-a"]) == [two, one]  # in the order of the words


def test_a_run_that_is_timed_has_the_device_to_itself(place):
    (place / "plan.yaml").write_text(PLAN.replace("    epochs: 4\n", "    epochs: 4\n    target: 0.45\n"))
    assert call(place, "run", "--seconds", "20", "--parallel", "3", "--only", "one-a", tenths=5) == 0
    spans = [list(map(float, path.read_text().split())) for path in sorted(place.glob("work/*/calls.txt"))]
    assert len(spans) > 1
    for (_, end), (begin, _) in pairwise(sorted(spans)):
        assert end <= begin


def test_a_choice_that_names_nothing_is_refused(place):
    with pytest.raises(SystemExit, match="the groups are one"):
        call(place, "run", "--only", "two")


def test_a_target_is_attacked_at_one_radius_and_nothing_of_the_last_epoch(place):
    (place / "plan.yaml").write_text(PLAN.replace("    epochs: 4\n", "    epochs: 4\n    target: 0.45\n"))
    (run, *_) = (run for group in plan.load_plan(place / "plan.yaml") for run in group.runs)
    words = queue.command(queue.Task(run, ("train", "apgd"), 1.0), place / "work")
    for name, value in (("--attacks", "apgd"), ("--radii", "8/255"), ("--last", "")):
        assert words[words.index(name) + 1] == value
    assert "--judge" not in words


def test_a_group_is_attacked_at_radii_of_its_own(place):
    more = '    radii: ["0.5", "1"]\n    radius: "0.5"\n'
    (place / "plan.yaml").write_text(PLAN.replace("    epochs: 4\n", f"    epochs: 4\n{more}"))
    (run, *_) = (run for group in plan.load_plan(place / "plan.yaml") for run in group.runs)
    words = queue.command(queue.Task(run, ("train", "apgd", "last"), 1.0), place / "work")
    assert words[words.index("--radii") + 1] == "0.5,1"
    assert words[words.index("--last") + 1] == "0.5"


def test_a_trial_is_judged_on_images_left_out_and_its_weights_are_not_handed_out(place):
    (place / "plan.yaml").write_text(PLAN.replace("    epochs: 4\n", "    epochs: 4\n    judge: 24\n"))
    (run, *_) = (run for group in plan.load_plan(place / "plan.yaml") for run in group.runs)
    words = queue.command(queue.Task(run, ("train", "margins"), 1.0), place / "work")
    for name, value in (("--attacks", "margins"), ("--images", "24"), ("--judge", "24"), ("--last", "")):
        assert words[words.index(name) + 1] == value
    assert call(place, "run", "--seconds", "20", "--only", "one-a-seed0", "--out", str(place / "out")) == 0
    assert [path.name for path in sorted((place / "out").rglob("*.*"))] == ["one-a-seed0.json"]


@pytest.fixture
def unread():
    """The end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_reader_who_goes_away_is_no_error(place, unread):
    words = ["next", "--seconds", "1e6", "--plan", place / "plan.yaml", "--results", place, "--work", place / "work"]
    done = subprocess.run(
        [sys.executable, queue.__file__, *map(str, words)],
        stdout=unread,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, b"")


def test_runs_go_on_and_are_handed_out_where_nobody_reads(place, unread, monkeypatch):
    with os.fdopen(os.dup(unread), "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        assert call(place, "run", "--seconds", "40", "--only", "one", "--out", str(place / "out")) == 0
    assert len(list((place / "out" / "results").glob("one-*.json"))) == 3
