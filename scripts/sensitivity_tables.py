"""Tables of the runs along one setting each, and whether they go where the paper says."""

from collections.abc import Callable
from functools import partial

import published_tables as published

from dyart.evaluation.paired import Difference
from plan import written
from run_records import CLEAN

GROUP = "sensitivity"
# What the paper says of a larger (of r0: a smaller) value, by column: its appendix, "Hyperparameter Sensitivity".
DIRECTIONS: dict[str, tuple[bool, dict[str, int]]] = {
    "method.alpha": (True, {CLEAN: 1, "2/255": 1, "4/255": 1, "12/255": -1, "16/255": -1}),
    "method.r0": (False, {CLEAN: 1, "2/255": 1, "12/255": -1, "16/255": -1}),
    "method.lam": (True, {CLEAN: -1, "2/255": -1, "4/255": -1, "12/255": 1, "16/255": 1}),
}


def shown(value: object) -> str:
    """Return a value as the pages have it."""
    return {"null": "off"}.get(written(value), written(value))


def axis(key: str) -> str:
    """Return the runs along one setting, all else being that of the base."""
    group = published.groups()[GROUP]
    lines = []
    for value, runs in group.of_axis(key).items():
        first = shown(value) + (" (base)" if value == group.base[key] else "")
        records = published.records_of(runs)
        if not records:
            lines.append([first, published.NOT_YET, *[""] * 8])
            continue
        record = records[0]
        held_out = record["validation"]["val_robust"][record["best_epoch"] - 1]
        accuracies = [published.cell(published.values_of(records, column)) for column in published.COLUMNS]
        times = [f"{100 * held_out:.1f}", published.effort(records)[1]]
        lines.append([first, *accuracies, *times, published.links(records)])
    head = [f"`{key}`", "clean, %", *published.RADII, "hold-out, PGD-20", published.EFFORT[1], "JSON, seed"]
    return published.grid_of_runs("Runs along this setting", head, lines)


def directions() -> str:
    """Return what the paper says of its settings beside the paired difference between the ends of each axis."""
    group, lines = published.groups()[GROUP], []
    for key, (upwards, expected) in DIRECTIONS.items():
        values = group.axes[key] if upwards else group.axes[key][::-1]
        runs = group.of_axis(key)
        first, second = (published.records_of(runs[value]) for value in (values[0], values[-1]))
        title = f"`{key}` {written(values[0])} → {written(values[-1])}"
        if not first or not second:
            lines.append([title, published.NOT_YET, *[""] * (len(published.COLUMNS) - 1)])
            continue
        found = {column: published.difference(first, second, column) for column in published.COLUMNS}
        lines.append([title, *(_verdict(one, expected.get(column, 0)) for column, one in found.items())])
    return published.grid_of_runs("Differences", ["points", "clean", *published.RADII], lines)


def _verdict(found: Difference, expected: int) -> str:
    """Return a difference, and whether it has the sign that the paper reports."""
    if not expected:
        return str(found)
    clear = 1 if found.low > 0 else -1 if found.high < 0 else 0
    word = {expected: "as the paper", -expected: "against the paper", 0: "open"}[clear]
    return f"{found}, {word}"


def makers() -> dict[str, Callable[[], str]]:
    """Return the tables by name: one per setting, and one of the paper's directions."""
    names = {key: key.partition(".")[2].replace("_", "-") for key in published.groups()[GROUP].axes}
    words = "What a value of a setting gives and takes at every radius"
    picture = partial(published.figure, "settings-against-base", words, "python benchmarks/run_queue.py run")
    return {"directions": directions, "figure-settings": picture} | {
        f"axis-{name}": partial(axis, key) for key, name in names.items()
    }


MAKERS = makers()
