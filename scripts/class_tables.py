"""Tables of accuracies by class (results/by-class.json, which benchmarks/classes.py makes)."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

import published_tables as published

from run_records import CLEAN

FILE = "by-class.json"
RADIUS = "8/255"
FEW = 3
Shares = Mapping[str, Sequence[float]]


def stored() -> dict[str, Any]:
    """Return the classes' names, and by run and column an accuracy for each."""
    path = published.RESULTS / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"classes": [], "runs": {}}


def by_label(name: str) -> dict[str, list[Shares]]:
    """Return the accuracies of a group's rows by class, one per seed that has them."""
    runs = stored()["runs"]
    rows = published.groups()[name].rows.values()
    known = {own[0].label: [runs[run.name] for run in own if run.name in runs] for own in rows}
    return {label: found for label, found in known.items() if found}


def mean_by_class(found: Sequence[Shares], column: str) -> list[float]:
    """Return the mean over seeds of every class, in per cent."""
    return [100 * mean(values) for values in zip(*(shares[column] for shares in found), strict=True)]


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the lowest three and of the highest three."""
    ranked = sorted(values)
    return mean(ranked[:FEW]), mean(ranked[-FEW:])


def classes(name: str) -> str:
    """Return every row's accuracy of every class at 8/255."""
    lines = []
    for label, found in by_label(name).items():
        values = mean_by_class(found, RADIUS)
        lines.append([label, *(f"{value:.1f}" for value in values), *(f"{value:.1f}" for value in ends(values))])
    head = [f"{RADIUS}, %", *stored()["classes"], "three lowest", "three highest"]
    return published.grid(head, lines) if lines else f"\nAccuracies by class: {published.NOT_YET}.\n"


def spread(name: str) -> str:
    """Return, of every row, what the means hide: the lowest class, and the ends at 8/255."""
    lines, names = [], stored()["classes"]
    for label, found in by_label(name).items():
        clean, robust = mean_by_class(found, CLEAN), mean_by_class(found, RADIUS)
        lowest = min(range(len(clean)), key=clean.__getitem__)
        least, most = ends(robust)
        lines.append([label, f"{mean(clean):.1f}", f"{clean[lowest]:.1f} ({names[lowest]})", f"{mean(robust):.1f}"])
        lines[-1] += [f"{least:.1f}", f"{most:.1f}"]
    head = ["mean over classes, %", "clean", "its lowest class", RADIUS, "its three lowest", "its three highest"]
    return published.grid(head, lines) if lines else f"\nAccuracies by class: {published.NOT_YET}.\n"


MAKERS: dict[str, Callable[[], str]] = {
    "classes-cifar10-resnet18-bn": partial(classes, "cifar10-resnet18-bn"),
    "classes-trials": partial(spread, "trials"),
}
