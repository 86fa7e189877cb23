"""Accuracies and the share of negative speed through whole trainings (the figures of the paper's last appendix)."""

import csv
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dyart.engine.metrics import Record, read_metrics
from dyart.report import style
from dyart.report.page.files import read_monitor
from dyart.report.smoothing import MOST, smoothed, window_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = tuple[np.ndarray, np.ndarray]
"""Steps and values."""
Curves = dict[str, Series]
"""By name: accuracies (``LOOKS``), ``negative_share``, and ``burn_in``: the step at which it ends."""

NEGATIVE, BURN_IN = "negative_share", "burn_in"
ABREAST = 3  # panels
TITLE = 28  # characters on a line
# Accuracies as a run logs them. Its hold-out stands for the test images, which no training looks at.
LOGGED = {"clean": "val_clean", "robust": "val_robust", "train_clean": "train_clean", "train_robust": "train_robust"}
# In a run that was not measured on training images: means over its batches, augmented, in training mode, as it went.
BATCHES = {"batch_clean": "accuracy", "batch_robust": "adversarial_accuracy"}
# The same in tables read off the paper's figures.
PUBLISHED = {name: f"test_{name}" for name in ("clean", "robust")} | {n: n for n in ("train_clean", "train_robust")}
# Dashed, for print in grey, and paler: where both are noisy, dashes alone do not tell them apart.
PALE_BLUE, PALE_RED = "#6BAED6", "#F0A26E"
LOOKS = {
    "clean": ("clean, held out", style.BLUE, "-"),
    "train_clean": ("clean, training", PALE_BLUE, "--"),
    "robust": ("robust, held out", style.RED, "-"),
    "train_robust": ("robust, training", PALE_RED, "--"),
    "batch_clean": ("clean, training batches", PALE_BLUE, ":"),
    "batch_robust": ("robust, training batches", PALE_RED, ":"),
}


def read_run(folder: Path) -> Curves:
    """Return the curves of a run's ``metrics.jsonl`` and, if it was watched, its ``monitor.jsonl``.

    Raises:
        ValueError: the folder has no epoch to draw.
    """
    epochs = [record for record in read_metrics(folder / "metrics.jsonl") if record.get("kind") == "epoch"]
    if not epochs:
        raise ValueError(f"{folder} has no epochs in metrics.jsonl to draw: is it a run?")
    measured = any("train_clean" in record for record in epochs)
    found = {name: _series(epochs, key) for name, key in (LOGGED if measured else LOGGED | BATCHES).items()}
    found |= {NEGATIVE: _watched(folder / "monitor.jsonl"), BURN_IN: _burn_in(epochs)}
    return {name: series for name, series in found.items() if len(series[0])}


def read_watched(path: Path) -> Curves:
    """Return the curve of a ``monitor.jsonl`` alone, as a ``BoundaryMonitor`` writes it in a loop of one's own.

    Raises:
        ValueError: it has no observation with vulnerable examples, or a damaged one.
    """
    series = _watched(path)
    if not len(series[0]):
        raise ValueError(
            f"{path} has no observations of vulnerable examples to draw: give a run's folder, or the monitor.jsonl of "
            "a loop of your own"
        )
    return {NEGATIVE: series}


def read_table(path: Path, names: Mapping[str, str]) -> Curves:
    """Return curves from a CSV with a column ``iteration`` (or ``step``), e.g. read off a published figure.

    Args:
        path: of the file.
        names: by the name of a curve, its column.

    Raises:
        ValueError: a column is missing.
    """
    columns = _columns(path)
    step = next((name for name in ("step", "iteration") if name in columns), None)
    missing = sorted(set(names.values()) - set(columns)) if step else "step or iteration"
    if step is None or missing:
        raise ValueError(f"{path} has the columns {list(columns)}: {missing} is missing")
    return {name: (columns[step], columns[column]) for name, column in names.items()}


def read_published(paths: Sequence[Path], trainings: Sequence[str]) -> dict[str, Curves]:
    """Return published curves of trainings, from tables of two kinds.

    Accuracies of one training (``test_clean``, ``test_robust``, ``train_clean``, ``train_robust``, or some of them),
    which the file's name begins with, e.g. ``AT_acc.csv``; or shares of negative speed, with a column per training.

    Args:
        paths: of the tables.
        trainings: names, e.g. ``AT``; other trainings in the tables are left out.

    Raises:
        ValueError: a table has nothing about any of the trainings.
    """
    found: dict[str, Curves] = {name: {} for name in trainings}
    for path in paths:
        columns = _columns(path)
        accuracies = {name: column for name, column in PUBLISHED.items() if column in columns}
        wanted = {
            name: accuracies if path.stem.startswith(f"{name}_") else {NEGATIVE: name} if name in columns else {}
            for name in trainings
        }
        if not any(wanted.values()):
            raise ValueError(
                f"{path} has nothing about {', '.join(trainings)}: name a table of accuracies METHOD_....csv, or give "
                f"a table of negative shares a column per method; its columns are {', '.join(columns)}"
            )
        for name, names in wanted.items():
            found[name] |= read_table(path, names)
    return found


def _columns(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *lines = list(csv.reader(file)) or [[]]
        return dict(zip(head, np.array(lines, dtype=np.float64).reshape(-1, len(head)).T, strict=True))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is no table: a line of names and lines of numbers, with commas ({error})") from error


def training_curves(rows: Mapping[str, Mapping[str, Curves]], smoothing: int = MOST) -> "Figure":
    """Return a figure with one row per source: a panel of accuracies per training, then all negative shares.

    Args:
        rows: by source, e.g. ``{"ours": {"AT": ..., "DyART": ...}, "the paper's": {...}}``; every row with the same
            number of trainings. The title of a single row may be empty.
        smoothing: neighbouring observations of the negative share that are averaged, at most a fifth of all; the raw
            ones are drawn faintly.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    counts = {len(trainings) for trainings in rows.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError("curves need at least one training, and equally many in every row")
    found = {name for trainings in rows.values() for curves in trainings.values() for name in curves}
    (count,) = counts if found & LOOKS.keys() else {0}  # a loop of one's own has no accuracies
    with_shares = NEGATIVE in found
    panels = count + with_shares
    if panels == 0:
        raise ValueError("there is nothing to draw: no accuracies, and no shares of negative speed")
    columns = min(panels, ABREAST)
    lines_each = -(-panels // columns)  # of panels, for a source
    with style.style():
        width = style.COLUMN if panels == 1 else style.PAGE
        figure = Figure(figsize=(width, 0.35 + 1.9 * lines_each * len(rows)), layout="constrained")
        axes = figure.subplots(lines_each * len(rows), columns, squeeze=False)
        for place, (source, trainings) in enumerate(rows.items()):
            own = axes[lines_each * place : lines_each * (place + 1)].flatten()
            ends = _ends(trainings.values())
            for axis, (name, curves) in zip(own[:count], trainings.items(), strict=False):
                _accuracies(axis, curves)
                axis.set_ylim(*ends)  # the same side by side
                _title(axis, name, source)
            if with_shares:
                _shares(own[count], trainings, smoothing, beside=len(own) > panels)
                own[count].set_ylabel("share of vulnerable")
                _title(own[count], "negative speed", source)
            for axis in own[:count:columns]:
                axis.set_ylabel("accuracy")
            for axis in own[1:panels]:
                axis.sharex(own[0])
            for number, axis in enumerate(own):
                axis.set_visible(number < panels)
                last = place + 1 == len(rows) and number + columns >= panels
                axis.set_xlabel("step" if last else "")
        for axis in axes.flat:
            axis.locator_params(axis="x", nbins=4)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}")
        looks = [look for name, look in LOOKS.items() if name in found]
        lines = [axes[0, 0].plot([], [], color=c, linestyle=s, label=label)[0] for label, c, s in looks]
        if lines:
            abreast = 2 if panels == 1 else ABREAST + 1  # as many as the figure is wide for
            figure.legend(handles=lines, loc="outside upper center", ncols=min(len(lines), abreast))
    return figure


def _title(axis: "Axes", name: str, source: str) -> None:
    words = name + (f" ({source})" if source else "")
    axis.set_title(textwrap.fill(words, TITLE), loc="left", fontweight="bold")


def write_curves(rows: Mapping[str, Mapping[str, Curves]], path: Path, smoothing: int = MOST) -> list[Path]:
    """Write ``training_curves`` as PDF, SVG and PNG."""
    return style.save(training_curves(rows, smoothing), path)


def _accuracies(axis: "Axes", curves: Curves) -> None:
    for name, (_, colour, line) in LOOKS.items():
        if name in curves:
            alone = "o" if len(curves[name][0]) == 1 else None  # a line through one point is nothing
            axis.plot(*curves[name], color=colour, linestyle=line, linewidth=0.9, marker=alone, markersize=3)
    for end in curves.get(BURN_IN, ([],))[0]:
        axis.axvline(end, color=style.GREY, linewidth=0.6, linestyle=":")
        axis.annotate("burn-in", (end, 1), (-2, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
                      ha="right", va="top", rotation=90, fontsize=6, color=style.GREY)  # fmt: skip
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def _ends(trainings: Iterable[Curves]) -> tuple[float, float]:
    """Return the tens of per cent that all accuracies lie between: from 0 to 100 the gaps would be hair thin."""
    values = [curves[name][1] for curves in trainings for name in LOOKS if name in curves]
    if not values:
        return 0.0, 1.0
    together = np.concatenate(values)
    return max(np.floor(10 * together.min() - 0.1), 0) / 10, min(np.ceil(10 * together.max() + 0.1), 10) / 10


def _shares(axis: "Axes", trainings: Mapping[str, Curves], smoothing: int, beside: bool) -> None:
    """Draw shares of negative speed; the legend goes ``beside`` the panel where there is room."""
    colours = style.method_colours([name.lower() for name in trainings])
    for name, curves in trainings.items():
        if NEGATIVE in curves:
            steps, values = curves[NEGATIVE]
            colour = colours[name.lower()]
            axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.6)
            alone = "o" if len(steps) == 1 else None
            thick = smoothed(values, window_of(len(values), smoothing))
            axis.plot(steps, thick, color=colour, label=textwrap.fill(name, TITLE), marker=alone, markersize=3)
    if axis.lines and beside:
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), handlelength=1.2).set_in_layout(False)
    elif axis.lines:
        axis.legend(loc="best", handlelength=1.2)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def _watched(path: Path) -> Series:
    """Return the share of negative speed at every observed step with vulnerable examples; nothing without a file."""
    try:
        seen = read_monitor(path) if path.is_file() else {"step": np.zeros(0), NEGATIVE: np.zeros(0)}
    except ValueError as error:
        raise ValueError(f"{path}: {error}; mend that line or take it out") from error
    known = ~np.isnan(seen[NEGATIVE])
    return seen["step"][known], seen[NEGATIVE][known]


def _burn_in(epochs: list[Record]) -> Series:
    """Return the last step of the burn-in, where something comes after it."""
    steps = [float(record["step"]) for record in epochs if record.get("phase") == "burn-in"]
    ends = np.array(steps[-1:] if len(steps) < len(epochs) else [])
    return ends, np.zeros(len(ends))


def _series(records: list[Record], key: str) -> Series:
    pairs = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    return np.array([float(step) for step, _ in pairs]), np.array([float(value) for _, value in pairs])
