"""The figure of the trials: what each gives and takes beside the first, on clean images and at 8/255."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import published_tables as published
from trial_tables import COMPARED, difference, done

from dyart.evaluation.paired import Difference
from dyart.report import style
from run_records import CLEAN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP = "trials"
ROW, EDGE = 0.16, 0.7  # inches: of a trial, and of titles and numbers
# What the others are to be told from: trained as the recipes have it, by other methods.
METHODS = ("AT", "TRADES")
WIDEST = 15.0  # points: a trial that is farther off is an arrow, with its number


def trials() -> dict[str, list[dict[str, Any]]]:
    """Return the trials that are there by label, the first of the group first."""
    rows = published.groups()[GROUP].rows.values()
    return {runs[0].label: records for runs in rows if (records := done(runs))}


def files() -> list[Path]:
    """Return the files that the figure is drawn from; none where there is nothing to compare."""
    found = trials()
    names = [record["name"] for records in found.values() for record in records]
    comparable = published.groups()[GROUP].runs[0].label in found and len(found) > 1
    return [published.RESULTS / f"{name}.json" for name in names] if comparable else []


def against_first() -> "Figure":
    """Draw the paired differences from the first trial with intervals over images, the best at 8/255 on top."""
    from matplotlib.figure import Figure

    (first, usual), *others = trials().items()
    found = {label: [difference(usual, records, column) for column in (CLEAN, COMPARED)] for label, records in others}
    found = dict(sorted(found.items(), key=lambda item: item[1][1].mean))
    with style.style():
        figure = Figure(figsize=(style.PAGE, EDGE + ROW * len(found)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for panel, title, column in zip(panels, ("clean", COMPARED), zip(*found.values(), strict=True), strict=True):
            _panel(panel, dict(zip(found, column, strict=True)))
            panel.set_title(title)
        panels[0].set_yticks(range(len(found)), found)
        for label in panels[0].get_yticklabels():
            label.set_fontweight("bold" if label.get_text() in METHODS else "normal")
        figure.supxlabel(f"minus {first}, points", fontsize=style.SETTINGS["axes.labelsize"])
    return figure


def _panel(panel: "Axes", found: dict[str, Difference]) -> None:
    for place, (label, one) in enumerate(found.items()):
        middle, low, high = (100 * value for value in (one.mean, one.low, one.high))
        colour = style.COLOURS[1] if label in METHODS else style.BLACK
        if abs(middle) > WIDEST:
            words, x, side = (f"{middle:+.1f} →", 0.99, "right") if middle > 0 else (f"← {middle:+.1f}", 0.01, "left")
            across = panel.get_yaxis_transform()
            panel.text(x, place, words, transform=across, ha=side, va="center", fontsize=style.SETTINGS["font.size"])
        else:
            panel.errorbar(middle, place, xerr=[[middle - low], [high - middle]], fmt="o", markersize=3, color=colour)
    panel.axvline(0, color=style.BLACK, linewidth=0.6)
    panel.margins(y=0.02)
