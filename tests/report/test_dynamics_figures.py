"""The figures of measured dynamics: what is in them, not what they look like."""

import math

import numpy as np
import pytest
import torch

from dyart.attacks.radius import Radius
from dyart.dynamics.shares import margin_edges
from dyart.report import style
from dyart.report.bars import speed_bars, write_bars
from dyart.report.scatter import Cloud, margin_speed_scatter, scaled, write_scatter

MARGIN = np.array([0.01, 0.02, 0.03, 0.06, 0.09, 0.3] * 20)
AT = Cloud(MARGIN, np.array([-4.0, 2.0, 1.0, -1.0, 1.0, 1.0] * 20))
DYART = Cloud(MARGIN, np.array([1.0, 2.0, 1.0, -1.0, 1.0, -8.0] * 20))
SMALL = Cloud(MARGIN, 0.001 * AT.speed)
PANELS = {"natural": {"at": AT, "dyart": DYART}, "robust": {"at": AT, "dyart": DYART}}


def dots(axis) -> np.ndarray:
    return np.concatenate([collection.get_offsets() for collection in axis.collections])


def test_a_panel_per_model_and_method_with_every_example_in_it():
    figure = margin_speed_scatter(PANELS, 0.1)
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert len(dots(axis)) == len(MARGIN)
    assert figure.axes[0].get_title(loc="left") == "AT on natural"
    assert figure.axes[3].get_title(loc="left") == "DyART on robust"
    assert figure.axes[2].get_xlabel() == "margin"
    assert figure.axes[0].get_ylabel() == "speed (largest = 1)"


def test_speeds_are_scaled_to_one_and_signs_coloured():
    axis = margin_speed_scatter({"": {"at": AT}}, 0.1).axes[0]
    assert np.abs(dots(axis)[:, 1]).max() == 1.0
    away, towards = axis.collections
    assert (away.get_offsets()[:, 1] >= 0).all()
    assert (towards.get_offsets()[:, 1] < 0).all()
    assert len(towards.get_offsets()) == 40
    assert scaled(np.array([2.0, -4.0])).tolist() == [0.5, -1.0]
    assert scaled(np.zeros(2)).tolist() == [0.0, 0.0]


def test_the_share_below_the_radius_is_written_above():
    axis = margin_speed_scatter({"": {"at": AT}}, Radius("8/255")).axes[0]
    assert "33.3 % negative below 8/255" in [text.get_text() for text in axis.texts]
    low, high = axis.get_ylim()
    assert low < -1 < 1 < high
    assert any(line.get_xdata()[0] == pytest.approx(8 / 255) for line in axis.lines if len(set(line.get_xdata())) == 1)


@pytest.mark.parametrize(
    ("update", "words"), [("gradient", "\u03b8\u2032 = \u2212\u2207L"), ("optimizer", "the optimizer's step")]
)
def test_what_moves_the_boundary_is_said_at_the_axes(update, words):
    scatter, bars = margin_speed_scatter(PANELS, 0.1, update), speed_bars(PANELS, margin_edges(0.1), "", update)
    assert all(words in scatter.axes[row].get_ylabel() for row in (0, 2))
    assert words in bars.get_supxlabel()
    assert "speeds under" not in speed_bars(PANELS, margin_edges(0.1)).get_supxlabel()
    assert "numbers: share of the interval" in speed_bars(PANELS, margin_edges(0.1)).get_supxlabel()


def test_distances_per_step_keep_their_unit_and_methods_share_the_axis():
    figure = margin_speed_scatter(PANELS | {"small": {"at": SMALL, "dyart": SMALL}}, 0.1, "optimizer")
    at, dyart, *_, small = figure.axes
    assert dots(at)[:, 1].min() == -4.0
    assert dots(dyart)[:, 1].min() == -8.0
    assert at.get_ylim() == dyart.get_ylim()
    low, high = at.get_ylim()
    assert low < -8 < 8 < high, "room for the largest of both"
    assert small.get_ylim()[1] < 0.01 * high, "another network has an axis of its own"
    assert at.get_ylabel() == "speed (distance per step)\nunder the optimizer's step"
    figure.draw_without_rendering()
    assert "\u22125" in [label.get_text() for label in at.get_yticklabels()]


@pytest.mark.parametrize("update", ["gradient", "optimizer"])
@pytest.mark.parametrize("lowest", [-1.0, -0.1, 0.5])
def test_no_dot_hides_under_the_name_of_the_radius(update, lowest):
    margin = np.linspace(0, 0.3, 301)
    clouds = {name: Cloud(margin, np.where(np.arange(301) % 2, 1.0, lowest)) for name in ("at", "dyart")}
    figure = margin_speed_scatter({"a": clouds, "b": clouds}, 0.1, update)
    figure.draw_without_rendering()
    for axis in figure.axes:
        (name,) = (text for text in axis.texts if text.get_text() == "0.1")
        box = name.get_window_extent()
        assert box.y0 >= axis.get_window_extent().y0
        assert not any(box.contains(x, y) for x, y in axis.transData.transform(dots(axis)))


@pytest.mark.parametrize("end", [0.05, 0.12, 0.3])
def test_the_name_of_the_radius_stays_inside_its_panel(end):
    cloud = Cloud(np.linspace(0, end, 50), np.ones(50))
    figure = margin_speed_scatter({"": dict.fromkeys(("at", "dyart", "mart"), cloud)}, 0.1)
    figure.draw_without_rendering()
    for axis in figure.axes:
        (name,) = (text for text in axis.texts if text.get_text() == "0.1")
        assert name.get_window_extent().x1 <= axis.get_window_extent().x1


def test_a_radius_may_be_text_and_an_update_must_be_known():
    figure = margin_speed_scatter(PANELS, "8/255")
    assert "negative below 8/255" in " ".join(text.get_text() for text in figure.axes[0].texts)
    for draw in (
        lambda update: margin_speed_scatter(PANELS, 0.1, update),
        lambda update: speed_bars(PANELS, [0, 1], "", update),
    ):
        with pytest.raises(ValueError, match="'gradient', 'optimizer', or None; got 'optimiser'"):
            draw("optimiser")


def titles(figure) -> list:
    return [axis._left_title for axis in figure.axes if axis.get_visible()]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_no_words_meet_however_many_runs_and_methods_there_are(count):
    names = [f"fashion-mini-cnn-dyart-seed{seed}" for seed in range(count)]
    methods = dict(zip(("at", "dyart", "trades"), (AT, DYART, AT), strict=True))
    bars = speed_bars({name: {"at": AT, "dyart": DYART} for name in names}, margin_edges(0.1))
    assert [axis.get_title(loc="left") for axis in bars.axes if axis.get_visible()] == names
    scatter = margin_speed_scatter(dict.fromkeys(names, methods), 0.1)
    assert scatter.axes[2].get_title(loc="left").split() == ["TRADES", "on", "fashion-mini-", "cnn-dyart-seed0"]
    ticks = [label for axis in bars.axes if axis.get_visible() for label in axis.get_xticklabels()]
    for figure, words in ((bars, [*titles(bars), *ticks]), (scatter, titles(scatter))):
        figure.draw_without_rendering()
        drawn = [text.get_window_extent() for text in words]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in drawn)
        assert not any(one.overlaps(other) for place, one in enumerate(drawn) for other in drawn[:place])


def test_different_methods_per_model_cannot_be_drawn_as_a_grid():
    with pytest.raises(ValueError, match="same methods for every model"):
        margin_speed_scatter({"a": {"at": AT}, "b": {"dyart": DYART}}, 0.1)
    with pytest.raises(ValueError, match="at least one model"):
        margin_speed_scatter({}, 0.1)


def test_an_empty_cloud_is_drawn_as_nothing():
    nothing = Cloud(np.zeros(0), np.zeros(0))
    axis = margin_speed_scatter({"": {"at": nothing}}, 0.1).axes[0]
    assert "none below 0.1" in [text.get_text() for text in axis.texts]
    assert len(speed_bars({"": {"at": nothing}}, margin_edges(0.1)).axes) == 1


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_are_drawn_like_arrays(kind, tmp_path):
    speed = torch.from_numpy(AT.speed).to(kind)
    speed = speed.requires_grad_() if kind.is_floating_point else speed
    tensors = Cloud(torch.from_numpy(MARGIN), speed)
    for draw in (lambda cloud: margin_speed_scatter({"": {"SAM": cloud}}, 0.1),
                 lambda cloud: speed_bars({"": {"SAM": cloud}}, margin_edges(0.1))):  # fmt: skip
        (own,), (usual,) = draw(tensors).axes, draw(AT).axes
        assert [text.get_text() for text in own.texts] == [text.get_text() for text in usual.texts]
        assert [bar.get_height() for bar in own.patches] == [bar.get_height() for bar in usual.patches]
    assert (
        dots(margin_speed_scatter({"": {"SAM": tensors}}, 0.1).axes[0]).tolist()
        == dots(margin_speed_scatter({"": {"SAM": AT}}, 0.1).axes[0]).tolist()
    )


def test_what_has_no_margin_or_speed_is_not_drawn():
    gaps = Cloud(torch.tensor([0.01, math.nan, math.inf, 0.05]), torch.tensor([1.0, 1.0, 1.0, math.nan]))
    axis = margin_speed_scatter({"": {"SAM": gaps}}, 0.1).axes[0]
    assert dots(axis).tolist() == [pytest.approx([0.01, 1.0])]
    assert sum(bar.get_height() for bar in speed_bars({"": {"SAM": gaps}}, margin_edges(0.1)).axes[0].patches) == 1.0


@pytest.mark.parametrize("draw", [margin_speed_scatter, lambda panels, radius: speed_bars(panels, [0, radius])])
def test_margins_and_speeds_of_other_examples_are_refused(draw):
    words = r"one margin and one speed per example, got shapes \[3\] and \[2\]"
    with pytest.raises(ValueError, match=words):
        draw({"": {"SAM": Cloud(torch.ones(3), torch.ones(2))}}, 0.1)


def test_bars_show_positive_shares_upwards_and_negative_ones_downwards():
    figure = speed_bars(PANELS, margin_edges(0.1))
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["natural", "robust"]
    positive, negative = figure.axes[0].containers[:2]  # of AT
    assert [bar.get_height() for bar in positive] == pytest.approx([2 / 6, 1 / 6, 0, 0, 1 / 6])
    assert [bar.get_height() for bar in negative] == pytest.approx([-1 / 6, -1 / 6, 0, 0, 0])
    heights = sum(abs(bar.get_height()) for container in figure.axes[0].containers[2:] for bar in container)
    assert heights == pytest.approx(1.0)  # DyART's, of all examples


def test_bars_are_labelled_by_interval_and_share():
    axis = speed_bars({"": {"at": AT}}, margin_edges(0.1)).axes[0]
    labels = [label.get_text().replace("\N{EN DASH}", " to ") for label in axis.get_xticklabels()]
    assert labels == ["0 to 0.05", "0.05 to 0.1", "0.1 to 0.15", "0.15 to 0.2", "\u2265 0.2"]
    assert [text.get_text() for text in axis.texts] == ["33%", "50%", "0%"]  # none where there are no examples
    in_255 = speed_bars({"": {"at": AT}}, margin_edges(8 / 255), "/255").axes[0]
    assert in_255.get_xticklabels()[1].get_text() == "4\N{EN DASH}8"
    assert in_255.get_xlabel() == "margin in 1/255"


def test_a_share_of_few_examples_is_not_written():
    few = Cloud(np.array([0.01] * 19 + [0.06] * 20), np.ones(39))
    axis = speed_bars({"": {"at": few}}, margin_edges(0.1)).axes[0]
    assert [text.get_text() for text in axis.texts] == ["0%"]


def test_methods_keep_their_colours_and_differ():
    assert style.method_colours(["dyart", "at"])["at"] == style.method_colours(["at"])["at"]
    many = style.method_colours(["at", "dyart", "mine:A", "mine:B", "trades"])
    assert len(set(many.values())) == 5
    papers = ["at", "dyart", "trades", "mart", "mma", "mail-trades", "gairat", "fat-trades", "natural"]
    assert len(set(style.method_colours(papers).values())) == len(papers)


@pytest.mark.parametrize("draw", ["scatter", "bars"])
def test_three_files_are_written_and_are_the_same_again(tmp_path, draw):
    def written(name: str):
        path = tmp_path / name / "figure.png"
        return write_scatter(PANELS, 0.1, path) if draw == "scatter" else write_bars(PANELS, margin_edges(0.1), path)

    first, second = written("a"), written("b")
    assert [path.suffix for path in first] == [".pdf", ".svg", ".png"]
    for one, two in zip(first, second, strict=True):
        assert one.stat().st_size > 2000
        assert one.read_bytes() == two.read_bytes(), one.suffix


def test_a_path_may_be_text(tmp_path):
    cloud = {"": {"SAM": Cloud(torch.from_numpy(MARGIN), torch.from_numpy(AT.speed))}}
    assert write_scatter(cloud, 0.1, str(tmp_path / "new" / "x"))[2] == tmp_path / "new" / "x.png"
    assert write_bars(cloud, margin_edges(0.1), str(tmp_path / "y.png"))[0] == tmp_path / "y.pdf"


def test_text_in_files_can_be_searched(tmp_path):
    svg = write_bars(PANELS, margin_edges(0.1), tmp_path / "figure")[1].read_text()
    assert "partially" not in svg
    assert ">natural<" in svg
    assert ">DyART<" in svg


def test_drawing_changes_no_global_settings():
    import matplotlib

    before = dict(matplotlib.rcParams)
    speed_bars(PANELS, margin_edges(0.1))
    assert dict(matplotlib.rcParams) == before


def test_edges_may_be_open():
    assert math.isinf(margin_edges(0.1)[-1])
    assert sum(abs(bar.get_height()) for bar in speed_bars({"": {"at": AT}}, [0, math.inf]).axes[0].patches) == 1.0
