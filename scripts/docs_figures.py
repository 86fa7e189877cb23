"""Draw the figures of docs/results from the JSON and CSV files in results/.

    python scripts/docs_figures.py            draw those whose data are there
    python scripts/docs_figures.py --check    exit with 1 if one was drawn from other data than are there now

Every picture carries the checksum of what it was drawn from: a check compares that, and not pixels, which differ from
one version of matplotlib to the next.
"""

import csv
import hashlib
import sys
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import embedded_figure
import numpy as np
import settings_figure
import trials_figure
from dynamics_tables import MODELS, RADIUS, plotted, read
from published_tables import COLUMNS, FIGURES, RESULTS, difference, evaluation_of, groups, records_of

from dyart.attacks.radius import Radius
from dyart.report import style
from dyart.report.bars import speed_bars
from dyart.report.curves import NEGATIVE, Curves, read_published, training_curves
from dyart.report.scatter import Cloud, margin_speed_scatter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200
SOURCE = "Source"
PAPER = "AT (paper)"
GROUP = "cifar10-resnet18-bn"
MARKERS = "osD^v<>PX*hpd8"  # there are fewer colours than rows
# Points of the trade-off further below the median than this are an arrow at the edge.
FAR_BELOW = 6
SHOWN = ("clean", "robust", "train_clean", "train_robust")


class Drawing(NamedTuple):
    """A figure: the files it is drawn from, all of which must be there, and how."""

    files: Callable[[], list[Path]]
    draw: Callable[[], "Figure"]


def clouds() -> dict[str, dict[str, Cloud]]:
    """Return margins and speeds by network and method, ours and the paper's."""
    with (RESULTS / "paper-dynamics.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    found: dict[str, dict[str, Cloud]] = {}
    for model in MODELS:
        rows = [line for line in lines if line["model"] == model]
        margin = np.array([float(line["margin"]) for line in rows])
        found[model] = {
            name: Cloud(margin, np.array([float(line[name]) for line in rows])) for name in ("at", "dyart")
        } | {PAPER: Cloud(*plotted(model))}
    return found


def whole_curves() -> "Figure":
    """Draw accuracies and negative shares through whole trainings, ours above the paper's."""
    names = {"AT": "at", "DyART": "dyart"}
    ours: dict[str, Curves] = {}
    for name, method in names.items():
        record = read(RESULTS / f"whole-training-{method}.json")
        assert record is not None
        wanted = {key: part for key, part in record["curves"].items() if key in (*SHOWN, NEGATIVE)}
        ours[name] = {key: (np.array(part["step"]), np.array(part["value"])) for key, part in wanted.items()}
    files = [RESULTS / "paper" / f for f in ("AT_acc.csv", "DyART_acc.csv", "neg_ratio_wholeTraining.csv")]
    return training_curves({"here": ours, "the paper": read_published(files, list(names))})


def looks() -> dict[str, tuple[str, str]]:
    """Return colour and marker of every row, the same in all figures: variants of a method have its colour."""
    labels = [runs[0].label for runs in groups()[GROUP].rows.values() if runs[0].label != "natural"]
    methods = {label: label.partition(",")[0].removesuffix("-AWP").lower() for label in labels}
    colours = style.method_colours(list(dict.fromkeys(methods.values())))
    return {label: (colours[methods[label]], marker) for label, marker in zip(labels, cycle(MARKERS), strict=False)}


def against_at() -> "Figure":
    """Draw every method's accuracy minus that of AT, paired by image, with intervals over images."""
    from matplotlib.figure import Figure

    rows = {runs[0].label: records_of(runs) for runs in groups()[GROUP].rows.values()}
    at = rows.pop("AT")
    shown, look = {label: records for label, records in rows.items() if records and label != "natural"}, looks()
    with style.style():
        figure = Figure(figsize=(style.PAGE, 2.8), layout="constrained")
        axis = figure.subplots()
        for place, (label, records) in enumerate(shown.items()):
            found = [difference(at, records, column) for column in COLUMNS]
            middle = np.array([100 * one.mean for one in found])
            reach = np.array([100 * (one.high - one.mean) for one in found])
            x = np.arange(len(COLUMNS)) + 0.7 * ((place + 0.5) / len(shown) - 0.5)
            colour, marker = look[label]
            axis.errorbar(x, middle, reach, fmt=marker, markersize=3.5, color=colour, label=label)
        axis.axhline(0, color=style.BLACK, linewidth=0.6)
        axis.set_xticks(range(len(COLUMNS)), COLUMNS)
        axis.set_ylabel("accuracy minus that of AT, points")
        figure.legend(loc="outside right upper")
    return figure


def trade_off() -> "Figure":
    """Draw accuracy at 8/255 against clean accuracy, a line from every method's best epoch to its last."""
    from matplotlib.figure import Figure

    rows = {runs[0].label: records_of(runs) for runs in groups()[GROUP].rows.values()}
    shown, look = {label: records for label, records in rows.items() if records and label != "natural"}, looks()
    ends = {label: [_ends(record) for record in records] for label, records in shown.items()}
    heights = [best[1] for pairs in ends.values() for best, *_ in pairs]
    floor = min(np.median(heights) - FAR_BELOW, min(heights) - 1)  # every best epoch is shown
    with style.style():
        figure = Figure(figsize=(style.PAGE, 2.8), layout="constrained")
        axis = figure.subplots()
        for label, pairs in ends.items():
            colour, marker = look[label]
            for number, (best, *last) in enumerate(pairs):
                axis.plot(*zip(best, *last, strict=True), color=colour, linewidth=0.7)
                axis.plot(*best, marker, color=colour, markersize=4, label=None if number else label)
                for clean, robust in last:
                    axis.plot(clean, robust, marker, color=colour, markersize=4, markerfacecolor="white")
                    if robust < floor:
                        along = (best[1] - floor) / (best[1] - robust)
                        words = f"  to {clean:.1f}, {robust:.1f}"
                        axis.text(best[0] + along * (clean - best[0]), floor, words, color=colour, va="bottom")
        axis.set_ylim(bottom=floor)
        axis.set_xlabel("clean accuracy, %")
        axis.set_ylabel("accuracy at 8/255, %")
        figure.legend(loc="outside right upper")
    return figure


def _ends(record: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return clean accuracy and that at 8/255 of the best epoch and, where it was attacked, of the last."""
    ends = [evaluation_of(record, checkpoint, "apgd") for checkpoint in ("best", "last")]
    return [(100 * end["clean"], 100 * end["robust"]["8/255"]) for end in ends if end is not None]


def run_files() -> list[Path]:
    """Return the files of the methods' runs; none unless AT and one more are there."""
    rows = groups()[GROUP].rows
    found = {row: [RESULTS / f"{record['name']}.json" for record in records_of(runs)] for row, runs in rows.items()}
    enough = found[f"{GROUP}-at"] and sum(bool(files) for files in found.values()) > 1
    return [file for files in found.values() for file in files] if enough else []


def update_files() -> list[Path]:
    """Return what the figures of one update are drawn from."""
    return [RESULTS / "paper-dynamics.csv", RESULTS / "paper" / "AT_margin_speed.csv"]


def edges() -> list[float]:
    """Return the paper's margin intervals."""
    from dyart.dynamics.shares import margin_edges

    return margin_edges(RADIUS)


DRAWINGS = {
    "methods-against-at": Drawing(run_files, against_at),
    "methods-trade-off": Drawing(run_files, trade_off),
    "methods-embedded": Drawing(embedded_figure.files, embedded_figure.by_radius),
    "settings-against-base": Drawing(settings_figure.files, settings_figure.against_base),
    "trials-against-first": Drawing(trials_figure.files, trials_figure.against_first),
    "dynamics-scatter": Drawing(update_files, lambda: margin_speed_scatter(clouds(), Radius("8/255"), "gradient")),
    "dynamics-bars": Drawing(update_files, lambda: speed_bars(clouds(), edges(), "/255", "gradient")),
    "whole-training": Drawing(
        lambda: [RESULTS / f"whole-training-{method}.json" for method in ("at", "dyart")], whole_curves
    ),
}


def checksum(files: list[Path]) -> str | None:
    """Return the checksum of some files; None where one is missing, or all."""
    if not files or not all(file.is_file() for file in files):
        return None
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def drawn_from(path: Path) -> str | None:
    """Return the checksum that a picture carries; None where there is no picture."""
    from PIL import Image

    if not path.is_file():
        return None
    with Image.open(path) as picture:
        return str(picture.info.get(SOURCE))


def main(check: bool) -> int:
    """Draw or check all; return the exit status."""
    stale = []
    for name, drawing in DRAWINGS.items():
        path, wanted = FIGURES / f"{name}.png", checksum(drawing.files())
        if drawn_from(path) == wanted:
            continue
        stale.append(name)
        if check:
            continue
        if wanted is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with style.style():
            drawing.draw().savefig(path, dpi=DPI, metadata={SOURCE: wanted, "Software": None})
        print(path)
    if stale and check:
        print(f"drawn from other data: {', '.join(stale)}; run python scripts/docs_figures.py", file=sys.stderr)
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
