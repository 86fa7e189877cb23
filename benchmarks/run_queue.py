"""Runs the published trainings (benchmarks/published.yaml) that are missing in results/, as many as a time allows.

    python benchmarks/run_queue.py plan                                 what there is, what is missing, seconds each
    python benchmarks/run_queue.py next --seconds 1700                  the commands that fit
    python benchmarks/run_queue.py run --seconds 570 --out DIR          run them; call it again to go on
    python benchmarks/run_queue.py run --seconds 570 --whole            begin nothing that will not end in time

Everything is kept in --work (run folders with checkpoints, journals of attacks, weights, JSON, one cache for compiled
code): a training or an attack that the time cuts short goes on at the next call with the same --work. What is finished
is copied to --out, if given: `results/NAME.json` and `weights/NAME.safetensors` (16 bit); with these (--results and
--weights) another machine goes on with the attacks of a training. --parallel K runs K at a time on the same device; MPS
(`nvidia-cuda-mps-control -d` before it) lets them share a GPU instead of taking turns. --only takes groups or parts of
names, and runs them in that order. A run that failed is recorded, and not run again without --retry. Options of every
run go after `--`: `... run --seconds 60 -- --data.limit 1000`.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plan
import run_records
from dyart.cli.errors import reader_gone
from plan import Run

SCRIPT = Path(__file__).with_name("train_and_attack.py")
STOPPED = (75, -signal.SIGTERM)
# Seconds: before the end in which nothing is begun; that a stop may take; that a piece of a run must have to be worth
# its start.
RESERVE, GRACE, WORTH = 15.0, 20.0, 90.0
TAIL = 1500  # characters of a log, for the record of a crash


@dataclass(frozen=True)
class Place:
    """Folders that have records of runs and, perhaps, their weights."""

    results: Path
    weights: Path | None

    def weights_of(self, run: Run) -> list[Path]:
        """Return the files of a run's weights, those of the best epoch first; none where these are missing."""
        files = [] if self.weights is None else [self.weights / f"{run.name}{end}.safetensors" for end in ("", "-last")]
        return [file for file in files if file.is_file()] if files and files[0].is_file() else []


@dataclass(frozen=True)
class Task:
    """What is left of a run, and about how long it takes."""

    run: Run
    stages: tuple[str, ...]
    seconds: float


@dataclass
class Job:
    """A task at work."""

    task: Task
    process: "subprocess.Popen[bytes]"
    began: float
    told: bool = False


def known_records(results: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records in some folders of runs that were trained and attacked."""
    files = [path for folder in results for path in sorted(folder.glob("*-seed*.json"))]
    return [record for record in map(run_records.read, files) if "evaluations" in record]


def tasks(runs: Sequence[Run], places: Sequence["Place"], retry: bool = False) -> list[Task]:
    """Return what is missing, in the order of the plan.

    Args:
        runs: of the plan.
        places: where results and weights may be; of several the first that has a run's record counts.
        retry: what failed is missing, too.
    """
    known = known_records([place.results for place in places])
    found = []
    for run in runs:
        record = next((record for place in places if (record := plan.record_of(run, place.results)) is not None), None)
        if retry and record is not None:
            record = {key: value for key, value in record.items() if key != "failed"}
        stages = plan.missing(run, record)
        if record is not None and "failed" not in record and "train" not in stages and stages:
            # Weights that are nowhere are trained again: there is nothing to attack.
            stages = stages if any(place.weights_of(run) for place in places) else plan.missing(run, None)
        if stages:
            found.append(Task(run, tuple(stages), plan.seconds(run, stages, known)))
    return found


def chosen(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """Return runs by group or part of the name, in the order of the choice; all, as planned, without one.

    Raises:
        SystemExit: a choice names none.
    """
    for word in only:
        if not any(word == run.group or word in run.name for run in runs):
            names = ", ".join(dict.fromkeys(run.group for run in runs))
            raise SystemExit(f"--only {word}: no group and no run of that name; the groups are {names}")
    groups = {run.group for run in runs}

    def named(run: Run, word: str) -> bool:
        return word == run.group if word in groups else word in run.name

    if not only:
        return list(runs)
    return list({run.name: run for word in only for run in runs if named(run, word)}.values())


def fitting(waiting: Sequence[Task], seconds: float) -> list[Task]:
    """Return tasks that end within some seconds, one after the other; a later one may fill what an earlier leaves."""
    taken, left = [], seconds
    for task in waiting:
        if task.seconds <= left:
            taken.append(task)
            left -= task.seconds
    return taken


def command(task: Task, work: Path, more: Sequence[str] = ()) -> list[str]:
    """Return the words that run a task."""
    run = task.run
    places = ["--results", str(work / "results"), "--weights", str(work / "weights"), "--out", str(work / run.name)]
    recipe, *settings = plan.words(run)
    attacks = ["--attacks", *run.attacks, "--images", str(run.images)]
    attacks += ["--judge", str(run.judge)] if run.judge else []
    attacks += ["--radii", run.radius if run.target else ",".join(run.radii), "--last", run.radius if run.last else ""]
    return [sys.executable, str(SCRIPT), recipe, "--name", run.name, *places, *attacks, *settings, *more]


class Queue:
    """Runs tasks until a deadline, some at a time."""

    def __init__(self, options: argparse.Namespace, clock: Any = time.monotonic) -> None:  # noqa: ANN401
        self.work, self.out, self.more = options.work, options.out, options.more
        self.brought = Place(options.results, options.weights)
        self.clock, self.end = clock, clock() + options.seconds
        self.parallel, self.whole = options.parallel, options.whole
        self.jobs: list[Job] = []
        self.ended: dict[str, str] = {}
        # One cache for all: what one process compiles, the next loads.
        self.environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str((self.work / "compiled").absolute())}

    def run(self, waiting: list[Task]) -> dict[str, str]:
        """Run what fits, and return how each that was begun ended: done, stopped or failed."""
        waiting = list(waiting)
        try:
            while self.jobs or waiting:
                while len(self.jobs) < self.parallel and (task := self._next(waiting)) is not None:
                    waiting.remove(task)
                    self._begin(task)
                if not self.jobs:
                    break
                time.sleep(0.2)
                self._look()
        finally:
            for job in self.jobs:  # of an error here, or Ctrl-C
                job.process.terminate()
        return self.ended

    def _next(self, waiting: list[Task]) -> Task | None:
        """Return the first that is worth beginning in the time that is left; one that is timed runs alone."""
        left = self.end - self.clock() - RESERVE - GRACE
        needs = [(task, task.seconds if self.whole else min(task.seconds, WORTH)) for task in waiting]
        found = next((task for task, needed in needs if needed <= left), None)
        running = [job.task.run for job in self.jobs]
        if found is None or not running or not (found.run.target or any(run.target for run in running)):
            return found
        return None

    def _bring(self, task: Task) -> None:
        """Take over what was trained elsewhere and is not here; forget a training whose weights are nowhere."""
        record = self.work / "results" / f"{task.run.name}.json"
        if "train" in task.stages:
            if "train_seconds" in run_records.read(record):
                record.unlink()
            return
        for file in self.brought.weights_of(task.run):
            if not (self.work / "weights" / file.name).is_file():
                _copy(file, self.work / "weights")
        source = self.brought.results / record.name
        if not record.exists() and source.is_file():
            _copy(source, record.parent)

    def _begin(self, task: Task) -> None:
        self._bring(task)
        folder = self.work / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        together = 1 if task.run.target else self.parallel
        words = command(task, self.work, ["--together", str(together), *self.more])
        with (folder / f"{task.run.name}.txt").open("ab") as log:
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
        self.jobs.append(Job(task, process, self.clock()))
        _say(f"begun: {task.run.name} ({', '.join(task.stages)}), about {task.seconds:.0f} s")

    def _look(self) -> None:
        left = self.end - self.clock()
        for job in list(self.jobs):
            if job.process.poll() is None:
                if left < GRACE and not job.told:
                    job.process.terminate()
                    job.told = True
                elif left < GRACE / 10:  # what does not stop when told; its last checkpoint stays
                    job.process.kill()
                continue
            self.jobs.remove(job)
            self._note(job)

    def _note(self, job: Job) -> None:
        run, status = job.task.run, job.process.returncode
        stopped = status in STOPPED or job.told
        how = "done" if status == 0 else "stopped" if stopped else "failed"
        path = self.work / "results" / f"{run.name}.json"
        if how == "failed" and "failed" not in run_records.read(path):  # it had no time to say so itself
            log = (self.work / "logs" / f"{run.name}.txt").read_text(errors="replace")[-TAIL:]
            head = {"name": run.name, "recipe": run.recipe, "seed": run.seed}
            words = f"the process ended with status {status}: {''.join(log.splitlines()[-1:])}"
            failure = {"stage": "unknown", "error": words, "log": log}
            run_records.write(path, head | run_records.read(path) | {"failed": failure})
        self.ended[run.name] = how
        record = run_records.read(path)
        why = f" ({record['failed']['error']})" if how == "failed" else ""
        self._hand_out(run)
        _say(f"{how}: {run.name} after {self.clock() - job.began:.0f} s{_accuracies(record)}{why}")

    def _hand_out(self, run: Run) -> None:
        """Copy what there is of a run; half a run, too: the time may be over before it goes on."""
        if self.out is None:
            return
        files = [("results", ".json")]
        if not run.judge:  # of a trial its figures count
            files.append(("weights", ".safetensors"))
        if "last" in plan.missing(run, plan.record_of(run, self.work / "results")):
            files.append(("weights", "-last.safetensors"))
        for kind, suffix in files:
            source = self.work / kind / f"{run.name}{suffix}"
            if source.is_file():
                _copy(source, self.out / kind)


def _copy(file: Path, folder: Path) -> None:
    """Copy a file into a folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{file.name}.part"
    shutil.copy2(file, partial)
    partial.replace(folder / file.name)


def _accuracies(record: dict[str, Any]) -> str:
    if "robust" not in record:
        return ""
    shares = {"clean": record["clean"], **record["robust"]}
    return ": " + ", ".join(f"{name} {100 * share:.2f}" for name, share in shares.items())


def show(runs: Sequence[Run], places: Sequence[Place]) -> None:
    """Print runs of the plan: per group what is done, and what is missing with its seconds."""
    total = 0.0
    for group in dict.fromkeys(run.group for run in runs):
        shown = [run for run in runs if run.group == group]
        missing = {task.run.name: task for task in tasks(shown, places)}
        print(f"{group}: {len(shown) - len(missing)} of {len(shown)} runs done")
        for run in shown:
            record = next((r for place in places if (r := plan.record_of(run, place.results)) is not None), {})
            words = "failed" if "failed" in record else "done"
            if (task := missing.get(run.name)) is not None:
                words = f"{task.seconds:5.0f} s  {', '.join(task.stages)}"
            print(f"  {run.name:52} {words}")
        total += sum(task.seconds for task in missing.values())
    print(f"all that is missing: about {total:.0f} s, {total / 60:.0f} min")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("verb", choices=["plan", "next", "run"])
    made.add_argument("--seconds", type=float, default=570.0)
    made.add_argument("--plan", type=Path, default=plan.PLAN)
    made.add_argument("--results", type=Path, default=plan.RESULTS, help="what is published already")
    made.add_argument("--weights", type=Path, help="of runs in --results that are still to be attacked")
    made.add_argument("--work", type=Path, default=Path("runs/queue"))
    made.add_argument("--out", type=Path)
    made.add_argument("--only", nargs="+", default=[], metavar="GROUP_OR_NAME")
    made.add_argument("--parallel", type=int, default=1, metavar="K")
    made.add_argument("--whole", action="store_true")
    made.add_argument("--retry", action="store_true", help="run what failed again")
    return made


def _say(words: str) -> None:
    """Print a line now; work goes on where nobody reads it any more."""
    try:
        print(words, flush=True)
    except BrokenPipeError:
        reader_gone()


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the verb says; return 1 where a run failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, more = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = parser().parse_args(own)
    options.more = more
    groups = plan.load_plan(options.plan)
    # The first may be ahead.
    places = [Place(options.work / "results", options.work / "weights"), Place(options.results, options.weights)]
    runs = chosen([run for group in groups for run in group.runs], options.only)
    if options.verb == "plan":
        show(runs, places)
        return 0
    waiting = tasks(runs, places, options.retry)
    if options.verb == "next":
        for task in fitting(waiting, options.seconds):
            print(f"# about {task.seconds:.0f} s\n{shlex.join(command(task, options.work, more))}")
        return 0
    ended = Queue(options).run(waiting)
    left = tasks(runs, places)
    _say(f"{len(left)} of {len(runs)} runs are left, about {sum(task.seconds for task in left):.0f} s")
    return int("failed" in ended.values())


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()  # now, where a reader who has gone (`| head`) is no surprise
    except BrokenPipeError:
        status = reader_gone()
    sys.exit(status)
