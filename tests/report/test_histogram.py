"""The picture of margins: its bars are the shares of right examples, in every format, without side effects."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dyart.attacks.radius import Radius
from dyart.report.histogram import COLOURS, margin_histogram

INF = np.inf
EXAMPLE = np.array([0.0, 0.0, 0.01, 0.05, 0.1, 0.24, 0.25, 0.26, 7.0, INF])


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn: every call of ``bar``, and every figure that is saved."""
    seen = {"bars": [], "figures": []}
    bar, save = Axes.bar, Figure.savefig

    def noted_bar(self, x, height, *rest, **options):
        seen["bars"].append((np.asarray(x), np.asarray(height), options))
        return bar(self, x, height, *rest, **options)

    def noted_save(self, *rest, **options):
        seen["figures"].append(self)
        return save(self, *rest, **options)

    monkeypatch.setattr(Axes, "bar", noted_bar)
    monkeypatch.setattr(Figure, "savefig", noted_save)
    return seen


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG\r\n"), ("pdf", b"%PDF"), ("svg", b'<?xml version="1.0"')]
)
def test_the_suffix_chooses_the_format(tmp_path, suffix, start):
    path = tmp_path / f"margins.{suffix}"
    assert margin_histogram({"AT": EXAMPLE}, path, 0.1, 0.25, title="Margins") == path
    data = path.read_bytes()
    assert data.startswith(start)
    assert len(data) > 3000


def test_bars_are_shares_of_all_examples(tmp_path, drawn):
    margin_histogram({"AT": EXAMPLE}, tmp_path / "m.png", 0.1, 0.25, bins=5)
    ((left, heights, options),) = drawn["bars"]
    assert left == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert options["width"] == pytest.approx([0.05] * 5)
    assert options["align"] == "edge"
    # Wrong ones are in no bar; 0.24, 0.25, 0.26, 7 and inf are in the last.
    assert heights == pytest.approx([0.1, 0.1, 0.1, 0.0, 0.5])


@pytest.mark.parametrize("bins", [1, 7, 24])
def test_bars_sum_to_the_share_of_right_examples(tmp_path, drawn, bins):
    random = np.random.RandomState(0)
    margins = {
        name: np.where(random.rand(500) < wrong, 0, random.exponential(scale, 500)).astype(np.float32)
        for name, wrong, scale in (("one", 0.1, 0.05), ("two", 0.4, 0.3), ("three", 1.0, 1.0))
    }
    margins["one"][margins["one"] > 0.1] = INF
    margin_histogram(margins, tmp_path / "m.png", 0.1, 0.25, bins=bins)
    assert len(drawn["bars"]) == 3
    for (_, heights, _), values in zip(drawn["bars"], margins.values(), strict=True):
        assert len(heights) == bins
        assert heights.sum() == pytest.approx((values > 0).mean())
        assert heights[-1] == pytest.approx(((values >= 0.25 * (bins - 1) / bins) & (values > 0)).mean())


def test_words_and_lines(tmp_path, drawn):
    names = ("natural", "AT", "DyART", "TRADES", "MART")
    margin_histogram(dict.fromkeys(names, EXAMPLE), tmp_path / "m.png", Radius("26/255"), 0.25, title="Two margins")
    (figure,) = drawn["figures"]
    assert figure.get_suptitle() == "Two margins"
    assert [axis.get_title("left") for axis in figure.axes] == list(names)
    assert {axis.get_title("right") for axis in figure.axes} == {"correct 80.0%, margin above 26/255: 50.0%"}
    assert all(line.get_xdata() == [26 / 255, 26 / 255] for axis in figure.axes for line in axis.lines)
    assert "0.24" in figure.axes[-1].get_xlabel()
    assert [options["color"] for _, _, options in drawn["bars"]] == [*COLOURS, COLOURS[0]]
    limits = {(axis.get_xlim(), axis.get_ylim()) for axis in figure.axes}
    assert len(limits) == 1, "a common scale"


def boxes(figure):
    """Return where the texts of a figure are, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    titles = [t for a in figure.axes for t in (a.title, a._left_title, a._right_title, a.xaxis.label)]
    words = [*titles, figure._suptitle, figure._supylabel, *(t for a in figure.axes for t in a.get_yticklabels())]
    return {f"{w.get_text()} {i}": w.get_window_extent(renderer) for i, w in enumerate(words) if w and w.get_text()}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_text_covers_another_or_a_bar(tmp_path, drawn, count):
    margins = {f"a model of name {i}": EXAMPLE for i in range(count)}
    margin_histogram(
        margins, tmp_path / "m.png", Radius("8/255"), 0.25, title="Fashion-MNIST test images, L-inf margins"
    )
    (figure,) = drawn["figures"]
    found = boxes(figure)
    assert len(found) > 2 * count + 3
    for name, box in found.items():
        # Tick labels may lie beside a bar, on the left: outside the axes.
        assert not any(box.overlaps(other) for also, other in found.items() if also != name), name
        assert not any(box.overlaps(axis.get_window_extent().shrunk(0.98, 0.98)) for axis in figure.axes), name
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1


def test_ticks_are_exact(tmp_path, drawn):
    margin_histogram({"AT": EXAMPLE}, tmp_path / "m.png", 0.1, 0.25)
    (axis,) = drawn["figures"][0].axes
    written = axis.yaxis.get_major_formatter()
    assert [written(value, 0) for value in (0.0, 0.025, 0.07, 0.1, 1.0)] == ["0%", "2.5%", "7%", "10%", "100%"]


def test_a_radius_beyond_the_axis_is_still_drawn(tmp_path, drawn):
    margin_histogram({"AT": EXAMPLE}, tmp_path / "m.png", 0.5, 0.25)
    assert drawn["figures"][0].axes[0].get_xlim()[1] >= 0.5


def test_no_figure_and_no_backend_is_left_behind(tmp_path):
    import matplotlib
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    try:
        pyplot.switch_backend("svg")
        margin_histogram({"AT": EXAMPLE}, tmp_path / "m.png", 0.1, 0.25)
        assert matplotlib.get_backend() == "svg"
        assert pyplot.get_fignums() == []
    finally:
        pyplot.switch_backend(before)


def test_the_margins_are_not_changed(tmp_path):
    margins = EXAMPLE.copy()
    margin_histogram({"AT": margins}, tmp_path / "m.png", 0.1, 0.25)
    assert np.array_equal(margins, EXAMPLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margins": {}}, "there are no margins to draw"),
        ({"margins": {"AT": np.array([])}}, "'AT' has no margins to draw"),
        ({"margins": {"one": EXAMPLE, "two": np.array([0.1, np.nan])}}, "'two' has nan margins: write 0"),
        ({"largest": 0.0}, "largest=0.0"),
        ({"largest": INF}, "largest=inf"),
        ({"bins": 0}, "bins=0"),
    ],
)
def test_nothing_to_draw_says_so(tmp_path, changes, message):
    settings = {"margins": {"AT": EXAMPLE}, "path": tmp_path / "m.png", "radius": 0.1, "largest": 0.25} | changes
    with pytest.raises(ValueError, match=message):
        margin_histogram(**settings)
    assert not list(tmp_path.iterdir())
