"""The figure of the runs along one setting each: what a value gives and takes at every radius."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import published_tables as published
from sensitivity_tables import GROUP, shown

from dyart.report import style
from plan import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
HEIGHT = 2.1  # of a panel, inches


def along() -> dict[str, dict[str, list[Run]]]:
    """Return the runs that are there by setting and value, beside those of the base; only settings with any."""
    group = published.groups()[GROUP]
    found = {}
    for key in group.axes:
        values = {shown(value): runs for value, runs in group.of_axis(key).items() if value != group.base[key]}
        there = {value: runs for value, runs in values.items() if published.records_of(runs)}
        if there and published.records_of(base()):
            found[key] = there
    return found


def base() -> list[Run]:
    """Return the run that the others are compared with."""
    return [run for run in published.groups()[GROUP].runs if run.axis is None]


def files() -> list[Path]:
    """Return the files that the figure is drawn from; none where there is nothing to compare."""
    runs = [run for values in along().values() for several in values.values() for run in several]
    return [published.RESULTS / f"{run.name}.json" for run in [*base(), *runs]] if runs else []


def against_base() -> "Figure":
    """Draw accuracies minus those of the base, a panel per setting, with intervals over images."""
    from matplotlib.figure import Figure

    settings = along()
    rows = ceil(len(settings) / COLUMNS)
    with style.style():
        figure = Figure(figsize=(style.PAGE, HEIGHT * rows), layout="constrained")
        axes = figure.subplots(rows, COLUMNS, squeeze=False)
        for axis in axes.flat[len(settings) :]:
            axis.remove()
        for axis, (key, values) in zip(axes.flat, settings.items(), strict=False):
            _panel(axis, key, values)
        size = style.SETTINGS["axes.labelsize"]
        figure.supylabel("minus the base, points", fontsize=size)
        figure.supxlabel("radius, /255", fontsize=size)
    return figure


def _panel(axis: "Axes", key: str, values: dict[str, list[Run]]) -> None:
    usual = published.records_of(base())
    for place, (value, runs) in enumerate(values.items()):
        records = published.records_of(runs)
        found = [published.difference(usual, records, column) for column in published.COLUMNS]
        middle = np.array([100 * one.mean for one in found])
        reach = np.array([(100 * (one.mean - one.low), 100 * (one.high - one.mean)) for one in found]).T
        x = np.arange(len(found)) + 0.12 * (place - (len(values) - 1) / 2)
        axis.errorbar(
            x, middle, reach, fmt=".-", linewidth=0.8, elinewidth=0.8, color=style.COLOURS[place], label=value
        )
    axis.axhline(0, color=style.BLACK, linewidth=0.6)
    axis.set_xticks(range(len(published.COLUMNS)), [column.removesuffix("/255") for column in published.COLUMNS])
    axis.set_title(f"{key} (base: {shown(published.groups()[GROUP].base[key])})")
    axis.legend()
