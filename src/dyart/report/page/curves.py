"""Training curves: loss, validation, learning rate, and whatever else a method logs."""

from collections.abc import Sequence
from typing import Any

from dyart.engine.metrics import Record
from dyart.report.page.figures import MOST_POINTS, PERCENT, Figure, Trace, figure, line
from dyart.report.page.run import Run
from dyart.report.page.words import percent

# Of a record, these are no curves; or curves of their own.
NO_CURVE, CLOCK = {"kind", "epoch", "step", "phase", "best"}, "_seconds"
KINDS, DASHES = ("clean", "robust"), ("dash", "solid")
HELD_OUT, TRAINED = ("val_clean", "val_robust"), ("train_clean", "train_robust")
OWN = {"loss", "lr", *HELD_OUT, *TRAINED}


def loss(runs: Sequence[Run]) -> Figure | None:
    """Return the training loss. Methods minimise different losses: only its course can be compared."""
    return _curve(runs, "loss", "training loss")


def rate(runs: Sequence[Run]) -> Figure | None:
    """Return the learning rate."""
    return _curve(runs, "lr", "learning rate")


def validation(runs: Sequence[Run]) -> Figure | None:
    """Return clean (dashed) and robust (solid) validation accuracy, the best epoch marked; on training images faint."""
    traces: list[Trace] = []
    words: list[str] = []
    for number, run in enumerate(runs):
        records = [r for r in run.epochs if r.get("val_robust") is not None and r.get("val_clean") is not None]
        if not records:
            continue
        epochs = [record["epoch"] for record in records]
        traces += _on_training_images(run, number)
        for key, kind, dash in zip(HELD_OUT, KINDS, DASHES, strict=True):
            template = f"{kind} %{{y:.1%}}<extra>%{{fullData.name}}</extra>"
            values = [record[key] for record in records]
            trace = line(run, number, epochs, values, line={"dash": dash}, hovertemplate=template)
            traces.append(trace | {"mode": "lines+markers", "marker": {"size": 5, "color": f"@{run.colour}"}})
        best = [record for record in records if record.get("best")][-1:]
        for record in best:
            mark = {"size": 13, "color": f"@{run.colour}", "symbol": "star"}
            point = line(run, number, [record["epoch"]], [record["val_robust"]], mode="markers", hoverinfo="skip")
            traces.append(point | {"marker": mark})
            words.append(f"{run.name}: best epoch {record['epoch']}, robust {percent(record['val_robust'])}")
    alt = "Clean and robust validation accuracy by epoch. " + "; ".join(words)
    return figure(traces, alt, "epoch", "accuracy", yaxis={"tickformat": PERCENT}) if traces else None


def _on_training_images(run: Run, number: int) -> list[Trace]:
    traces = []
    for key, kind, dash in zip(TRAINED, KINDS, DASHES, strict=True):
        records = [record for record in run.epochs if record.get(key) is not None]
        style = {"dash": dash, "color": f"@{run.colour}/0.5", "width": 1.5}
        template = f"{kind}, training images %{{y:.1%}}<extra>%{{fullData.name}}</extra>"
        values = [record[key] for record in records]
        trace = line(run, number, [r["epoch"] for r in records], values, line=style, hovertemplate=template)
        mark = {"size": 3, "color": f"@{run.colour}/0.5"}
        traces += [trace | {"mode": "lines+markers", "marker": mark}] if records else []
    return traces


def others(runs: Sequence[Run]) -> dict[str, Figure]:
    """Return a figure for every other number that a run logged, by its name."""
    logged = {key for run in runs for record in run.metrics for key in record if not key.endswith(CLOCK)}
    names = sorted(logged - NO_CURVE - OWN)
    made = {name: _curve(runs, name, name) for name in names}
    return {name: curve for name, curve in made.items() if curve is not None}


def _curve(runs: Sequence[Run], key: str, words: str) -> Figure | None:
    """Return one number by epoch; None where no run has two values of it: a dot alone shows no course."""
    traces: list[Trace] = []
    ends: list[str] = []
    for number, run in enumerate(runs):
        x, y = series(run.metrics, key)
        if x:
            template = "%{y:.4~g}<extra>%{fullData.name}</extra>"
            traces.append(line(run, number, x, y, hovertemplate=template, mode="lines" if len(x) > 1 else "markers"))
            ends.append(f"{run.name}: {y[0]:.3g} at first, {y[-1]:.3g} at last")
    if all(len(trace["x"]) < 2 for trace in traces):
        return None
    return figure(traces, f"{words} by epoch. {'; '.join(ends)}", "epoch", words)


def series(records: Sequence[Record], key: str) -> tuple[list[float], list[float]]:
    """Return epochs (with fractions) and values of one key, from the records of steps and epochs, thinned."""
    lengths = [record["step"] / record["epoch"] for record in records if record.get("kind") == "epoch"]
    if not lengths:
        return [], []
    length = max(lengths)
    points = {
        float(record["step"] / length): float(record[key]) for record in records if _number(record.get(key))
    }  # by place: where a step ends an epoch, the epoch's mean counts
    pairs = sorted(points.items())
    stride = -(-len(pairs) // MOST_POINTS)
    kept = pairs[::-1][::stride][::-1] if stride else []  # the last one always
    return [x for x, _ in kept], [y for _, y in kept]


def _number(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, int | float) and not isinstance(value, bool)
