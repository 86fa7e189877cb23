"""The figure of all methods on the embedded images: beside AT up to the radius of its training, and beyond it."""

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import published_tables as published

from dyart.attacks.radius import Radius
from dyart.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP = "fashion-mini-methods"
FIRST, BESIDE = "DyART", "AT"
MARKERS = "osD^v<>PX*hpd8"
WIDTH = 0.75  # of the rows of a column, which stand side by side
Rows = dict[str, list[dict[str, Any]]]


class Look(NamedTuple):
    """How a row is drawn in both panels: variants of a method have its colour."""

    color: str
    marker: str
    line: str
    first: bool


def rows() -> Rows:
    """Return the records of every method that has any; natural training is off every scale."""
    found = {runs[0].label: published.records_of(runs) for runs in published.groups()[GROUP].rows.values()}
    return {label: records for label, records in found.items() if records and label != "natural"}


def files() -> list[Path]:
    """Return the files that the figure is drawn from; none unless AT and one more are there."""
    found = rows()
    names = [record["name"] for records in found.values() for record in records]
    return [published.RESULTS / f"{name}.json" for name in names] if BESIDE in found and len(found) > 1 else []


def by_radius() -> "Figure":
    """Draw paired differences from AT up to its radius, with intervals over images, and mean accuracies from there."""
    from matplotlib.figure import Figure

    group, found = published.groups()[GROUP], rows()
    near = group.radii.index(group.radius)
    methods = {label: label.partition(",")[0].removesuffix("-AWP").lower() for label in found}
    colours = style.method_colours(list(dict.fromkeys(methods.values())))
    looks = {
        label: Look(
            colours[methods[label]],
            MARKERS[place % len(MARKERS)],
            "--" if label.endswith("-AWP") else ":" if "," in label else "-",
            label == FIRST,
        )
        for place, label in enumerate(found)
    }
    with style.style():
        figure = Figure(figsize=(style.PAGE, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _against(left, found, looks, (published.CLEAN, *group.radii[: near + 1]))
        _beyond(right, found, looks, group.radii[near:])
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
    return figure


def _against(axis: "Axes", found: Rows, looks: dict[str, Look], columns: tuple[str, ...]) -> None:
    shown = [label for label in found if label != BESIDE]
    for place, label in enumerate(shown):
        differences = [published.difference(found[BESIDE], found[label], column) for column in columns]
        middle = np.array([100 * one.mean for one in differences])
        reach = np.array([(100 * (one.mean - one.low), 100 * (one.high - one.mean)) for one in differences]).T
        x = np.arange(len(columns)) + WIDTH * ((place + 0.5) / len(shown) - 0.5)
        size, thick = (5, 1.6) if looks[label].first else (3, 0.8)
        color, marker = looks[label].color, looks[label].marker
        axis.errorbar(x, middle, reach, fmt=marker, markersize=size, elinewidth=thick, color=color)
    axis.axhline(0, color=style.BLACK, linewidth=0.6)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_xlabel("radius")
    axis.set_ylabel(f"accuracy minus that of {BESIDE}, points")


def _beyond(axis: "Axes", found: Rows, looks: dict[str, Look], radii: tuple[str, ...]) -> None:
    places = [float(Radius(radius)) for radius in radii]
    for label, records in found.items():
        look, heights = looks[label], [mean(published.values_of(records, radius)) for radius in radii]
        width, above = (1.8, 3) if look.first else (0.9, 2)
        line = f"{look.marker}{look.line}"
        axis.plot(places, heights, line, markersize=3, linewidth=width, zorder=above, color=look.color, label=label)
    axis.set_xticks(places, radii)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("radius")
    axis.set_ylabel("accuracy, %")
