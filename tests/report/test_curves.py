"""Curves of whole trainings."""

import json

import numpy as np
import pytest

from dyart.report.curves import LOOKS, read_published, read_run, read_table, training_curves, write_curves
from dyart.report.smoothing import smoothed

EPOCHS = [
    {"kind": "step", "step": 5, "loss": 1.0},
    {"kind": "epoch", "epoch": 1, "step": 10, "accuracy": 0.5, "val_clean": 0.6, "val_robust": 0.3},
    {"kind": "epoch", "epoch": 2, "step": 20, "accuracy": 0.7},
    {"kind": "epoch", "epoch": 3, "step": 30, "accuracy": 0.8, "val_clean": 0.7, "val_robust": 0.4},
]
WATCHED = [
    {"step": step, "negative_share": share, "margin_quantiles": {"0.5": 0.1}}
    for step, share in ((1, 0.4), (11, None), (21, 0.2))
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in EPOCHS))
    (tmp_path / "monitor.jsonl").write_text("".join(json.dumps(record) + "\n" for record in WATCHED))
    return tmp_path


def test_a_runs_curves_leave_out_what_was_not_measured(run):
    curves = read_run(run)
    assert set(curves) == {"clean", "robust", "batch_clean", "negative_share"}
    assert [values.tolist() for values in curves["clean"]] == [[10, 30], [0.6, 0.7]]
    assert [values.tolist() for values in curves["batch_clean"]] == [[10, 20, 30], [0.5, 0.7, 0.8]]
    assert [values.tolist() for values in curves["negative_share"]] == [[1, 21], [0.4, 0.2]]


def test_accuracies_on_training_images_take_the_place_of_those_on_batches(run):
    records = [
        record | {"train_clean": 0.9, "train_robust": 0.5} if "val_clean" in record else record for record in EPOCHS
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    curves = read_run(run)
    assert set(curves) == {"clean", "robust", "train_clean", "train_robust", "negative_share"}
    assert [values.tolist() for values in curves["train_robust"]] == [[10, 30], [0.5, 0.5]]
    figure = training_curves({"": {"DyART": curves}})
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["clean, held out", "clean, training", "robust, held out", "robust, training"]


def test_the_end_of_a_burn_in_is_marked(run):
    phases = ["burn-in", "burn-in", "burn-in", "train"]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(r | {"phase": phase}) + "\n" for r, phase in zip(EPOCHS, phases, strict=True))
    )
    curves = read_run(run)
    assert curves["burn_in"][0].tolist() == [20]
    axis = training_curves({"": {"DyART": curves}}).axes[0]
    assert "burn-in" in [text.get_text() for text in axis.texts]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r | {"phase": "burn-in"}) + "\n" for r in EPOCHS))
    assert "burn_in" not in read_run(run)  # nothing came after it


def test_a_folder_without_epochs_is_no_run(tmp_path):
    with pytest.raises(ValueError, match=r"no epochs in metrics\.jsonl"):
        read_run(tmp_path)


def test_published_curves_come_from_a_table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("iteration,AT,DyART\n100,0.3,0.2\n150,0.25,0.1\n")
    curves = read_table(path, {"negative_share": "DyART"})
    assert [values.tolist() for values in curves["negative_share"]] == [[100, 150], [0.2, 0.1]]
    with pytest.raises(ValueError, match=r"\['TRADES'\] is missing"):
        read_table(path, {"negative_share": "TRADES"})


def test_smoothing_keeps_the_mean_of_neighbours_and_the_ends():
    assert smoothed(np.array([0.0, 3.0, 0.0, 3.0, 0.0]), 3) == pytest.approx([1.5, 1.0, 2.0, 1.0, 1.5])
    assert smoothed(np.array([1.0, 2.0]), 1).tolist() == [1.0, 2.0]
    assert smoothed(np.array([1.0, 3.0]), 99) == pytest.approx([2.0, 2.0])
    assert len(smoothed(np.zeros(0), 3)) == 0
    with pytest.raises(ValueError, match="at least 1"):
        smoothed(np.ones(3), 0)


def test_a_panel_per_training_and_one_for_the_shares(run, tmp_path):
    curves = read_run(run)
    figure = training_curves({"ours": {"AT": curves, "DyART": curves}, "theirs": {"AT": curves, "DyART": curves}}, 3)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles[:3] == ["AT (ours)", "DyART (ours)", "negative speed (ours)"]
    assert len(figure.axes) == 6
    assert len([line for line in figure.axes[3].lines if len(line.get_xdata())]) == 3
    assert len(figure.axes[2].lines) == 4  # raw and smooth of both
    assert figure.axes[0].get_ylabel() == "accuracy"
    assert figure.axes[5].get_xlabel() == "step"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["clean, held out", "robust, held out", "clean, training batches"]  # what is drawn, and no more


def test_a_run_that_nobody_watched_has_no_panel_of_shares(run):
    (run / "monitor.jsonl").unlink()
    figure = training_curves({"": {"AT": read_run(run)}})
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["AT"]


@pytest.mark.parametrize("trainings", [1, 2, 3])
@pytest.mark.parametrize("names", [["clean", "robust", "batch_robust"], list(LOOKS)])
def test_the_legend_fits_into_the_figure(trainings, names):
    steps = np.arange(1.0, 5)
    curves = dict.fromkeys(names, (steps, steps / 10))
    figure = training_curves({"": {f"AT {number}": curves for number in range(trainings)}})
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_files_are_written(run, tmp_path):
    files = write_curves({"": {"AT": read_run(run)}}, tmp_path / "new" / "curves")
    assert all(path.stat().st_size > 2000 for path in files)


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="at least one training"):
        training_curves({})


def test_published_tables_are_found_by_name_and_by_column(tmp_path):
    (tmp_path / "AT_acc.csv").write_text("iteration,test_robust,test_clean\n100,0.3,0.5\n")
    (tmp_path / "shares.csv").write_text("iteration,AT,DyART\n100,0.4,0.2\n")
    curves = read_published([tmp_path / "AT_acc.csv", tmp_path / "shares.csv"], ["AT", "DyART"])
    assert set(curves["AT"]) == {"clean", "robust", "negative_share"}
    assert curves["AT"]["clean"][1].tolist() == [0.5]
    assert set(curves["DyART"]) == {"negative_share"}
    assert training_curves({"ours": curves, "theirs": curves}).axes[0].lines[0].get_marker() == "o"  # one point is seen
    with pytest.raises(ValueError, match="nothing about TRADES"):
        read_published([tmp_path / "shares.csv"], ["TRADES"])
    (tmp_path / "words.csv").write_text("iteration,AT\n100,many\n")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n")
    for name in ("words.csv", "picture.csv"):
        with pytest.raises(ValueError, match=f"{name} is no table"):
            read_published([tmp_path / name], ["AT"])


def test_a_point_in_a_files_name_is_no_suffix(run, tmp_path):
    files = write_curves({"": {"AT": read_run(run)}}, tmp_path / "radius-0.1")
    assert [path.name for path in files] == ["radius-0.1.pdf", "radius-0.1.svg", "radius-0.1.png"]
    assert write_curves({"": {"AT": read_run(run)}}, tmp_path / "a.png")[0].name == "a.pdf"


def test_many_trainings_take_several_rows(tmp_path):
    steps = np.arange(1.0, 5)
    curves = {"clean": (steps, steps / 10), "robust": (steps, steps / 20), "negative_share": (steps, steps / 30)}
    names = [f"fashion-mini-cnn-trades-with-a-long-name-seed{seed}" for seed in range(4)]
    figure = training_curves({"": dict.fromkeys(names, curves)})
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert len(shown) == 5
    figure.canvas.draw()  # a layout that does not fit would warn, an error here
    widths = [axis.get_window_extent().width for axis in shown]
    assert min(widths) > 60
    assert max(widths) < 1.05 * min(widths)
