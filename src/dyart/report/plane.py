"""The decision boundary in two dimensions: how it moves, the curve of a closest point, the soft boundary.

The drawing half of ``dyart plane``: everything comes as examples with their boundary points, and fields of numbers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dyart.report import style
from dyart.report.drawing import (
    CLASSES,
    Scene,
    draw_arrows,
    draw_boundary,
    draw_points,
    frame,
    window_around,
    write_beside,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

REGIONS = ("#FBE9C6", "#CFEBE1", "#E4E4E4")


def movement_figure(scene: Scene, fields: Sequence[np.ndarray], paths: np.ndarray, radius: float) -> "Figure":
    """Return the paper's figure 1: vulnerable and robust points; one update; the continuous movement behind it.

    Args:
        scene: before the update, with the update's speeds: arrows end where the new boundary should be.
        fields: phi along the update, from before to after it, two or more.
        paths: the boundary points of the scene's examples at the same times, ``[T, N, 2]``, nan where there is none.
        radius: below which an example is vulnerable.
    """
    from matplotlib.figure import Figure

    with style.style():
        figure = Figure(figsize=(style.PAGE, 2.3), layout="constrained")
        axes = figure.subplots(1, 3)
        window = window_around(scene.points[scene.known])
        for axis in axes:
            frame(axis, window)
            draw_points(axis, scene, radius)
        draw_boundary(axes[0], fields[0])
        draw_boundary(axes[1], fields[0], style.GREY, "--")
        draw_boundary(axes[1], fields[-1])
        draw_arrows(axes[1], scene)
        shades = _shades(len(fields))
        for field, shade in zip(fields, shades, strict=True):
            draw_boundary(axes[2], field, shade, width=0.8)
        for path, speed in zip(np.moveaxis(paths, 1, 0), scene.speed, strict=True):
            axes[2].plot(*path.T, color=style.TOWARDS if speed < 0 else style.AWAY, linewidth=1.0)
        axes[0].set_title("(a) vulnerable points filled", loc="left")
        axes[1].set_title("(b) one update, with speeds", loc="left")
        axes[2].set_title("(c) the movement between", loc="left")
        figure.legend(handles=_legend(radius), loc="outside lower center", ncols=5, handlelength=1.6, columnspacing=1.4)
    return figure


def curve_figure(
    example: np.ndarray, label: int, curve: np.ndarray, fields: Sequence[np.ndarray], others: Scene
) -> "Figure":
    """Return the paper's figure 2: the curve of the closest boundary point of one example.

    Args:
        example: the point x.
        label: its class.
        curve: its closest boundary point at many times, ``[T, 2]``.
        fields: phi at some of these times, from the first to the last.
        others: examples around it.
    """
    from matplotlib.figure import Figure

    with style.style():
        figure = Figure(figsize=(style.COLUMN, 2.9), layout="constrained")
        axis = figure.subplots()
        frame(axis, window_around(np.vstack([example[None], curve])))
        draw_points(axis, others, 0.0, size=9, alpha=0.35)
        for field, shade in zip(fields, _shades(len(fields)), strict=True):
            draw_boundary(axis, field, shade, width=0.9)
        for end, other, name in ((curve[0], curve[-1], "$\\hat{x}(t_0)$"), (curve[-1], curve[0], "$\\hat{x}(t_1)$")):
            axis.plot(*zip(example, end, strict=True), color=style.BLACK, linewidth=0.7, linestyle=":")
            # To the side where the other end is not, and a little away from the example: there is no line.
            sideways = np.array([np.sign(other[0] - end[0]) or 1.0, 0.0])
            towards = (example - end) / max(float(np.linalg.norm(example - end)), 1e-9)
            write_beside(axis, name, end, end + sideways + 0.5 * towards, 18)
        axis.plot(*curve.T, color=style.BLUE, linewidth=2.2)
        axis.plot(*curve[[0, -1]].T, "o", color=style.BLUE, markersize=4)
        marker, colour = CLASSES[label]
        axis.plot(*example, marker, color=colour, markersize=7, markeredgecolor=style.BLACK)
        write_beside(axis, "$x$", example, curve.mean(axis=0))
        axis.set_title("boundary from early (light) to late (dark)", loc="left")
    return figure


def soft_figure(
    example: np.ndarray,
    regions: np.ndarray,
    exact: np.ndarray,
    soft: np.ndarray,
    closest: tuple[np.ndarray, np.ndarray],
    scene: Scene,
    words: str = "",
) -> "Figure":
    """Return the paper's figure 4: the exact boundary of a class and its soft one, for three classes.

    Args:
        example: the point x.
        regions: predicted class on the grid.
        exact: phi of the class of x.
        soft: Phi of the same.
        closest: points of x on the exact and on the soft boundary.
        scene: all examples.
        words: about the soft boundary, e.g. its beta.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    with style.style():
        figure = Figure(figsize=(style.COLUMN, 3.1), layout="constrained")
        axis = figure.subplots()
        window = window_around(np.vstack([scene.inputs, *closest]))
        frame(axis, window)
        axis.imshow(
            regions, extent=(0, 1, 0, 1), origin="lower", cmap=ListedColormap(REGIONS), vmin=0, vmax=2,
            interpolation="nearest", aspect="equal",
        )  # fmt: skip
        axis.set_xlim(window[0])
        axis.set_ylim(window[1])
        draw_points(axis, scene, 0.0, size=9, alpha=0.7)
        for field, colour, line, end in ((exact, style.BLUE, "-", closest[0]), (soft, style.RED, "--", closest[1])):
            draw_boundary(axis, field, colour, line, 1.6)
            axis.plot(*zip(example, end, strict=True), color=colour, linewidth=0.9)
            axis.plot(*end, "o", color=colour, markersize=4)
        axis.plot(*example, "o", color=style.BLACK, markersize=4, zorder=5)
        write_beside(axis, "$x$", example, np.mean(closest, axis=0))
        lines = [
            axis.plot([], [], color=style.BLUE, label="exact boundary of its class")[0],
            axis.plot([], [], color=style.RED, linestyle="--", label=f"soft boundary{words}")[0],
        ]
        figure.legend(handles=lines, loc="outside lower center", ncols=2)
    return figure


def _legend(radius: float) -> "list[Line2D]":
    from matplotlib.lines import Line2D as Line

    def dot(marker: str, filled: bool, label: str) -> Line:
        face = style.BLACK if filled else "none"
        return Line([], [], marker=marker, linestyle="", markersize=4, color=style.BLACK, mfc=face, label=label)

    return [
        dot("o", True, f"margin below {style.radius_words(radius)}"),
        dot("o", False, "above"),
        Line([], [], color=style.GREY, linestyle="--", label="boundary before"),
        Line([], [], color=style.AWAY, label="moves away"),
        Line([], [], color=style.TOWARDS, label="comes closer"),
    ]


def _shades(count: int) -> list[str]:
    return [str(shade) for shade in np.linspace(0.78, 0.1, count)]
