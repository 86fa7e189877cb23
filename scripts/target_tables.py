"""Tables of trainings that are to reach an accuracy in little time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import published_tables as published

from plan import TARGET_RADIUS
from run_records import CLEAN


def seconds(name: str) -> str:
    """Return what every run of a group reached, and after how many seconds."""
    lines = []
    for run in sorted(published.groups()[name].runs, key=lambda run: run.label):
        assert run.target is not None
        head = [run.label, published.settings_of(run), str(run.seed)]
        records = published.records_of([run])
        lines.append(head + (_reached(records[0], run.target) if records else [published.NOT_YET, *[""] * 5]))
    columns = ["clean, %", f"{TARGET_RADIUS}, %", "epochs", "s", "compiling", "JSON"]
    return published.grid(["", "settings", "seed", *columns], lines)


def _reached(record: Mapping[str, Any], target: float) -> list[str]:
    robust = record["robust"][TARGET_RADIUS]
    accuracies = [f"{100 * record[CLEAN]:.2f}", f"{100 * robust:.2f}" + ("" if robust >= target else " (not reached)")]
    times = [str(record["epochs"]), f"{record['wall_seconds']:.1f}", f"{record['start_seconds']:.1f}"]
    return [*accuracies, *times, published.links([record])]


def makers() -> dict[str, Callable[[], str]]:
    """Return the tables by name, which is the group's."""
    names: Sequence[str] = [name for name, group in published.groups().items() if group.runs[0].target]
    return {name: partial(seconds, name) for name in names}


MAKERS = makers()
