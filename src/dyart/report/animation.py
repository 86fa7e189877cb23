"""The moving boundary as an animation: a GIF that opens anywhere."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dyart.report import drawing, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

DPI = 110
SIZE = (6.9, 3.3)


class Frame(NamedTuple):
    """One picture of the animation."""

    step: int
    phase: str
    """Name of the method that is trained with."""
    field: np.ndarray
    """phi on a grid of the unit square."""
    scene: drawing.Scene


def write_animation(
    frames: Sequence[Frame],
    path: Path,
    radius: float,
    enlarged: float = 10.0,
    seconds: float = 0.12,
    tick: Callable[[], None] = lambda: None,
) -> Path:
    """Write a GIF that runs again and again, and return its file.

    Args:
        frames: in their order.
        path: of the file.
        radius: below which an example is vulnerable.
        enlarged: how much longer arrows are than a step's movement.
        seconds: that a frame is shown; the last stays longer.
        tick: called after every frame.

    Raises:
        ValueError: there are no frames.
    """
    if not frames:
        raise ValueError("an animation needs at least one frame")
    pictures = []
    for number in range(len(frames)):
        pictures.append(_picture(frame_figure(frames, number, radius, enlarged)))
        tick()
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = [round(1000 * seconds)] * (len(pictures) - 1) + [1500]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=shown, loop=0, optimize=True)
    return path


def frame_figure(frames: Sequence[Frame], number: int, radius: float, enlarged: float) -> "Figure":
    """Return the figure of one frame: the plane, and how margins and negative speeds came to be so far."""
    from matplotlib.figure import Figure

    frame = frames[number]
    with style.style():
        figure = Figure(figsize=SIZE, layout="constrained")
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.05, 1.0])[0]
        axis = left.subplots()
        drawing.frame(axis, ((0.0, 1.0), (0.0, 1.0)))
        drawing.draw_points(axis, frame.scene, radius, size=9)
        drawing.draw_boundary(axis, frame.field)
        drawing.draw_arrows(axis, frame.scene, enlarged)
        axis.set_title(f"{style.method_name(frame.phase)}, step {frame.step}", loc="left", fontweight="bold")
        axis.set_xlabel(f"arrows: next step x {enlarged:g}; blue: away, red: closer", fontsize=7)
        above, below = right.subplots(2, 1, sharex=True)
        steps = np.array([f.step for f in frames])
        _history(above, steps, [_margins(f) for f in frames], number)
        above.set_title(f"margins: median, lowest tenth; radius {style.radius_words(radius)}", loc="left")
        above.axhline(radius, color=style.BLACK, linewidth=0.6, linestyle=":")
        _history(below, steps, [[_negative(f, radius)] for f in frames], number, (style.TOWARDS,))
        below.set_title("negative speed among vulnerable points", loc="left")
        below.set_ylim(0, 1)
        below.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        below.set_xlabel("step")
        change = next((f.step for f, g in zip(frames[1:], frames, strict=False) if f.phase != g.phase), None)
        for panel in (above, below):
            if change is not None:
                panel.axvline(change, color=style.GREY, linewidth=0.8, linestyle="--")
    return figure


def _history(
    axis: "Axes", steps: np.ndarray, values: list[list[float]], number: int,
    colours: Sequence[str] = (style.BLUE, style.SKY),
) -> None:  # fmt: skip
    table = np.array(values, dtype=float)
    for column, colour in zip(table.T, colours, strict=False):
        axis.plot(steps, column, color=colour, alpha=0.18)
        axis.plot(steps[: number + 1], column[: number + 1], color=colour)
        axis.plot(steps[number], column[number], "o", color=colour, markersize=3.5)
    axis.set_xlim(steps[0], max(steps[-1], steps[0] + 1))


def _margins(frame: Frame) -> list[float]:
    margin = frame.scene.margin[frame.scene.known]
    return [float(np.quantile(margin, share)) for share in (0.5, 0.1)] if len(margin) else [np.nan, np.nan]


def _negative(frame: Frame, radius: float) -> float:
    rows = frame.scene.known & (frame.scene.margin < radius)
    return float((frame.scene.speed[rows] < 0).mean()) if rows.any() else np.nan


def _picture(figure: "Figure") -> "Image":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas: Any = FigureCanvasAgg(figure)  # whose methods have no types
    figure.set_dpi(DPI)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return picture.quantize(64, dither=Image.Dither.NONE)
