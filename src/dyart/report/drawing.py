"""What pictures of the plane are made of: examples, a boundary, arrows.

A field holds phi on a grid of the unit square, first index upwards; the boundary is where it is zero.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dyart.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Marker and colour of the classes; filled where an example is vulnerable.
CLASSES = (("^", style.ORANGE), ("o", style.GREEN), ("s", style.GREY))
PADDING = 0.07

Window = tuple[tuple[float, float], tuple[float, float]]


class Scene(NamedTuple):
    """Examples with their closest boundary points, and how fast those move away."""

    inputs: np.ndarray
    labels: np.ndarray
    points: np.ndarray
    margin: np.ndarray
    speed: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Examples that have a boundary point."""
        return np.asarray(np.isfinite(self.margin) & np.isfinite(self.speed))

    @property
    def arrows(self) -> np.ndarray:
        """Where the closed form says that each boundary point goes, along its normal, ``[N, 2]``; zero if unknown."""
        way = self.points - self.inputs
        length = np.linalg.norm(way, axis=1, keepdims=True)
        normal = way / np.where(length > 0, length, 1.0)
        return np.where(self.known[:, None], normal * np.nan_to_num(self.speed)[:, None], 0.0)


def frame(axis: "Axes", window: Window) -> None:
    """Make an axis a picture of the plane: equal scales, a frame, no numbers."""
    axis.set_aspect("equal")
    axis.set_xlim(window[0])
    axis.set_ylim(window[1])
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(True)


def window_around(points: np.ndarray, padding: float = PADDING) -> Window:
    """Return the limits of a square around some points, inside the unit square if it fits."""
    low, high = points.min(axis=0) - padding, points.max(axis=0) + padding
    half = min((high - low).max() / 2, 0.5)
    middle = np.clip((low + high) / 2, half, 1 - half)
    (left, down), (right, up) = (middle - half).tolist(), (middle + half).tolist()
    return (left, right), (down, up)


def draw_points(axis: "Axes", scene: Scene, radius: float, size: float = 14, alpha: float = 1.0) -> None:
    """Draw examples, one marker per class: filled below the radius, hollow above."""
    for label, (marker, colour) in enumerate(CLASSES):
        for vulnerable in (False, True):
            rows = (scene.labels == label) & ((scene.margin < radius) == vulnerable)
            x, y = scene.inputs[rows].T
            looks: dict[str, Any] = {"marker": marker, "edgecolors": colour, "linewidths": 0.8, "alpha": alpha}
            axis.scatter(x, y, size, facecolors=colour if vulnerable else "none", zorder=3, **looks)


def draw_boundary(
    axis: "Axes", field: np.ndarray, colour: str = style.BLACK, line: str = "-", width: float = 1.3
) -> None:
    """Draw where a field is zero; nothing where it never is."""
    if field.min() < 0 < field.max():
        along = np.linspace(0, 1, len(field))
        axis.contour(along, along, field, levels=[0.0], colors=[colour], linestyles=[line], linewidths=[width])


def draw_arrows(axis: "Axes", scene: Scene, enlarged: float = 1.0, width: float = 0.006) -> None:
    """Draw the speeds at the boundary points: away from the examples in blue, towards them in red."""
    rows = scene.known
    colours = np.where(scene.speed[rows] < 0, style.TOWARDS, style.AWAY)
    axis.quiver(
        *scene.points[rows].T, *(enlarged * scene.arrows[rows]).T, color=list(colours), angles="xy", scale_units="xy",
        scale=1, width=width, headwidth=3.5, headlength=4, headaxislength=3.5, zorder=4, minlength=0,
    )  # fmt: skip


def write_beside(axis: "Axes", name: str, at: np.ndarray, away_from: np.ndarray, distance: float = 12) -> None:
    """Write a name beside a point, on the side that faces away from another."""
    from matplotlib.patheffects import withStroke

    way = at - away_from
    x, y = distance * way / max(float(np.linalg.norm(way)), 1e-9)
    text = axis.annotate(
        name, tuple(at), (x, y), textcoords="offset points", ha="center", va="center", fontsize=9, zorder=6
    )
    text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
