"""The distribution of margins, before and after a training."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

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
    """
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(margins), 1, figsize=(6.4, 1.5 * len(margins) + 0.9), sharex=True, sharey=True, squeeze=False
    )
    edges = np.linspace(0, largest, bins + 1)
    for axis, (name, values), colour in zip(axes[:, 0], margins.items(), _cycle(len(margins)), strict=True):
        right = values > 0
        shares = np.histogram(np.minimum(values[right], largest), edges)[0] / len(values)
        axis.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=colour, edgecolor="white", linewidth=0.5)
        axis.axvline(radius, color="black", linewidth=1, linestyle="--")
        safe = np.mean(values > radius)
        axis.set_ylabel(name)
        axis.text(
            0.99,
            0.92,
            f"correct {np.mean(right):.1%}, margin above {radius:g}: {safe:.1%}",
            transform=axis.transAxes,
            ha="right",
            va="top",
            fontsize=8,
        )
        axis.spines[["top", "right"]].set_visible(False)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes[-1, 0].set_xlabel(f"margin (distance to the decision boundary; the last bar holds all above {edges[-2]:.3g})")
    if title:
        axes[0, 0].set_title(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _cycle(count: int) -> Sequence[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
