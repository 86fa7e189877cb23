"""Margin against speed, one dot per example: how a step of training moves the boundary (the paper's figure 3)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dyart.attacks.radius import Radius
from dyart.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from dyart.dynamics.step import Dynamics

# Of margins that set the axis; the few beyond are drawn at its end.
SHOWN = 0.995
MINUS = "\u2212"  # as long as matplotlib's own
# Of the axis of speeds, at its foot: for the name of the radius, which would hide dots.
FOOT = 0.12


class Cloud(NamedTuple):
    """One panel: margins and speeds of the same examples, as arrays or tensors.

    An example without one of the two (nan, or infinite) is not drawn.
    """

    margin: "np.ndarray | Tensor"
    speed: "np.ndarray | Tensor"


class Dots(NamedTuple):
    """What is drawn of a cloud: those examples that have both numbers."""

    margin: np.ndarray
    speed: np.ndarray


def dots_of(cloud: Cloud) -> Dots:
    """Return the numbers of a cloud as arrays.

    Raises:
        ValueError: there is not one margin and one speed per example.
    """
    margin, speed = (style.as_array(values) for values in cloud)
    if margin.ndim != 1 or margin.shape != speed.shape:
        raise ValueError(
            "a cloud needs one margin and one speed per example, got shapes "
            f"{list(margin.shape)} and {list(speed.shape)}: choose the same examples of both"
        )
    known = np.isfinite(margin) & np.isfinite(speed)
    return Dots(margin[known], speed[known])


def clouds_of(measured: "Dynamics") -> dict[str, Cloud]:
    """Return margins and speeds of the counted examples, by method: a row of panels."""
    rows = measured.counted
    margin = measured.found.margin[rows].numpy()
    return {name: Cloud(margin, speed[rows].numpy()) for name, speed in measured.speeds.items()}


def margin_speed_scatter(
    panels: Mapping[str, Mapping[str, Cloud]], radius: float | str, update: str | None = None
) -> "Figure":
    """Return a figure with one row per model and one column per method.

    Under an optimizer's step speeds are distances per step, and the methods of a row share their axis. Otherwise the
    speeds of every panel are divided by the largest absolute one, as in the paper: only signs and relative sizes can be
    compared between panels.

    Args:
        panels: by model, then by method (every model with the same ones).
        radius: below which an example is vulnerable, drawn as a line; also as text, ``"8/255"``.
        update: what moves the boundary, ``"gradient"`` or ``"optimizer"``, to say it at the axis.

    Raises:
        ValueError: there is nothing to draw, the models have different methods, or a cloud not one margin and one speed
            per example.
    """
    from matplotlib.figure import Figure

    radius = Radius(radius)
    style.check_update(update)
    methods = list(next(iter(panels.values()), {}))
    if not methods or any(list(row) != methods for row in panels.values()):
        raise ValueError("a scatter needs at least one model, and the same methods for every model")
    in_units = update == "optimizer"
    drawn = {model: {name: _measured(cloud, in_units) for name, cloud in row.items()} for model, row in panels.items()}
    with style.style():
        width = style.COLUMN if len(methods) == 1 else style.PAGE
        figure = Figure(figsize=(width, 0.35 + 1.9 * len(drawn)), layout="constrained")
        axes = figure.subplots(
            len(drawn), len(methods), sharex="row", sharey="row" if in_units else "all", squeeze=False
        )
        for row, (model, clouds) in zip(axes, drawn.items(), strict=True):
            end = _end([dots.margin for dots in clouds.values()], radius)
            for axis, (method, dots) in zip(row, clouds.items(), strict=True):
                _draw(axis, dots, radius, end)
                words = style.method_name(method) + (f" on {model}" if model else "")
                # Two lines: side by side they would meet in a narrow panel.
                axis.set_title(style.title(words, width / len(methods)), loc="left", fontweight="bold", pad=13)
                axis.text(0, 1.03, _words(dots, radius), transform=axis.transAxes, fontsize=7)
            beside = [clouds] if in_units else drawn.values()  # whose axis it is
            row[0].set_ylim(*_reach([dots.speed for clouds in beside for dots in clouds.values()]))
            _mark_speeds(row[0], in_units)
        for axis in axes[-1]:
            axis.set_xlabel("margin")
        unit = "distance per step" if in_units else "largest = 1"
        for axis in axes[:, 0]:
            axis.set_ylabel(f"speed ({unit})" + (f"\nunder {style.UPDATES[update]}" if update else ""))
    return figure


def write_scatter(
    panels: Mapping[str, Mapping[str, Cloud]], radius: float | str, path: str | Path, update: str | None = None
) -> list[Path]:
    """Write ``margin_speed_scatter`` as PDF, SVG and PNG, beside each other, and return the files.

    Args:
        panels: by model, then by method (every model with the same ones).
        radius: below which an example is vulnerable, drawn as a line; also as text, ``"8/255"``.
        path: of the files; a suffix that names one of the formats does not count.
        update: what moves the boundary, ``"gradient"`` or ``"optimizer"``: under the second speeds keep their unit.
    """
    return style.save(margin_speed_scatter(panels, radius, update), path)


def scaled(speed: np.ndarray) -> np.ndarray:
    """Return speeds divided by the largest absolute one."""
    largest = float(np.abs(speed).max(initial=0.0))
    return speed / largest if largest else speed


def _measured(cloud: Cloud, in_units: bool) -> Dots:
    margin, speed = dots_of(cloud)
    return Dots(margin, speed if in_units else scaled(speed))


def _reach(speeds: list[np.ndarray]) -> tuple[float, float]:
    """Return the ends of an axis: never the whole way down where no speed reaches it, that would be an empty third."""
    joined = np.concatenate(speeds)
    size = float(np.abs(joined).max(initial=0.0)) or 1.0
    top, low = 1.08 * size, min(1.05 * float(joined.min(initial=0.0)), -0.15 * size)
    return low - FOOT / (1 - FOOT) * (top - low), top


def _mark_speeds(axis: "Axes", in_units: bool) -> None:
    if in_units:
        axis.locator_params(axis="y", nbins=5)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}".replace("-", MINUS))
    else:
        axis.set_yticks([-1, -0.5, 0, 0.5, 1])


def _draw(axis: "Axes", dots: Dots, radius: float, end: float) -> None:
    margin, speed = dots
    for towards, colour in ((False, style.AWAY), (True, style.TOWARDS)):
        rows = (speed < 0) == towards
        # Many dots as a picture: a PDF with thousands of them takes seconds to open.
        axis.scatter(
            np.minimum(margin[rows], end),
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
    beyond = radius < 0.8 * end  # where there is room for its name
    axis.annotate(
        style.radius_words(radius), (radius, 0.0), (3 if beyond else -3, 2), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=7, horizontalalignment="left" if beyond else "right",
    )  # fmt: skip


def _end(margins: list[np.ndarray], radius: float) -> float:
    joined = np.concatenate(margins)
    return float(max(1.1 * radius, np.quantile(joined, SHOWN))) if len(joined) else 2 * radius


def _words(dots: Dots, radius: float) -> str:
    below = dots.margin < radius
    if not below.any():
        return f"none below {style.radius_words(radius)}"
    share = float((dots.speed[below] < 0).mean())
    return f"{100 * share:.1f} % negative below {style.radius_words(radius)}"
