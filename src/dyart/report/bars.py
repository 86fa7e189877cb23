"""Positive and negative speeds per margin interval, methods side by side on the same models (the paper's figure 5)."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dyart.report import style
from dyart.report.scatter import Cloud, Dots, dots_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Width of an interval's bars together; the intervals are 1 apart.
GROUP = 0.84
# Examples that an interval needs for a percentage: of fewer it would say nothing.
FEW = 20
# Panels side by side; in narrower ones the names of the intervals would meet.
ABREAST = 2


def speed_bars(
    panels: Mapping[str, Mapping[str, Cloud]], edges: Sequence[float], unit: str = "", update: str | None = None
) -> "Figure":
    """Return a figure with one panel per model: bars up for positive speeds, down for negative ones.

    Heights are shares of all examples of the panel; the number below a bar is the share of negative speeds inside its
    interval, where it has at least ``FEW`` examples.

    Args:
        panels: by model, then by method.
        edges: of the margin intervals, from 0; the last may be infinite.
        unit: what a number on the axis of margins is, e.g. ``/255`` to write them so.
        update: what moves the boundary, ``"gradient"`` or ``"optimizer"``, to say it at the axis.

    Raises:
        ValueError: there is nothing to draw, or a cloud has not one margin and one speed per example.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    style.check_update(update)
    if not panels or not all(panels.values()):
        raise ValueError("bars need at least one model with at least one method")
    methods = list(dict.fromkeys(method for clouds in panels.values() for method in clouds))
    colours = style.method_colours(methods)
    with style.style():
        columns = min(len(panels), ABREAST)
        rows = math.ceil(len(panels) / columns)
        width = style.COLUMN if columns == 1 else style.PAGE
        figure = Figure(figsize=(width, 0.6 + 1.8 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, (model, clouds) in zip(axes.flat, panels.items(), strict=False):
            _draw(axis, {name: dots_of(cloud) for name, cloud in clouds.items()}, edges, colours, methods)
            axis.set_title(style.title(model, width / columns), loc="left", fontweight="bold")
            axis.set_xlabel("margin" + (f" in 1{unit}" if unit else ""))
            axis.set_xticks(range(len(edges) - 1), _labels(edges, unit))
        words = f"numbers: share of the interval with negative speed,\nwhere it has {FEW} examples or more"
        figure.supxlabel(f"speeds under {style.UPDATES[update]}\n{words}" if update else words, fontsize=7)
        for axis in axes[:, 0]:
            axis.set_ylabel("share of examples\n$\\leftarrow$ negative   positive $\\rightarrow$")
        handles = [Patch(facecolor=colours[method], label=style.method_name(method)) for method in methods]
        figure.legend(handles=handles, loc="outside upper right", ncols=min(len(methods), 3 * columns))
    return figure


def write_bars(
    panels: Mapping[str, Mapping[str, Cloud]],
    edges: Sequence[float],
    path: str | Path,
    unit: str = "",
    update: str | None = None,
) -> list[Path]:
    """Write ``speed_bars`` as PDF, SVG and PNG, beside each other, and return the files.

    Args:
        panels: by model, then by method.
        edges: of the margin intervals, from 0; the last may be infinite.
        path: of the files; a suffix that names one of the formats does not count.
        unit: what a number on the axis of margins is, e.g. ``/255`` to write them so.
        update: what moves the boundary, ``"gradient"`` or ``"optimizer"``, to say it at the axis.
    """
    return style.save(speed_bars(panels, edges, unit, update), path)


def _draw(
    axis: "Axes", clouds: Mapping[str, Dots], edges: Sequence[float], colours: dict[str, str], methods: list[str]
) -> None:
    width = GROUP / len(methods)
    for place, method in enumerate(methods):
        if method not in clouds:
            continue
        margin, speed = clouds[method]
        count = max(len(margin), 1)
        positive = np.histogram(margin[speed >= 0], edges)[0]
        negative = np.histogram(margin[speed < 0], edges)[0]
        x = np.arange(len(edges) - 1) + (place - (len(methods) - 1) / 2) * width
        axis.bar(x, positive / count, 0.94 * width, color=colours[method])
        # Hatched: told apart in black and white, too.
        axis.bar(
            x, -negative / count, 0.94 * width, color=colours[method], alpha=0.55, hatch="////", edgecolor="white", lw=0
        )
        for position, down, up in zip(x, negative, positive, strict=True):
            if down + up >= FEW:
                axis.annotate(
                    f"{100 * down / (down + up):.0f}%", (position, -down / count), (0, -2), va="top", ha="center",
                    textcoords="offset points", fontsize=6, rotation=0 if len(methods) < 3 else 90,
                )  # fmt: skip
    axis.axhline(0, color=style.BLACK, linewidth=0.6)
    axis.margins(y=0.12 if len(methods) < 3 else 0.4)  # room for the numbers
    axis.yaxis.set_major_formatter(lambda value, _: f"{abs(100 * value):g}%")


def _labels(edges: Sequence[float], unit: str) -> list[str]:
    scale = 255 if unit == "/255" else 1
    pairs = pairwise(edges)
    return [
        f"\N{GREATER-THAN OR EQUAL TO} {scale * low:.3g}"
        if math.isinf(high)
        else f"{scale * low:.3g}\N{EN DASH}{scale * high:.3g}"
        for low, high in pairs
    ]
