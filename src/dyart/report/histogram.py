"""The distribution of margins, before and after a training."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import numpy as np

from dyart.attacks.radius import Radius

COLOURS = ("#7f7f7f", "#d95f02", "#1b6ca8", "#4daf4a")


def margin_histogram(
    margins: Mapping[str, np.ndarray], path: Path, radius: float, largest: float, bins: int = 24, title: str = ""
) -> Path:
    """Draw one histogram of margins per model, one above the other on a common axis, and return the file.

    Args:
        margins: per model, one margin per example; 0 for an example that is classified wrongly, inf where no
            boundary point was found.
        path: of the picture; the suffix chooses the format.
        radius: of training, drawn as a line.
        largest: end of the axis; larger margins are counted in the last bar.
        bins: number of bars.
        title: above the figure.

    Raises:
        ValueError: there is nothing to draw, or a margin is nan.
    """
    # Not pyplot: it would choose a backend for the whole process.
    from matplotlib.figure import Figure

    _check(margins, largest, bins)
    written = str(radius) if isinstance(radius, Radius) else f"{radius:g}"
    edges = np.linspace(0, largest, bins + 1)
    figure = Figure(figsize=(6.4, 1.4 * len(margins) + 1.0), layout="constrained")
    axes = figure.subplots(len(margins), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, (name, values), colour in zip(axes, margins.items(), cycle(COLOURS), strict=False):
        right = values > 0
        shares = np.histogram(np.minimum(values[right], largest), edges)[0] / len(values)
        axis.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=colour, edgecolor="white", linewidth=0.5)
        axis.axvline(radius, color="black", linewidth=1, linestyle="--")
        # Above the axes: inside them, the last bar can reach up to any text.
        axis.set_title(name, loc="left", fontsize=10)
        summary = f"correct {np.mean(right):.1%}, margin above {written}: {np.mean(values > radius):.1%}"
        axis.set_title(summary, loc="right", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        axis.set_xlim(0, max(largest, radius))
    axes[-1].set_xlabel(f"distance to the decision boundary; the last bar holds all above {edges[-2]:.3g}")
    figure.supylabel("share of examples", fontsize=10)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)
    return path


def _check(margins: Mapping[str, np.ndarray], largest: float, bins: int) -> None:
    if not margins:
        raise ValueError("there are no margins to draw: give at least one model's")
    if not (0 < largest < np.inf and bins >= 1):
        raise ValueError(f"the axis needs a positive end and at least one bar, got largest={largest}, bins={bins}")
    for name, values in margins.items():
        if len(values) == 0:
            raise ValueError(f"{name!r} has no margins to draw: give one per example")
        if np.isnan(values).any():
            raise ValueError(f"{name!r} has nan margins: write 0 for a wrong example, inf where no point was found")
