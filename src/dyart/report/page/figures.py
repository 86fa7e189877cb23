"""The plots that show all runs at once, as plain values for plotly: accuracy, training curves, margins.

Colours are names (``@blue``), which the page's script turns into those of the light or the dark theme. Texts are
escaped here, since plotly reads a little HTML in them.
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from dyart.attacks.radius import Radius
from dyart.evaluation.intervals import wilson
from dyart.report.page.files import Estimate
from dyart.report.page.run import Run
from dyart.report.page.words import NORMS, listed, percent

Figure = dict[str, Any]
Trace = dict[str, Any]

# At an axis with any steps: as many digits as it takes, so that no two of its numbers look the same.
PERCENT = ".2~%"
MOST_POINTS = 400
BINS = 40


def text(words: str) -> str:
    """Return words for plotly: ``<`` is a letter, not the beginning of a tag."""
    return html.escape(words, quote=False)


def figure(traces: list[Trace], alt: str, x: str, y: str, **layout: Any) -> Figure:  # noqa: ANN401
    """Return a figure with titles at its axes and a sentence for whoever cannot see it."""
    axes = {"xaxis": {"title": {"text": text(x)}}, "yaxis": {"title": {"text": text(y)}}}
    for name in axes:
        axes[name] |= layout.pop(name, {})
    return {"data": traces, "layout": axes | layout, "alt": alt}


def line(run: Run, number: int, x: Sequence[float], y: Sequence[float], **more: Any) -> Trace:  # noqa: ANN401
    """Return a line in a run's colour; ``meta`` tells the page whose it is."""
    style = {"color": f"@{run.colour}", "width": 2} | more.pop("line", {})
    trace = {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "name": text(run.name)}
    return trace | {"meta": {"run": number}, "line": style} | more


def radius_line(radius: float, words: str) -> dict[str, Any]:
    """Return a dashed vertical line with a label, as parts of a layout."""
    shape = {"type": "line", "x0": radius, "x1": radius, "y0": 0, "y1": 1, "yref": "paper"}
    shape |= {"line": {"color": "@muted", "width": 1, "dash": "dash"}}
    label = {"x": radius, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text(words), "showarrow": False}
    return {"shapes": [shape], "annotations": [label | {"font": {"color": "@muted", "size": 12}}]}


def accuracy(runs: Sequence[Run]) -> Figure | None:
    """Return robust accuracy against radius: attacked, with intervals, and by margins as a thin line."""
    traces: list[Trace] = []
    words: list[str] = []
    for number, run in enumerate(runs):
        traces += [trace for trace in (_by_margins(run, number), _attacked(run, number)) if trace]
        if run.accuracy:
            shares = [f"{radius} {percent(share.value)}" for radius, share in run.accuracy.robust.items()]
            words.append(f"{run.name}: {', '.join(['clean ' + percent(run.accuracy.clean.value), *shares])}")
    if not traces:
        return None
    alt = "Accuracy against the radius of the attack. " + "; ".join(words)
    yaxis = {"range": [0, 1], "tickformat": ".0%"}
    radius = f"radius ({_norms(runs)})"
    return figure(traces, alt, radius, "accuracy", yaxis=yaxis, xaxis={"rangemode": "tozero"}, hovermode="closest")


def _norms(runs: Sequence[Run]) -> str:
    return listed(sorted({NORMS.get(run.norm, run.norm) for run in runs}))


def _attacked(run: Run, number: int) -> Trace | None:
    if run.accuracy is None:
        return None
    shares = {0.0: run.accuracy.clean} | run.accuracy.robust
    names = ["clean", *(f"radius {radius}" for radius in run.accuracy.robust)]
    errors = {
        "type": "data",
        "symmetric": False,
        "array": [share.high - share.value for share in shares.values()],
        "arrayminus": [share.value - share.low for share in shares.values()],
        "color": f"@{run.colour}",
        "thickness": 1.5,
        "width": 4,
    }
    trace = line(run, number, [float(radius) for radius in shares], [share.value for share in shares.values()])
    trace |= {"mode": "lines+markers", "marker": {"size": 8, "color": f"@{run.colour}"}, "error_y": errors}
    return trace | {"text": names, "hovertemplate": "%{text}: %{y:.1%}<extra>%{fullData.name}</extra>"}


def _by_margins(run: Run, number: int) -> Trace | None:
    margins = distances(run)
    if margins is None:
        return None
    largest = max(run.accuracy.robust, default=run.radius) if run.accuracy else 2 * run.radius
    if not run.has_radius:
        largest = Radius(float(np.quantile(margins[np.isfinite(margins)], 0.95)))
    radii = np.linspace(0, 1.1 * float(largest), 121)
    shares = [float(np.mean(margins > radius)) for radius in radii]
    return line(run, number, radii.tolist(), shares, line={"width": 1, "dash": "dot"}, hoverinfo="skip")


def distances(run: Run) -> np.ndarray | None:
    """Return one distance per example of ``margins.csv``: 0 for a wrong one, inf where no point was found."""
    if run.margins is None or not np.isfinite(run.margins["margin"]).any():
        return None
    margin, inside = run.margins["margin"], run.margins.get("inside", run.margins.get("correct"))
    known = np.where(np.isnan(margin), np.inf, margin)
    return known if inside is None else np.where(inside > 0, known, 0.0)


def histogram(runs: Sequence[Run]) -> Figure | None:
    """Return the distribution of margins of all runs, as outlines on common bins."""
    margins = {number: found for number, run in enumerate(runs) if (found := distances(run)) is not None}
    positive = [values[(values > 0) & np.isfinite(values)] for values in margins.values()]
    if not any(len(values) for values in positive):
        return None
    end = float(max(np.quantile(values, 0.995) for values in positive if len(values)))
    edges = np.linspace(0, end, BINS + 1)
    traces, words = [], []
    for number, values in margins.items():
        counted = np.histogram(np.minimum(values[values > 0], end), edges)[0] / len(values)
        x, y = np.repeat(edges, 2)[1:-1], np.repeat(counted, 2)
        fill = {"fill": "tozeroy", "fillcolor": f"@{runs[number].colour}/0.12", "hoverinfo": "skip"}
        traces.append(line(runs[number], number, x.tolist(), y.tolist(), **fill))
        right = values[values > 0]
        middle = f", median margin {np.median(right):.3g}" if len(right) else ""
        words.append(f"{runs[number].name}: {percent(len(right) / len(values))} correct{middle}")
    alt = "Distribution of the margins of test examples. " + "; ".join(words)
    radii = {runs[number].radius for number in margins if runs[number].has_radius}
    layout = radius_line(radius := radii.pop(), f"radius {radius}") if len(radii) == 1 else {}
    yaxis = {"tickformat": PERCENT, "rangemode": "tozero"}
    margin = f"margin ({_norms([runs[number] for number in margins])})"
    return figure(traces, alt, margin, "share of examples", yaxis=yaxis, xaxis={"range": [0, end]}, **layout)


def correct_share(run: Run) -> Estimate | None:
    """Return the share of the examples of ``margins.csv`` that are classified correctly, with its interval."""
    right = run.margins.get("correct") if run.margins is not None else None
    if right is None or not len(right):
        return None
    count = int((right > 0).sum())
    return Estimate(count / len(right), *wilson(count, len(right)), len(right))


def median_margin(run: Run) -> float | None:
    """Return the median margin of the correctly classified examples of ``margins.csv``."""
    margins = distances(run)
    right = margins[margins > 0] if margins is not None else np.zeros(0)
    return float(np.median(right)) if len(right) else None
