"""Accuracies by class of the published trainings on CIFAR-10, from the verdicts in results/ and the set's labels.

    python benchmarks/classes.py

Of runs on test images the best epoch under the tier `apgd`, of trials the left-out training images under `margins`.
Needs CIFAR-10 (`dyart data get cifar10`) and no network. Writes results/by-class.json.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import plan
from dyart.data import DataSet, load
from plan import RESULTS, Run
from run_records import CLEAN, evaluation_of, flags_of, write
from train_and_attack import judged

FILE = "by-class.json"
COLUMNS = (CLEAN, "8/255")


def accuracies(run: Run, record: dict[str, Any], data: DataSet) -> dict[str, list[float]] | None:
    """Return accuracies of every class by column; None where a run was not attacked, or on a part of the images."""
    found = evaluation_of(record, "best", "margins" if run.judge else "apgd")
    labels = (judged(data, run.judge) if run.judge else data).test.labels
    if found is None or found["images"] != len(labels):
        return None
    flags = {column: flags_of(found, column) for column in COLUMNS}
    classes = range(len(data.classes))
    return {column: [float(np.mean(held[labels == label])) for label in classes] for column, held in flags.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    data = load("cifar10")
    groups = [group for group in plan.load_plan(plan.PLAN) if group.runs[0].radius in COLUMNS]
    runs: dict[str, dict[str, list[float]]] = {}
    for run in (run for group in groups for run in group.runs):
        record = plan.record_of(run, options.results)
        if record is None or record.get("data") != "cifar10" or "failed" in record:
            continue
        if (found := accuracies(run, record, data)) is not None:
            runs[run.name] = {column: [round(value, 4) for value in values] for column, values in found.items()}
    write(options.results / FILE, {"classes": list(data.classes), "runs": runs})
    print(f"{len(runs)} runs: {options.results / FILE}")


if __name__ == "__main__":
    main()
