"""What the page's plots show, in numbers."""

import html
import json
from dataclasses import replace

import numpy as np
import pytest
from page_cases import EXAMPLES, evaluation, write_run

from dyart.attacks.radius import Radius
from dyart.evaluation.intervals import wilson
from dyart.report.page import curves, figures, motion
from dyart.report.page.colours import COLOURS, slots
from dyart.report.page.files import read_accuracy
from dyart.report.page.run import read_runs
from dyart.report.page.write import page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return read_runs([write_run(folder / name, name, seed) for seed, name in enumerate(("at", "dyart"))])


def test_accuracy_has_clean_at_zero_and_intervals_as_measured(runs):
    shown = figures.accuracy(runs)
    traces = [trace for trace in shown["data"] if "error_y" in trace]
    assert [trace["x"] for trace in traces] == [[0.0, 0.05, 0.1]] * 2
    assert traces[1]["y"] == pytest.approx([0.8, 0.7, 0.59])
    assert traces[0]["error_y"]["array"] == pytest.approx([0.05, 0.06, 0.05])
    assert traces[0]["error_y"]["arrayminus"] == pytest.approx([0.06, 0.07, 0.1])
    assert "at: clean 80.0\u00a0%" in shown["alt"]


def test_accuracy_by_margins_counts_examples_beyond_the_radius(runs):
    thin = next(trace for trace in figures.accuracy(runs)["data"] if "error_y" not in trace)
    margin = runs[0].margins["margin"]
    for radius, share in zip(thin["x"], thin["y"], strict=True):
        assert share == pytest.approx(np.sum(margin > radius) / EXAMPLES), "wrong examples have no margin and count"


def test_intervals_that_a_file_lacks_are_wilsons(tmp_path):
    import json

    content = evaluation()
    del content["intervals"]
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(content | {"robust": {"8/255": 0.25}}))
    read = read_accuracy(path)
    share = read.robust[Radius("8/255")]
    assert (share.low, share.high) == wilson(50, 200)
    assert [str(radius) for radius in read.robust] == ["8/255"]


def test_the_histogram_has_every_correct_example_once(runs):
    for run, trace in zip(runs, figures.histogram(runs)["data"], strict=True):
        correct = np.mean(run.margins["inside"])
        assert sum(trace["y"][::2]) == pytest.approx(correct)
        assert len(trace["x"]) == len(trace["y"]) == 2 * figures.BINS


def test_without_a_finite_margin_there_is_no_distribution(runs, tmp_path):
    folder = write_run(tmp_path / "run")
    lines = (folder / "margins.csv").read_text().splitlines()
    (folder / "margins.csv").write_text("\n".join([lines[0], "0,1,0,1,1,0,nan,word"]))
    run = read_runs([folder])[0]
    assert figures.histogram([run]) is None
    assert figures.median_margin(run) is None
    assert figures.median_margin(runs[0]) == pytest.approx(np.nanmedian(runs[0].margins["margin"]))


def test_an_evaluations_examples_stand_in_for_margins(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "margins.csv").unlink()
    (folder / "per_example.csv").write_text("index,label,correct,margin,0.1\n0,1,1,0.2,resists\n1,1,0,,wrong\n")
    assert figures.distances(read_runs([folder])[0]).tolist() == [0.2, 0.0]


def test_curves_run_over_epochs_with_steps_between(runs):
    x, y = curves.series(runs[1].metrics, "loss")
    assert x == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    assert y[-1] == pytest.approx(1.5)
    assert curves.series(runs[1].metrics, "val_robust")[0] == [1.0, 2.0, 3.0, 4.0]
    best = [trace for trace in curves.validation(runs)["data"] if trace["mode"] == "markers"]
    assert [trace["x"] for trace in best] == [[3], [3]]
    assert list(curves.others(runs)) == ["extra"]


def test_a_number_that_was_logged_once_is_no_curve(runs, tmp_path):
    folder = write_run(tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:2]) + "\n")  # one step with a rate, one epoch
    (short,) = read_runs([folder])
    assert curves.rate([short]) is None
    assert 'data-figure="rate"' not in (text := page([short]))
    assert curves.loss([short])["data"][0]["x"] == [0.5, 1.0]
    assert 'data-figure="loss"' in text
    both = curves.rate([short, *runs])["data"]
    assert [trace["mode"] for trace in both] == ["markers", *["lines"] * len(runs)], "beside others it is shown"
    epoch = json.loads(lines[1]) | {"val_robust": None}
    (folder / "metrics.jsonl").write_text(json.dumps(epoch) + "\n")
    assert "No curves: no number was logged twice" in page(read_runs([folder]))


def test_accuracies_on_training_images_are_faint_and_no_menu_entry(tmp_path):
    folder = write_run(tmp_path / "run")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shares = {"train_clean": 0.9, "train_robust": 0.7}
    lines = [record | shares if record["kind"] == "epoch" and record["epoch"] > 2 else record for record in records]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_runs([folder])[0]
    traces = [trace for trace in curves.validation([run])["data"] if trace["line"]["color"].endswith("/0.5")]
    assert [(trace["x"], trace["y"], trace["line"]["dash"]) for trace in traces] == [
        ([3, 4], [0.9, 0.9], "dash"),
        ([3, 4], [0.7, 0.7], "solid"),
    ]
    assert "training images" in traces[0]["hovertemplate"]
    assert list(curves.others([run])) == ["extra"]
    assert "faint: on training images" in page([run])


@pytest.mark.parametrize(
    ("update", "words", "axis"),
    [
        ("gradient", "without the optimizer, as in the paper", "under \u03b8\u2032 = \u2212\u2207L"),
        ("optimizer", "optimizer's true next step (SGD, rate 0.1)", "under the optimizer's step"),
    ],
)
def test_the_page_says_what_the_speeds_are_speeds_of(tmp_path, update, words, axis):
    folder = write_run(tmp_path / "run")
    content = json.loads((folder / "dynamics.json").read_text())
    run = read_runs([folder])[0]  # an older file, which does not say
    assert motion.step_words(run) == motion.points(run)["under"] == ""
    (folder / "dynamics.json").write_text(json.dumps(content | {"update": update, "step": "SGD, rate 0.1"}))
    run = read_runs([folder])[0]
    assert words in motion.step_words(run)
    assert motion.points(run)["under"] == axis
    assert html.escape(words) in page([run])


def test_the_page_says_in_sentences_what_the_shares_are(tmp_path):
    run = read_runs([write_run(tmp_path / "run")])[0]
    first, second = motion.verdicts(run)
    share = "30.0\u00a0% (11.0\u2009\u2013\u200960.0\u00a0%)"
    assert first == (
        "Share of the examples with a margin below 0.1 that one step brings closer to the boundary: "
        f"AT {share} and DyART {share}."
    )
    assert second == (
        "DyART against AT on the same examples: -10.0 points (exact McNemar test: p = 0.04; sign test over batches, "
        "since the examples of a batch share one update: p = 0.5)."
    )


def test_long_curves_are_thinned_and_keep_their_end():
    records = [{"kind": "epoch", "epoch": n, "step": n, "loss": 1 / n} for n in range(1, 5001)]
    x, _ = curves.series(records, "loss")
    assert len(x) <= figures.MOST_POINTS
    assert x[-1] == 5000


def test_the_scatter_has_locally_optimal_points_by_margin(runs):
    points = motion.points(runs[0])
    assert len(points["margin"]) == EXAMPLES - 1
    assert points["margin"] == sorted(points["margin"])
    assert 3 * (EXAMPLES - 1) not in points["index"]
    assert points["examples"] == 70
    table = runs[0].dynamics
    row = list(table["index"]).index(points["index"][5])
    method = next(entry for entry in points["methods"] if entry["key"] == "dyart")
    assert method["speed"][5] == table["speed_dyart"][row]
    assert np.mean(np.abs(method["speed"]) <= method["scale"]) == pytest.approx(0.98, abs=0.02)
    assert points["classes"] == {0: "T-shirt/top", 1: "Trouser"}


def test_bars_leave_an_interval_without_examples_empty(runs):
    from dyart.report.page.markup import script_json

    first = motion.bars(runs[0])["data"][0]
    assert first["y"][0] == 0.3
    assert np.isnan(first["y"][1])
    assert '"y":[0.3,null]' in script_json(first)
    assert first["error_y"]["array"][0] == pytest.approx(0.3)


def test_the_fan_and_the_correlation_come_from_the_monitor(runs):
    shown = motion.fan(runs[0])
    assert shown["data"][-1]["x"] == [10.0, 20.0, 30.0, 40.0]
    assert shown["data"][-1]["y"][-1] == pytest.approx(0.14)
    assert motion.negative(runs[0])["data"][0]["y"] == [0.3] * 4


def test_the_running_mean_is_centred(runs):
    steps, shares = np.arange(10.0, 160.0, 10.0), np.arange(15) / 20
    watched = replace(runs[0], monitor=runs[0].monitor | {"step": steps, "negative_share": shares})
    raw, smooth = motion.negative(watched)["data"]
    assert raw["y"] == shares.tolist()
    assert smooth["x"] == steps.tolist()
    assert smooth["y"][1:-1] == pytest.approx(shares[1:-1].tolist()), "of a straight line: itself"
    assert smooth["y"][0] == pytest.approx(0.025), "of two at the end"


def test_methods_keep_the_colours_of_the_printed_figures():
    assert slots(["at", "dyart", "natural"]) == ["orange", "blue", "grey"]
    assert slots(["mine:Method", "dyart"]) == ["orange", "blue"], "the first free one that no other wants"
    assert len(set(slots(["at"] * len(COLOURS)))) == len(COLOURS)
    assert len(slots(["at"] * 20)) == 20


def test_intervals_are_written_as_the_radius_is(runs):
    shares = runs[0].shares
    in_255ths = replace(runs[0], shares=replace(shares, radius=Radius("8/255")))
    assert motion.bars(runs[0])["data"][0]["x"] == ["0 \N{EN DASH}<br>0.1", "0.1<br>and more"]
    assert motion.bars(in_255ths)["data"][0]["x"][1] == "25.5/255<br>and more"


def test_no_radius_is_drawn_where_the_runs_have_different_ones(runs):
    other = replace(runs[1], config=runs[1].config | {"eval.radius": "8/255"})
    assert figures.histogram([runs[0], runs[1]])["layout"]["shapes"]
    assert "shapes" not in figures.histogram([runs[0], other])["layout"]


def test_a_single_observation_is_a_dot(runs):
    few = {name: values[:1] for name, values in runs[0].monitor.items()}
    assert motion.negative(replace(runs[0], monitor=few))["data"][0]["mode"] == "lines+markers"


def test_margins_in_another_norm_or_of_the_soft_boundary_are_not_shown(tmp_path):
    folder = write_run(tmp_path / "run")
    (own,) = read_runs([folder])
    wanted = figures.median_margin(own)
    (folder / "margins.csv").rename(folder / "margins-40.csv")
    (folder / "margins-40.json").write_text(json.dumps({"settings": {"norm": "linf", "boundary": "exact"}}))
    for settings in ({"norm": "l2", "boundary": "exact"}, {"norm": "linf", "boundary": "soft"}):
        text = (folder / "margins-40.csv").read_text().splitlines()
        (folder / "margins.csv").write_text("\n".join(text[:2]) + "\n")
        (folder / "margins.json").write_text(json.dumps({"settings": settings}))
        (run,) = read_runs([folder])
        assert figures.median_margin(run) == wanted
        assert not run.damaged
    (folder / "margins-40.csv").unlink()
    (folder / "per_example.csv").unlink(missing_ok=True)
    (run,) = read_runs([folder])
    assert run.margins is None


def test_margins_on_other_data_or_of_another_checkpoint_are_not_shown(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "index.json").write_text(json.dumps({"last": "epoch-0004", "best": "epoch-0003"}))
    checkpoints = "runs/mine/checkpoints"

    def shown(**record) -> bool:
        (folder / "margins.json").write_text(json.dumps({"data": "fashion-mini", "settings": {}} | record))
        return read_runs([folder])[0].margins is not None

    assert shown()
    assert not shown(data="other.npz")
    assert shown(settings={"run_or_checkpoint": f"{checkpoints}/epoch-0003"}), "the best one"
    assert not shown(settings={"run_or_checkpoint": f"{checkpoints}/epoch-0001"})
    (folder / "checkpoints" / "index.json").write_text("{")
    assert shown(settings={"run_or_checkpoint": f"{checkpoints}/epoch-0003"}), "nothing to compare with"


def test_margins_are_labelled_by_the_norms_of_the_runs_that_have_them(runs):
    both = [runs[0], replace(runs[1], config=runs[1].config | {"eval.norm": "l2"})]
    assert figures.histogram(both)["layout"]["xaxis"]["title"]["text"] == "margin (L2 and L∞)"
    without = [replace(runs[0], margins=None), both[1]]
    assert figures.histogram(without)["layout"]["xaxis"]["title"]["text"] == "margin (L2)"
