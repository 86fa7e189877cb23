"""The plots and values of one run at a time: margins through the training, shares of negative speed, the scatter."""

import math
from typing import Any

import numpy as np

from dyart.report.page.colours import slots
from dyart.report.page.figures import PERCENT, Figure, Trace, figure, text
from dyart.report.page.files import SPEED, Columns
from dyart.report.page.run import Run
from dyart.report.page.words import DASH, class_name, interval, listed, percent
from dyart.report.smoothing import smoothed, window_of
from dyart.report.style import UPDATES, method_name

# Speeds have heavy tails: one in fifty sits at the edge of the plot, so that the others can be told apart.
INNER = 0.98
# What moves the boundary, at the axis of speeds.
UNDER = {update: f"under {words}" for update, words in UPDATES.items()}


def fan(run: Run) -> Figure | None:
    """Return the quantiles of the probe set's margins through the training, as bands around the median."""
    seen = run.monitor
    if seen is None or not len(seen["step"]):
        return None
    steps = seen["step"].tolist()
    traces: list[Trace] = []
    for low, high, alpha in (("0.05", "0.95", 0.15), ("0.25", "0.75", 0.3)):
        edge = {"type": "scatter", "mode": "lines", "x": steps, "line": {"width": 0}, "hoverinfo": "skip"}
        traces.append(edge | {"y": seen[low].tolist()})
        traces.append(edge | {"y": seen[high].tolist(), "fill": "tonexty", "fillcolor": f"@{run.colour}/{alpha}"})
    middle = {"type": "scatter", "mode": "lines", "x": steps, "y": seen["0.5"].tolist()}
    middle |= {"line": {"color": f"@{run.colour}", "width": 2.5}, "hovertemplate": "median %{y:.3~g}<extra></extra>"}
    traces.append(middle)
    alt = (
        f"Margins of the watched examples through the training of {run.name}: median {seen['0.5'][0]:.3g} at first, "
        f"{seen['0.5'][-1]:.3g} at last; nine in ten then lie from {seen['0.05'][-1]:.3g} to {seen['0.95'][-1]:.3g}."
    )
    return figure(traces, alt, "step", "margin", yaxis={"rangemode": "tozero"}, **_level(run))


def _level(run: Run) -> dict[str, Any]:
    if not run.has_radius:
        return {}
    line = {"color": "@muted", "width": 1, "dash": "dash"}
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": run.radius, "y1": run.radius, "line": line}
    label = {"xref": "paper", "x": 1, "xanchor": "right", "y": run.radius, "yanchor": "bottom", "showarrow": False}
    return {"shapes": [shape], "annotations": [label | {"text": f"radius {run.radius}", "font": {"color": "@muted"}}]}


def negative(run: Run) -> Figure | None:
    """Return the share of negative speed among the vulnerable watched examples, through the training."""
    seen = run.monitor
    if seen is None or np.isnan(seen["negative_share"]).all():
        return None
    known = ~np.isnan(seen["negative_share"])
    steps, shares = seen["step"][known], seen["negative_share"][known]
    window = window_of(len(shares))  # observations of few examples are noisy: a running mean is drawn, too
    mode = "lines" if window > 1 else "lines+markers"  # a line through one point is nothing
    share = {"type": "scatter", "mode": mode, "line": {"color": f"@{run.colour}/0.45", "width": 1}}
    share |= {"x": steps.tolist(), "y": shares.tolist(), "hovertemplate": "%{y:.0%}<extra></extra>"}
    traces = [share]
    if window > 1:
        line = {"color": f"@{run.colour}", "width": 2.5}
        traces.append(share | {"y": smoothed(shares, window).tolist(), "line": line, "hoverinfo": "skip"})
        del traces[-1]["hovertemplate"]
    mean = float(shares.mean())
    alt = f"Share of the vulnerable watched examples that a step brought closer to the boundary: mean {percent(mean)}."
    yaxis = {"range": [0, 1], "tickformat": ".0%"}
    return figure(traces, alt, "step", "share of negative speed", yaxis=yaxis)


def bars(run: Run) -> Figure | None:
    """Return the share of negative speed per interval of margins, one bar per method, with intervals."""
    if run.shares is None or not any(s.count for method in run.shares.methods.values() for *_, s in method.intervals):
        return None
    traces: list[Trace] = []
    words: list[str] = []
    colours = slots(list(run.shares.methods))
    for colour, (name, method) in zip(colours, run.shares.methods.items(), strict=True):
        shares = [share for _, _, share in method.intervals]
        errors = {"type": "data", "symmetric": False, "color": "@ink", "thickness": 1.2, "width": 4}
        errors |= {"array": [share.high - share.value for share in shares]}
        errors |= {"arrayminus": [share.value - share.low for share in shares]}
        counts = [f"{share.count} examples" for share in shares]
        traces.append({
            "type": "bar",
            "name": text(method_name(name)),
            "x": [_range(low, high, "/255" in str(run.shares.radius)) for low, high, _ in method.intervals],
            "y": [share.value for share in shares],
            "text": counts,
            "textposition": "none",
            "error_y": errors,
            "marker": {"color": f"@{colour}"},
            "hovertemplate": "%{y:.1%} of %{text}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
        words.append(f"{method_name(name)} {', '.join(percent(share.value) for share in shares)}")
    alt = f"Share of examples with negative speed per interval of margins. {'; '.join(words)}"
    yaxis = {"tickformat": PERCENT, "rangemode": "tozero"}
    layout = {
        "bargap": 0.28,
        "bargroupgap": 0.08,
        "xaxis": {"type": "category", "tickangle": 0},
        "hovermode": "closest",
    }
    return figure(traces, alt, "margin", "share of negative speed", yaxis=yaxis, **layout)


def _range(low: float, high: float, in_255ths: bool) -> str:
    scale, unit = (255, "/255") if in_255ths else (1, "")
    ends = [f"{scale * end:.3g}{unit if end else ''}" for end in (low, high)]
    return f"{ends[0]}<br>and more" if math.isinf(high) else f"{ends[0]} {DASH}<br>{ends[1]}"


def step_words(run: Run) -> str:
    """Return what the speeds of a run are speeds of; nothing where its file does not say."""
    if run.shares is None:
        return ""
    if run.shares.update == "optimizer":
        return f"Speeds are distances per step: the optimizer's true next step ({run.shares.step})."
    if run.shares.update == "gradient":
        return (
            f"Speeds are those under {UPDATES['gradient']}, the gradient of each method's loss without the optimizer, "
            "as in the paper: signs and relative sizes count, the unit does not."
        )
    return ""


def verdicts(run: Run) -> list[str]:
    """Return what the shares say, in sentences: below the radius per method, and the paired tests."""
    if run.shares is None:
        return []
    radius = run.shares.radius
    said = [
        f"{method_name(name)} {percent(method.below.value)} ({interval(method.below)})"
        for name, method in run.shares.methods.items()
        if not math.isnan(method.below.value)
    ]
    if not said:
        return []
    sentences = [f"Share of the examples with a margin below {radius} that one step brings closer to the boundary: "]
    sentences[0] += f"{listed(said)}."
    for test in run.shares.tests:
        first, second = method_name(str(test["first"])), method_name(str(test["second"]))
        careful = test.get("p_value_by_batch")
        by_batch = ""
        if careful is not None:
            by_batch = f"; sign test over batches, since the examples of a batch share one update: p = {careful:.2g}"
        sentences.append(
            f"{second} against {first} on the same examples: {100 * test['difference']:+.1f} points "
            f"(exact McNemar test: p = {test['p_value']:.2g}{by_batch})."
        )
    return sentences


def _pictured(run: Run) -> Columns | None:
    if run.margins is None or run.pictures is None or not len(run.margins["index"]):
        return None
    rows = np.isin(run.margins["index"], run.pictures.index)
    return {name: values[rows] for name, values in run.margins.items()}


def moving(run: Run) -> bool:
    """Return whether there are examples with speeds to show."""
    shown = points(run)
    return shown is not None and bool(shown["methods"])


def points(run: Run) -> dict[str, Any] | None:
    """Return the examples of the scatter and the gallery, smallest margin first: those with a locally optimal point.

    Where no speeds were measured: the examples of the margins that there are pictures of.
    """
    table = run.dynamics
    if table is None:
        table = _pictured(run)
    if table is None:
        return None
    speeds = {name.removeprefix(SPEED): values for name, values in table.items() if name.startswith(SPEED)}
    shown = np.isfinite(table["margin"]) & (table.get("optimal", np.ones(len(table["margin"]))) > 0)
    for values in speeds.values():
        shown = shown & np.isfinite(values)
    rows = np.flatnonzero(shown)
    rows = rows[np.argsort(table["margin"][rows], kind="stable")]
    if not len(rows) or (run.dynamics is not None and not speeds):
        return None
    integers = {name: table[name][rows].astype(int).tolist() for name in ("index", "label", "rival") if name in table}
    numbers = {name: table[name][rows].tolist() for name in ("margin", "alignment") if name in table}
    methods = [
        {
            "key": name,
            "name": method_name(name),
            "speed": values[rows].tolist(),
            "scale": float(np.quantile(np.abs(values[rows]), INNER)) or 1.0,
        }
        for name, values in speeds.items()
    ]
    names = {label: class_name(run, label) for label in {*integers["label"], *integers.get("rival", [])}}
    said = {
        "radius": float(run.shares.radius if run.shares else run.radius),
        "radiusText": str(run.shares.radius if run.shares else run.radius),
        "split": run.shares.split if run.shares else "",
        "under": UNDER.get(run.shares.update, "") if run.shares else "",
        "examples": (run.shares and run.shares.examples) or len(table["margin"]),
    }
    return integers | numbers | said | {"methods": methods, "classes": names}
