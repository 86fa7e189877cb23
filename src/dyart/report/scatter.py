"""Margin against speed, one dot per example: how a step of training moves the boundary (the paper's figure 3)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dyart.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dyart.dynamics.step import Dynamics

# Of margins that set the axis; the few beyond are drawn at its end.
SHOWN = 0.995


class Cloud(NamedTuple):
    """One panel: margins and speeds of the same examples."""

    margin: np.ndarray
    speed: np.ndarray


def clouds_of(measured: "Dynamics") -> dict[str, Cloud]:
    """Return margins and speeds of the counted examples, by method: a row of panels."""
    rows = measured.counted
    margin = measured.found.margin[rows].numpy()
    return {name: Cloud(margin, speed[rows].numpy()) for name, speed in measured.speeds.items()}


def margin_speed_scatter(
    panels: Mapping[str, Mapping[str, Cloud]], radius: float, update: str | None = None
) -> "Figure":
    """Return a figure with one row per model and one column per method.

    In every panel the speeds are divided by the largest absolute one, as in the paper: only signs and relative sizes
    can be compared between panels.

    Args:
        panels: by model, then by method (every model with the same ones).
        radius: below which an example is vulnerable, drawn as a line.
        update: what moves the boundary, ``"gradient"`` or ``"optimizer"``, to say it at the axis.

    Raises:
        ValueError: there is nothing to draw, or the models have different methods.
    """
    from matplotlib.figure import Figure

    methods = list(next(iter(panels.values()), {}))
    if not methods or any(list(row) != methods for row in panels.values()):
        raise ValueError("a scatter needs at least one model, and the same methods for every model")
    with style.style():
        width = style.COLUMN if len(methods) == 1 else style.PAGE
        figure = Figure(figsize=(width, 0.35 + 1.9 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), len(methods), sharex="row", sharey=True, squeeze=False)
        for row, (model, clouds) in zip(axes, panels.items(), strict=True):
            end = _end([cloud.margin for cloud in clouds.values()], radius)
            for axis, (method, cloud) in zip(row, clouds.items(), strict=True):
                _draw(axis, cloud, radius, end)
                words = style.method_name(method) + (f" on {model}" if model else "")
                # Two lines: side by side they would meet in a narrow panel.
                axis.set_title(style.title(words, width / len(methods)), loc="left", fontweight="bold", pad=13)
                axis.text(0, 1.03, _words(cloud, radius), transform=axis.transAxes, fontsize=7)
        # Never the whole range down to -1 where no speed reaches it: that would be an empty third.
        lowest = min(_lowest(cloud) for clouds in panels.values() for cloud in clouds.values())
        axes[0, 0].set_ylim(min(1.1 * lowest, -0.25), 1.08)
        for axis in axes[-1]:
            axis.set_xlabel("margin")
        for axis in axes[:, 0]:
            axis.set_ylabel("speed (largest = 1)" + (f"\nunder {style.UPDATES[update]}" if update else ""))
    return figure


def write_scatter(
    panels: Mapping[str, Mapping[str, Cloud]], radius: float, path: Path, update: str | None = None
) -> list[Path]:
    """Write ``margin_speed_scatter`` as PDF, SVG and PNG."""
    return style.save(margin_speed_scatter(panels, radius, update), path)


def scaled(speed: np.ndarray) -> np.ndarray:
    """Return speeds divided by the largest absolute one."""
    largest = float(np.abs(speed).max(initial=0.0))
    return speed / largest if largest else speed


def _lowest(cloud: Cloud) -> float:
    return float(scaled(cloud.speed).min(initial=0.0))


def _draw(axis: "Axes", cloud: Cloud, radius: float, end: float) -> None:
    speed = scaled(cloud.speed)
    for towards, colour in ((False, style.AWAY), (True, style.TOWARDS)):
        rows = (speed < 0) == towards
        # Many dots as a picture: a PDF with thousands of them takes seconds to open.
        axis.scatter(
            np.minimum(cloud.margin[rows], end),
            speed[rows],
            s=3,
            color=colour,
            alpha=0.5,
            linewidths=0,
            rasterized=True,
        )
    axis.axhline(0, color=style.BLACK, linewidth=0.6)
    axis.axvline(radius, color=style.BLACK, linewidth=0.8, linestyle="--")
    axis.set_xlim(0, 1.02 * end)
    axis.set_yticks([-1, -0.5, 0, 0.5, 1])
    axis.annotate(
        style.radius_words(radius), (radius, 0.0), (3, 2), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=7,
    )  # fmt: skip


def _end(margins: list[np.ndarray], radius: float) -> float:
    joined = np.concatenate(margins)
    return float(max(1.1 * radius, np.quantile(joined, SHOWN))) if len(joined) else 2 * radius


def _words(cloud: Cloud, radius: float) -> str:
    below = cloud.margin < radius
    if not below.any():
        return f"none below {style.radius_words(radius)}"
    share = float((cloud.speed[below] < 0).mean())
    return f"{100 * share:.1f} % negative below {style.radius_words(radius)}"
