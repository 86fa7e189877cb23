"""The figure of all methods on the embedded images: accuracy by radius."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import published_tables as published

from dyart.attacks.radius import Radius
from dyart.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUP = "fashion-mini-methods"
FIRST = "DyART"


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return the records of every method that has any."""
    found = {runs[0].label: published.records_of(runs) for runs in published.groups()[GROUP].rows.values()}
    return {label: records for label, records in found.items() if records}


def files() -> list[Path]:
    """Return the files that the figure is drawn from; none where there is nothing to compare."""
    found = rows()
    names = [record["name"] for records in found.values() for record in records]
    return [published.RESULTS / f"{name}.json" for name in names] if len(found) > 1 else []


def by_radius() -> "Figure":
    """Draw the mean accuracy over seeds against the radius; with AWP in dashes, other variants dotted."""
    from matplotlib.figure import Figure

    group, found = published.groups()[GROUP], rows()
    places = [0.0, *(float(Radius(radius)) for radius in group.radii)]
    methods = {label: label.partition(",")[0].removesuffix("-AWP").lower() for label in found}
    colours = style.method_colours(list(dict.fromkeys(methods.values())))
    with style.style():
        figure = Figure(figsize=(style.PAGE, 2.8), layout="constrained")
        axis = figure.subplots()
        for label, records in found.items():
            look: Mapping[str, Any] = {"color": colours[methods[label]], "label": label}
            line = "--" if label.endswith("-AWP") else ":" if "," in label else "-"
            heights = [mean(published.values_of(records, column)) for column in (published.CLEAN, *group.radii)]
            width, above = (1.8, 3) if label == FIRST else (0.9, 2)
            axis.plot(places, heights, line, marker=".", markersize=4, linewidth=width, zorder=above, **look)
        axis.axvline(float(Radius(group.radius)), color=style.BLACK, linewidth=0.6, linestyle=":")
        axis.set_xticks(places, ["clean", *group.radii])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("radius")
        axis.set_ylabel("accuracy, %")
        figure.legend(loc="outside right upper")
    return figure
