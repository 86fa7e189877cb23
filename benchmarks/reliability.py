"""The bars of reliability, too long for every change: `make bars` writes benchmarks/results/reliability.json.

- 20 kills (SIGKILL) at random moments of a small training in a process of its own; each is seen in mid-run, and each
  resumed run must end with the same bits as the run that was not disturbed.
- 200 faults while a checkpoint is written: a kill, a power cut, or an error of the system at any of its file
  operations. No checkpoint that was saved before may be lost.
- The share of a training's time that one checkpoint per epoch takes, on the CPU, with the demo's own training.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "engine"))

from engine_cases import assert_same_run, make_config, numbers  # noqa: E402
from faults import ERRORS, faulty_save, lost, prepared, save  # noqa: E402
from processes import ended, started, stopped_when, trained  # noqa: E402

from dyart.engine import checkpoint as store  # noqa: E402
from dyart.engine.metrics import read_metrics  # noqa: E402
from dyart.engine.run import train  # noqa: E402
from dyart.engine.state import save as save_again  # noqa: E402
from dyart.evaluation.records import versions  # noqa: E402
from dyart.recipes import resolve  # noqa: E402

KILLS, FAULTS, SHARE = 20, 200, 0.01
METHODS = ("at", "dyart")
NOT_MET = 3  # exit status
EPOCHS, STEPS = 6, 20  # two of the epochs are burn-in
SETTINGS = {"data_limit": 640, "train_epochs": EPOCHS - 2, "train_burn_in": 2, "train_log_every": 1}


def kills(folder: Path, count: int) -> list[dict]:
    """Kill trainings at random steps, resume each in a new process, and compare its end with an undisturbed run's."""
    draw, records = random.Random(11), []
    for method in METHODS:
        train(make_config(folder / method, method, **SETTINGS))
    for number in range(count):
        method, target = METHODS[number % len(METHODS)], draw.randrange(1, EPOCHS * STEPS - 8)
        run = folder / f"run-{number}"
        config = make_config(run, method, **SETTINGS)
        process = trained(config)
        stopped_when(process, run, lambda lines, target=target: bool(lines) and lines[-1]["step"] >= target)
        step, alive = numbers(run)[-1]["step"], process.exitcode is None
        mid_run = alive and step < EPOCHS * STEPS
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(draw.random() * 0.02)  # so that it is not always just after a line was written
        process.kill()
        status = ended(process)
        saved = sorted(path.name for path in store.present(run / "checkpoints"))
        resumed = ended(trained(config, resume=(run / "config.yaml").exists()))
        record = {"method": method, "step": step, "mid_run": mid_run, "killed": status == -signal.SIGKILL}
        record |= {"saved": saved, "resumed": resumed == 0, "exact": _same(run, folder / method)}
        records.append(record)
        print(f"kill {number + 1:2d}: {record}", flush=True)
        shutil.rmtree(run)
    return records


def _same(one: Path, other: Path) -> bool:
    try:
        assert_same_run(one, other)
    except AssertionError as error:
        print(error)
        return False
    return True


def _faulty(folder: Path, at: int, kind: str | int) -> None:
    torch.set_num_threads(1)
    sys.exit(0 if faulty_save(folder, at, kind).count > at else NOT_MET)


def faults(folder: Path, count: int) -> list[dict]:
    """Meet faults at all file operations of a save in turn, each in a process of its own, and look for what is lost."""
    draw, records = random.Random(12), []
    before = {again: folder / f"before-{again}" for again in (False, True)}
    for again, place in before.items():
        prepared(place, again)
    probe = Path(shutil.copytree(before[True], folder / "probe"))
    operations = faulty_save(probe, None, "kill")
    kinds = ("kill", "power", *ERRORS)
    number = 0
    while len(records) < count:
        at, kind, again = number % operations.count, draw.choice(kinds), draw.random() < 0.5
        number += 1
        place = Path(shutil.copytree(before[again], folder / "checkpoints"))
        status = ended(started(_faulty, place, at, kind))
        if status == NOT_MET:  # a save that replaces nothing has fewer operations
            shutil.rmtree(place)
            continue
        words = _lost(place)
        killed = status == -signal.SIGKILL
        assert killed == isinstance(kind, str), f"{kind} at operation {at}: the process ended with {status}"
        save(place, 4)  # the next one works, and cleans up
        words = words or _lost(place) or ("" if len(list(place.iterdir())) == 4 else "something is left over")
        name = kind if isinstance(kind, str) else os.strerror(kind)
        operation = operations.names[at]
        records.append({"fault": name, "operation": operation, "number": at, "killed": killed, "lost": words})
        shutil.rmtree(place)
    return records


def _lost(place: Path) -> str:
    try:
        return lost(place)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def overhead(folder: Path, recipe: str, epochs: int) -> dict:
    """Train as the demo does, with a checkpoint after every epoch, and return what saving took."""
    config = resolve(recipe, ["--train.epochs", str(epochs), "--out", str(folder / "run"), "--train.device", "cpu"])
    began = time.perf_counter()
    training = train(config)
    whole = time.perf_counter() - began
    lines = [line for line in read_metrics(folder / "run" / "metrics.jsonl") if line["kind"] == "epoch"]
    # What the training waited for: copies, and the writing of one checkpoint where the next one comes too soon. The
    # last one is waited for whole.
    writing = time.perf_counter()
    save_again(training, "timed", best=False)
    training.saver.wait()
    writing = time.perf_counter() - writing
    saving = sum(line["checkpoint_seconds"] for line in lines) + training.save_seconds + writing
    size = sum(path.stat().st_size for path in (folder / "run" / "checkpoints" / training.index["last"]).iterdir())
    return {
        "recipe": recipe,
        "epochs": len(lines),
        "steps_per_epoch": len(training.loader),
        "training_seconds": round(sum(line["train_seconds"] for line in lines), 2),
        "whole_seconds": round(whole, 2),
        "saving_seconds": round(saving, 3),
        "milliseconds_per_checkpoint": round(1000 * saving / len(lines), 1),
        "milliseconds_to_write_one": round(1000 * writing, 1),
        "bytes_per_checkpoint": size,
        "share_of_training": round(saving / sum(line["train_seconds"] for line in lines), 5),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "reliability.json")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--epochs", type=int, default=3, help="of the timed training, after its burn-in")
    parser.add_argument("--recipe", default="fashion-mini-cnn-dyart")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder, began = Path(tempfile.mkdtemp(prefix="dyart-bars-")), time.perf_counter()
    try:
        killed = kills(folder, options.kills)
        met = faults(folder, options.faults)
        cost = overhead(folder, options.recipe, options.epochs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    exact = sum(all(entry[name] for name in ("mid_run", "killed", "resumed", "exact")) for entry in killed)
    bad = [entry for entry in met if entry["lost"]]
    summary = {
        "kills": len(killed),
        "resumed_exactly": exact,
        "faults": len(met),
        "faults_that_killed": sum(entry["killed"] for entry in met),
        "lost_checkpoints": len(bad),
        "checkpoint_share_of_training": cost["share_of_training"],
    }
    passed = exact == len(killed) and not bad and cost["share_of_training"] < SHARE
    content = {
        "machine": {"platform": platform.platform(), "processor": platform.processor() or platform.machine()}
        | {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "versions": versions(),
        "seconds": round(time.perf_counter() - began),
        "settings": {"kills": SETTINGS | {"methods": METHODS}, "bar_for_the_share": SHARE},
        "summary": summary | {"passed": passed},
        "checkpoints": cost,
        "faults_by_kind": dict(Counter(entry["fault"] for entry in met)),
        "faults_by_operation": dict(Counter(entry["operation"] for entry in met)),
        "records": killed,
        "lost": bad,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(summary, indent=1), options.out, "passed" if passed else "NOT passed", sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
