"""Tables of trainings that are to reach an accuracy in little time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import published_tables as published

from plan import Run
from run_records import CLEAN


def seconds(name: str) -> str:
    """Return what every run of a group reached, and after how many seconds."""
    group, lines = published.groups()[name], []
    for run in sorted(group.runs, key=lambda run: run.label):
        head = [run.label, published.settings_of(run), str(run.seed)]
        records = published.records_of([run])
        lines.append(head + (_reached(records[0], run) if records else [published.NOT_YET, *[""] * 5]))
    columns = ["clean, %", f"{group.radius}, %", "epochs", "s", "compiling", "JSON"]
    return published.grid(["", "settings", "seed", *columns], lines)


def _reached(record: Mapping[str, Any], run: Run) -> list[str]:
    assert run.target is not None
    robust = record["robust"][run.radius]
    missed = "" if robust >= run.target else " (not reached)"
    accuracies = [f"{100 * record[CLEAN]:.2f}", f"{100 * robust:.2f}{missed}"]
    times = [str(record["epochs"]), f"{record['wall_seconds']:.1f}", f"{record['start_seconds']:.1f}"]
    return [*accuracies, *times, published.links([record])]


def makers() -> dict[str, Callable[[], str]]:
    """Return the tables by name, which is the group's."""
    names: Sequence[str] = [name for name, group in published.groups().items() if group.runs[0].target]
    return {name: partial(seconds, name) for name in names}


MAKERS = makers()
