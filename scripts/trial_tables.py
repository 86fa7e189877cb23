"""Tables of trials: what was tried, judged on training images that no trial was trained on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import published_tables as published

from dyart.evaluation.paired import Difference, paired_difference
from plan import Run
from run_records import CLEAN, evaluation_of, flags_of

TIER, COMPARED = "margins", "8/255"
KINDS = ("clean", "robust")  # of accuracy, as the training logs it


def trials(name: str) -> str:
    """Return clean and robust accuracies of a group's trials, and how each differs from the first, paired by image."""
    group = published.groups()[name]
    found = {row: done(runs) for row, runs in group.rows.items()}
    first = next(iter(found.values()))
    lines = []
    for row, runs in group.rows.items():
        records, label, setting = found[row], runs[0].label, published.settings_of(runs[0])
        if not records:  # one of the ideas that wait: see conditions
            continue
        shares = [published.cell([100 * _share(record, column) for record in records]) for column in published.COLUMNS]
        against = str(difference(first, records)) if first and records is not first else ""
        lines.append([label, setting, *shares, against, *published.effort(records)[:2], published.links(records)])
    head = ["", "settings", "clean, %", *published.RADII, f"{COMPARED}, minus the first"]
    head += [*published.EFFORT[:2], "JSON, seed"]
    return published.grid_of_runs("Trials", head, lines)


def carried_over(name: str) -> str:
    """Return, of trials that measured it, accuracies on images they were trained on beside those of the hold-out."""
    lines = []
    for runs in published.groups()[name].rows.values():
        for record in done(runs):
            at_best = {key: values[record["best_epoch"] - 1] for key, values in record["validation"].items() if values}
            if at_best.get("train_robust") is None:
                continue
            trained, held_out = ([100 * at_best[f"{part}_{kind}"] for kind in KINDS] for part in ("train", "val"))
            lost = [after - before for before, after in zip(trained, held_out, strict=True)]
            numbers = [f"{value:.1f}" for value in (*trained, *held_out)] + [f"{value:+.1f}" for value in lost]
            lines.append([runs[0].label, *numbers])
    head = [
        "PGD-20, best epoch, %",
        "trained on: clean",
        COMPARED,
        "held out: clean",
        COMPARED,
        "difference: clean",
        COMPARED,
    ]
    return published.grid(head, lines) if lines else f"\nAccuracies on images of the training: {published.NOT_YET}.\n"


def conditions(name: str) -> str:
    """Return how a group's trials were judged, how many there are, which failed, and which were not run yet."""
    group = published.groups()[name]
    records, judged = published.read(group.runs), done(group.runs)
    lengths = [record["epochs"] for record in judged] or [run.epochs for run in group.runs]
    epochs = " to ".join(map(str, sorted({min(lengths), max(lengths)})))
    words = f"{len(judged)} of {len(group.runs)} trials are there, {epochs} epochs each, "
    words += f"judged on {group.runs[0].judge:,} training images that none was trained on."
    if common := published.common_settings(group):
        words += f" All with {published.named_settings(common)}."
    if judged:
        words += f" GPU: {judged[0]['gpu']}; torch {judged[0]['versions']['torch']}."
    failed = [record["name"] for record in records if "failed" in record]
    words += f" Failed: {', '.join(failed)}." if failed else ""
    left = [run for run in group.runs if not published.read([run])]
    waiting = [f"{run.label}, seed {run.seed}" if run.seed else run.label for run in left]
    words += f"\n\n{published.NOT_YET.capitalize()}: {'; '.join(waiting)}." if judged and waiting else ""
    return f"\n{words}\n"


def done(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the records of trials that were trained and judged."""
    return [record for record in published.read(runs) if evaluation_of(record, "best", TIER) is not None]


def _part(record: Mapping[str, Any]) -> dict[str, Any]:
    part = evaluation_of(record, "best", TIER)
    assert part is not None
    return part


def _share(record: Mapping[str, Any], column: str) -> float:
    part = _part(record)
    return float(part[CLEAN] if column == CLEAN else part["robust"][column])


def difference(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], column: str = COMPARED
) -> Difference:
    """Return how much more often the second trials are right than the first, paired by image."""
    return paired_difference(*([_flags(record, column) for record in records] for records in (first, second)))


def _flags(record: Mapping[str, Any], column: str) -> np.ndarray:
    return flags_of(_part(record), column).astype(float)


def makers() -> dict[str, Callable[[], str]]:
    """Return the tables by name, which ends with the group's."""
    names = [name for name, group in published.groups().items() if group.runs[0].judge]
    made: dict[str, Callable[[], str]] = {f"trials-{name}": partial(trials, name) for name in names}
    made |= {f"carried-over-{name}": partial(carried_over, name) for name in names}
    made |= {f"conditions-{name}": partial(conditions, name) for name in names}
    words, run = "What every trial gives and takes beside the first", "python benchmarks/run_queue.py run --only trials"
    return made | {"figure-trials": partial(published.figure, "trials-against-first", words, run)}


MAKERS = makers()
