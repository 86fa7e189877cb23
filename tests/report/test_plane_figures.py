"""Pictures of a boundary in the plane, of a linear one, whose place is known."""

import numpy as np
import pytest

from dyart.report.animation import Frame, frame_figure, write_animation
from dyart.report.drawing import Scene, draw_boundary
from dyart.report.plane import curve_figure, movement_figure, soft_figure
from dyart.report.style import AWAY, TOWARDS

LINE = np.linspace(0, 1, 41)
X, Y = np.meshgrid(LINE, LINE)
# Class 0 above the line y = x / 2 + c.
FIELDS = [Y - X / 2 - c for c in (0.2, 0.25, 0.3)]
NORMAL = np.array([-0.5, 1.0]) / np.hypot(0.5, 1)


@pytest.fixture
def scene() -> Scene:
    inputs = np.array([[0.3, 0.7], [0.6, 0.6], [0.4, 0.2], [0.9, 0.9]])
    value = inputs[:, 1] - inputs[:, 0] / 2 - 0.2
    distance = value / np.hypot(0.5, 1)
    points = inputs - distance[:, None] * NORMAL
    margin = np.where([True, True, True, False], np.abs(distance), np.nan)
    # The line moves up by 0.1: closer to class 0.
    speed = np.array([-0.1, -0.1, 0.1, np.nan]) / np.hypot(0.5, 1)
    return Scene(inputs, np.array([0, 0, 1, 0]), points, margin, speed)


def contours(axis) -> list[np.ndarray]:
    from matplotlib.contour import ContourSet

    sets = [item for item in axis.collections if isinstance(item, ContourSet)]
    return [path.vertices for item in sets for path in item.get_paths() if len(path.vertices)]


def test_arrows_end_on_the_boundary_after_the_step(scene):
    ends = (scene.points + scene.arrows)[:3]
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0] / 2 - 0.3, 0, atol=1e-12)
    assert scene.arrows[3].tolist() == [0, 0]
    assert scene.known.tolist() == [True, True, True, False]


def test_the_boundary_is_drawn_where_the_field_is_zero():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    draw_boundary(axis, FIELDS[0])
    (line,) = contours(axis)
    np.testing.assert_allclose(line[:, 1] - line[:, 0] / 2, 0.2, atol=1e-9)
    draw_boundary(axis, np.ones((5, 5)))  # no boundary, no line, no warning
    assert len(contours(axis)) == 1


def test_movement_has_points_two_boundaries_and_coloured_arrows(scene):
    from matplotlib.colors import to_hex
    from matplotlib.quiver import Quiver

    paths = np.stack([scene.points, scene.points + scene.arrows])
    figure = movement_figure(scene, FIELDS, paths, 0.2)
    assert [len(contours(axis)) for axis in figure.axes] == [1, 2, 3]
    (quiver,) = [item for item in figure.axes[1].collections if isinstance(item, Quiver)]
    assert [to_hex(colour).upper() for colour in quiver.get_facecolor()] == [TOWARDS, TOWARDS, AWAY]
    assert len(figure.axes[2].lines) == 4  # a path per example
    assert [line.get_color() for line in figure.axes[2].lines[:3]] == [TOWARDS, TOWARDS, AWAY]
    assert [axis.get_title(loc="left")[:3] for axis in figure.axes] == ["(a)", "(b)", "(c)"]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "margin below 0.2" in texts


def test_curve_names_both_ends_and_the_example(scene):
    curve = np.linspace(scene.points[0], scene.points[0] + 0.1 * NORMAL, 9)
    axis = curve_figure(scene.inputs[0], 0, curve, FIELDS, scene).axes[0]
    assert [text.get_text() for text in axis.texts] == ["$\\hat{x}(t_0)$", "$\\hat{x}(t_1)$", "$x$"]
    assert len(contours(axis)) == 3
    assert any(len(line.get_xdata()) == 9 for line in axis.lines)
    left, right = axis.get_xlim()
    assert 0 <= left < min(curve[:, 0])
    assert max(curve[:, 0]) < right <= 1


def test_soft_boundary_beside_the_exact_one(scene):
    regions = (FIELDS[0] < 0).astype(int) + (X > 0.8)
    ends = (scene.points[0], scene.points[0] + 0.05 * NORMAL)
    figure = soft_figure(scene.inputs[0], regions, FIELDS[0], FIELDS[1], ends, scene, ", beta = 2")
    axis = figure.axes[0]
    assert len(axis.images) == 1
    assert len(contours(axis)) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()][1] == "soft boundary, beta = 2"


def test_animation_has_all_frames_and_runs_on(scene, tmp_path):
    from PIL import Image

    moments = zip((0, 5, 9), ("natural", "at", "at"), FIELDS, strict=True)
    frames = [Frame(*moment, scene) for moment in moments]
    ticks: list[int] = []
    path = write_animation(frames, tmp_path / "new" / "a.gif", 0.2, tick=lambda: ticks.append(1))
    with Image.open(path) as picture:
        assert picture.n_frames == len(ticks) == 3
        assert picture.info["loop"] == 0
        first = np.asarray(picture.convert("RGB"), dtype=int)
        picture.seek(2)
        assert np.abs(first - np.asarray(picture.convert("RGB"))).max() > 50
    figure = frame_figure(frames, 1, 0.2, 10.0)
    axes = [axis for part in figure.subfigs for axis in part.axes]
    assert axes[0].get_title(loc="left") == "AT, step 5"
    assert axes[2].get_xlabel() == "step"


def test_no_frames_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="at least one frame"):
        write_animation([], tmp_path / "a.gif", 0.1)
