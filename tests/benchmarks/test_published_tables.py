"""The generated tables about published trainings: right numbers, and plain words where there are none."""

import shutil

import numpy as np
import pytest
from bench_cases import ROOT, evaluation, module, record

TABLES = ("published", "sensitivity", "trial", "target", "dynamics", "class")
plan, run_records, figures = map(module, ("plan", "run_records", "docs_figures"))
settings_figure, embedded_figure, trials_figure = (
    module(f"{name}_figure") for name in ("settings", "embedded", "trials")
)
tables, sensitivity, trials, targets, dynamics, classes = (module(f"{name}_tables") for name in TABLES)
MAKERS = {
    name: maker
    for part in (tables, sensitivity, trials, targets, dynamics, classes)
    for name, maker in part.MAKERS.items()
}
BN = "cifar10-resnet18-bn"
RUNS = {run.name: run for group in plan.load_plan() for run in group.runs}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """No results yet but the paper's."""
    shutil.copytree(ROOT / "results" / "paper", tmp_path / "results" / "paper")
    for part in (tables, dynamics, figures):
        monkeypatch.setattr(part, "RESULTS", tmp_path / "results")
    for part in (tables, figures):
        monkeypatch.setattr(part, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(tables, "MODELS", tmp_path / "models")
    return tmp_path / "results"


def add(results, name, *evaluations, **more):
    run_records.write(results / f"{name}.json", record(RUNS[name], *evaluations, **more))


def row(table, label):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_without_results_every_table_says_so(results, name):
    text = MAKERS[name]()
    assert any(words in text for words in ("not run yet", "0 of", "missing", "none yet")) or name == "runs-earlier"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) <= 1, "rows of different lengths"


def test_seeds_are_averaged_with_their_standard_deviation_and_the_best_is_bold(results):
    last = evaluation([80, 71, 60, 40], checkpoint="last")
    for seed, share in enumerate((46, 48, 50)):
        add(results, f"{BN}-dyart-seed{seed}", evaluation([80, 70, 60, share, 30, 10]), last)
    add(results, f"{BN}-at-seed0", evaluation([82, 68, 55, 45, 25, 10]))
    table = tables.methods(BN)
    dyart = row(table, "DyART")
    assert dyart[1] == "3"
    assert dyart[5] == "**48.00 ± 2.00**"
    assert dyart[8] == "40.00 ± 0.00"
    at = row(table, "AT")
    assert at[1:3] == ["1 of 3", "**82.00**"]
    assert at[5] == "45.00"
    assert row(table, "MMA")[1:3] == ["0 of 1", "not run yet"]
    dyart = row(tables.efforts(BN), "DyART")
    assert dyart[1:4] == ["5 + 45", "5.0", "300"]
    assert dyart[4].count("](../../results/") == 3
    assert row(tables.efforts(BN), "MMA")[1] == "not run yet"


def test_a_target_that_was_missed_is_told(results):
    at = evaluation([80, 70, 60, 45.25])
    one = {key: {"8/255": at[key]["8/255"]} for key in ("robust", "inferred")}
    short = {**at, **one, "robust": {"8/255": 0.4475}}
    add(results, "time-to-45-at-3-steps-seed0", {**at, **one}, start_seconds=5.0)
    add(results, "time-to-45-at-3-steps-seed1", short, start_seconds=5.0)
    lines = [line for line in targets.seconds("time-to-45").splitlines() if line.startswith("| AT 3 steps |")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [line[2:8] for line in cells[:2]] == [
        ["0", "80.00", "45.25", "22", "300.0", "5.0"],
        ["1", "80.00", "44.75 (not reached)", "22", "300.0", "5.0"],
    ]
    assert cells[2][3] == "not run yet"


def test_settings_that_all_trials_share_are_named_once(results):
    add(results, "fast-trials-trades-2-steps-seed0", evaluation([80, 70, 60, 50, 30, 10], tier="margins"))
    assert "there, 20 epochs each" in trials.conditions("fast-trials"), "of those that are there"
    add(results, "fast-trials-at-3-steps-seed0", evaluation([80, 70, 60, 50, 30, 10], tier="margins"))
    words, table = trials.conditions("fast-trials"), trials.trials("fast-trials")
    assert "there, 20 to 26 epochs each" in words
    assert "`train.batch_size 512`" in words
    assert "batch_size" not in table
    assert "`method.steps 3`" in table


def test_the_paper_s_methods_are_ranked_without_ours(results):
    add(results, f"{BN}-dyart-seed0", evaluation([80, 70, 60, 50, 30, 12]))
    add(results, f"{BN}-at-seed0", evaluation([80, 71, 60, 45, 25, 14]))
    add(results, f"{BN}-dyart-awp-seed0", evaluation([99, 98, 97, 96, 95, 94]))
    words = tables.winners(BN)
    assert "AT at 2/255" in words
    assert "DyART at 8/255" in words
    assert "AWP at" not in words
    assert "MART" in words.partition("without")[2]
    # DyART: (75 + 65) 2 + (55 + 40 + 21) 4 over 16.
    assert "in per cent: DyART 46.5, AT 44." in words


def test_differences_are_paired_by_image(results):
    """The same accuracy on other images has a wide interval; one image more on the same ones a narrow one."""
    add(results, f"{BN}-dyart-seed0", evaluation([80, 70, 60, 50, 30, 10]))
    add(results, f"{BN}-at-seed0", evaluation([80, 70, 60, 49.75, 30, 10]))
    add(results, f"{BN}-mart-seed0", evaluation([80, 70, 60, 50, 30, 10], shift=200))
    table = tables.differences(BN)
    assert row(table, "DyART - AT")[5].startswith("+0.2 [")
    first, second = (tables.difference(*(tables.records_of([RUNS[f"{BN}-{name}-seed0"]]) for name in pair), "8/255")
                     for pair in (("at", "dyart"), ("mart", "dyart")))  # fmt: skip
    assert first.mean == pytest.approx(1 / 400)
    assert second.mean == 0
    assert second.high - second.low > 10 * (first.high - first.low)


def test_autoattack_stands_beside_the_quicker_tier(results):
    quick = evaluation([80, 70, 60, 50, 30, 10])
    add(results, f"{BN}-at-seed1", quick, evaluation([80, 70, 60, 49.5, 30, 10], "autoattack"))
    assert row(tables.tiers(BN), "AT, seed 1")[4] == "49.50 (-0.50)"
    assert row(tables.tiers(BN), "DyART, seed 1")[1] == "not run yet"


def test_the_paper_s_numbers_are_those_of_its_tables(results):
    assert tables.beside_paper(BN).strip() == "Our runs: not run yet."
    add(results, f"{BN}-mart-seed0", evaluation([80, 70, 60, 50, 30, 10]))
    table = tables.beside_paper(BN)
    lines = [line for line in table.splitlines() if "the paper, WRN-28-10" in line]
    assert "| 85.55 ± 0.24 | 79.21 ± 0.14 | 71.73 ± 0.18 | 54.69 ± 0.14 | 35.74 ± 0.25 | 20.79 ± 0.18 |" in lines[0]
    add(results, "cifar10-resnet18-gn-at-seed0", evaluation([80, 70, 60, 50, 30, 10]))
    group = tables.beside_paper("cifar10-resnet18-gn")
    assert "| 85.64 ± 0.10 |" in group


def test_a_published_model_stands_with_its_command(results):
    name = f"{BN}-dyart-seed0"
    add(results, name, evaluation([80, 70, 60, 50, 30, 10]))
    (results.parent / "models").mkdir()
    (results.parent / "models" / f"{name}.safetensors").write_bytes(bytes(1_500_000))
    cells = row(tables.models(), f"`models/{name}.safetensors`")
    assert cells[1:4] == ["1.5", "80.00", "50.00"]
    assert cells[4] == f"`dyart evaluate models/{name}.safetensors --attack apgd`"


def test_failures_are_listed_and_not_missing(results):
    failed = {"name": f"{BN}-mma-seed0", "failed": {"stage": "train", "error": "step 7 is not finite\nmore"}}
    run_records.write(results / f"{BN}-mma-seed0.json", failed)
    words = tables.conditions(BN)
    assert f"Failed: {BN}-mma-seed0 (train: step 7 is not finite)." in words
    assert "MMA" not in words.partition("Missing")[2]
    assert row(tables.overview(), "CIFAR-10, ResNet-18 with BatchNorm")[1:6] == ["22", "0", "0", "1", "21"]


def test_an_axis_has_the_base_and_the_hold_out(results):
    add(results, "sensitivity-base-seed0", evaluation([80, 70, 60, 50, 30, 10]))
    add(results, "sensitivity-clip-null-seed0", evaluation([79, 70, 60, 50, 30, 10]))
    table = sensitivity.axis("optim.clip")
    assert row(table, "1.5 (base)")[1] == "80.00"
    assert row(table, "1.5 (base)")[7] == "48.1"
    assert row(table, "off")[1] == "79.00"
    assert row(table, "0.1")[1] == "not run yet"


def test_directions_are_judged_by_the_interval(results):
    add(results, "sensitivity-alpha-0-seed0", evaluation([70, 60, 60, 50, 20, 10]))
    add(results, "sensitivity-alpha-8-seed0", evaluation([80, 50, 60, 50, 30, 10]))
    clean, two, four, eight, *_ = row(sensitivity.directions(), "`method.alpha` 0 → 8")[1:]
    assert clean.endswith("as the paper")
    assert two.endswith("against the paper")
    assert four.endswith("open")
    assert eight.endswith("]")  # the paper's text says nothing general of it
    assert row(sensitivity.directions(), "`method.r0` 20/255 → 12/255")[1] == "not run yet"


def test_the_dots_of_the_paper_have_the_shares_that_are_known_of_them(results):
    shares = [100 * dynamics.negative(*dynamics.plotted(model), 8 / 255) for model in dynamics.MODELS]
    assert shares == pytest.approx([25.3, 29.4], abs=0.05)
    table = dynamics.one_update()
    assert "28.8 (dots: 25.3)" in table
    assert "| 80.1 | 45.5 | 22.2 |" in dynamics.whole_training()


def test_a_figure_is_drawn_from_its_data_and_checked_against_them(results, tmp_path):
    assert figures.main(check=True) == 0  # nothing to draw
    add(results, f"{BN}-at-seed0", evaluation([80, 70, 60, 50, 30, 10]))
    assert figures.main(check=True) == 0
    add(results, f"{BN}-dyart-seed0", evaluation([80, 71, 61, 52, 30, 10]))
    assert figures.main(check=True) == 1
    assert figures.main(check=False) == 0
    drawn = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert drawn == ["methods-against-at.png", "methods-trade-off.png"]
    assert figures.main(check=True) == 0
    assert "figures/methods-against-at.png" in tables.MAKERS["figure-methods"]()
    assert "figures/methods-trade-off.png" in tables.MAKERS["figure-trade-off"]()
    add(results, f"{BN}-dyart-seed0", evaluation([80, 71, 61, 53, 30, 10]))
    assert figures.main(check=True) == 1


def test_the_figure_of_the_settings_needs_the_base_and_one_run_more(results, tmp_path):
    add(results, "sensitivity-alpha-8-seed0", evaluation([80, 50, 60, 50, 30, 10]))
    assert settings_figure.files() == [], "nothing to compare with"
    add(results, "sensitivity-base-seed0", evaluation([78, 52, 60, 50, 31, 11]))
    assert [file.stem for file in settings_figure.files()] == ["sensitivity-base-seed0", "sensitivity-alpha-8-seed0"]
    (panel,) = settings_figure.against_base().axes
    assert panel.get_title() == "method.alpha (base: 3)"
    (line,) = [line for line in panel.get_lines() if len(line.get_xdata()) == 6]
    assert list(line.get_ydata()) == pytest.approx([2, -2, 0, 0, -1, -1])
    add(results, "sensitivity-clip-null-seed0", evaluation([70, 52, 60, 50, 31, 11]))
    assert [axis.get_title() for axis in settings_figure.against_base().axes][1:] == ["optim.clip (base: 1.5)"]
    assert figures.main(check=False) == 0
    assert (tmp_path / "figures" / "settings-against-base.png").is_file()
    assert "figures/settings-against-base.png" in sensitivity.MAKERS["figure-settings"]()


def test_the_figure_of_all_methods_has_differences_up_to_the_radius_and_means_over_seeds_beyond(results):
    radii, group = ("0.025", "0.05", "0.1", "0.15", "0.2"), embedded_figure.GROUP
    for seed, share in enumerate((60, 62)):
        add(results, f"{group}-dyart-seed{seed}", evaluation([80, 75, 70, share, 50, 30], radii=radii))
    add(results, f"{group}-at-awp-seed0", evaluation([78, 74, 70, 64, 20, 2], radii=radii))
    assert embedded_figure.files() == [], "nothing to compare with"
    add(results, f"{group}-at-seed0", evaluation([77, 74, 71, 65, 20, 2], radii=radii))
    names = [f"{group}-{name}" for name in ("dyart-seed0", "dyart-seed1", "at-seed0", "at-awp-seed0")]
    assert [file.stem for file in embedded_figure.files()] == names
    near, far = embedded_figure.by_radius().axes
    lines = {line.get_label(): line for line in far.get_lines()}
    assert list(lines["DyART"].get_ydata()) == pytest.approx([61, 50, 30])
    assert list(lines["DyART"].get_xdata()) == pytest.approx([0.1, 0.15, 0.2])
    assert (lines["DyART"].get_linestyle(), lines["AT-AWP"].get_linestyle()) == ("-", "--")
    dyart, awp = (list(line.get_ydata()) for line in near.get_lines() if len(line.get_xdata()) == 4)
    assert dyart == pytest.approx([3, 1, -1, -4])
    assert awp == pytest.approx([1, 0, -1, -1])


def test_the_figure_of_the_trials_has_the_best_at_the_radius_on_top_and_far_ones_as_numbers(results):
    add(results, "trials-lam-900-seed0", evaluation([78, 69, 60, 50, 32, 12], tier="margins"))
    assert trials_figure.files() == [], "nothing to compare with"
    add(results, "trials-dyart-seed0", evaluation([80, 70, 60, 48, 30, 10], tier="margins"))
    add(results, "trials-cutmix-seed0", evaluation([60, 50, 45, 40, 20, 10], tier="margins"))
    names = {"trials-dyart-seed0", "trials-lam-900-seed0", "trials-cutmix-seed0"}
    assert {file.stem for file in trials_figure.files()} == names
    clean, robust = trials_figure.against_first().axes
    assert [label.get_text() for label in clean.get_yticklabels()] == ["cutmix", "lam 900"]
    assert [text.get_text() for text in clean.texts] == ["← -20.0"]
    middles = [line.get_xdata()[0] for line in robust.get_lines() if len(line.get_xdata()) == 1]
    assert middles == pytest.approx([-8, 2])


def test_every_best_epoch_is_in_the_figure_of_clean_against_robust_accuracy(results):
    for label, share in (("dyart", 50), ("at", 49), ("trades", 51), ("mma", 20)):
        add(results, f"{BN}-{label}-seed0", evaluation([80, 70, 60, share, 15, 10]))
    (panel,) = figures.trade_off().axes
    assert panel.get_ylim()[0] < 20


def test_the_figures_of_the_pages_are_of_the_results_that_are_there():
    assert figures.main(check=True) == 0


def test_trials_are_compared_with_the_first_image_by_image(results):
    add(results, "trials-dyart-seed0", evaluation([80, 70, 60, 48, 30, 10], tier="margins"))
    add(results, "trials-lam-900-seed0", evaluation([78, 69, 60, 50, 32, 12], tier="margins"))
    add(results, "trials-cutmix-seed0", failed={"stage": "train", "error": "why"})
    table = trials.trials("trials")
    base, more = (row(table, label) for label in ("DyART", "lam 900"))
    assert base[1:8] == ["`cifar10-resnet18-dyart`", "80.00", "70.00", "60.00", "48.00", "30.00", "10.00"]
    assert base[8] == ""
    assert more[1] == "`method.lam 900`, `optim.weight_decay 0.0005`"
    assert more[8].startswith("+2.0")
    assert "| middle first |" not in table
    words, runs = trials.conditions("trials"), tables.groups()["trials"].runs
    assert f"2 of {len(runs)} trials are there" in words
    assert "Failed: trials-cutmix-seed0" in words
    waiting = words.split("Not run yet: ")[1].strip(" .\n").split("; ")
    assert "middle first" in waiting
    assert not {"DyART", "lam 900", "cutmix"} & set(waiting)


def test_what_a_trial_learnt_stands_beside_what_carries_over(results):
    logged = {"val_clean": [None, 0.79, 0.8], "val_robust": [None, 0.46, 0.45], "train_clean": [None, 0.85, 0.9]}
    logged["train_robust"] = [None, 0.55, 0.6]
    seen = evaluation([80, 70, 60, 48, 30, 10], tier="margins")
    add(results, "trials-dyart-seed0", seen, best_epoch=2, validation=logged)
    add(results, "trials-lam-900-seed0", seen, best_epoch=2, validation={**logged, "train_robust": [None] * 3})
    table = trials.carried_over("trials")
    assert row(table, "DyART")[1:] == ["85.0", "55.0", "79.0", "46.0", "-6.0", "-9.0"]
    assert "lam 900" not in table  # not measured there


def test_a_group_has_columns_of_its_own_radii(results):
    radii = ("0.125", "0.25", "0.5", "0.75", "1")
    for name, accuracies in (("dyart", [85, 80, 75, 65, 50, 40]), ("at", [86, 80, 74, 60, 48, 30])):
        last = evaluation([84, 58], checkpoint="last", radii=("0.5",))
        add(results, f"cifar10-resnet18-l2-{name}-seed0", evaluation(accuracies, radii=radii), last)
    table = tables.methods("cifar10-resnet18-l2")
    assert "| 0.125 | 0.25 | 0.5 | 0.75 | 1 | 0.5, last |" in table
    assert row(table, "DyART")[2:9] == [
        "85.00",
        "**80.00**",
        "**75.00**",
        "**65.00**",
        "**50.00**",
        "**40.00**",
        "58.00",
    ]
    differences = row(tables.differences("cifar10-resnet18-l2"), "DyART - AT")
    assert differences[5].startswith("+5.0"), "at 0.5"
    whole = evaluation([85, 79, 75, 64, 50, 40], tier="autoattack", radii=radii)
    path = results / "cifar10-resnet18-l2-dyart-seed0.json"
    run_records.write(path, run_records.with_evaluation(run_records.read(path), whole))
    assert row(tables.tiers("cifar10-resnet18-l2"), "DyART, seed 0")[2:5] == [
        "79.00 (-1.00)",
        "75.00 (+0.00)",
        "64.00 (-1.00)",
    ]


def test_classes_add_up_to_the_records():
    """Every class has as many test images: the mean over classes is the accuracy of the record."""
    stored = classes.stored()
    assert len(stored["classes"]) == 10
    for name, columns in stored["runs"].items():
        record = tables.record_named(name)
        slack = 0.6 if record.get("judge") else 0.01  # in points; left-out training images are not as even
        for column, shares in columns.items():
            whole = record["clean"] if column == "clean" else record["robust"][column]
            assert 100 * np.mean(shares) == pytest.approx(100 * whole, abs=slack), (name, column)
    planned = {run.name for run in RUNS.values() if run.group in ("cifar10-resnet18-bn", "trials")}
    there = {name for name in planned if (tables.RESULTS / f"{name}.json").is_file()}
    assert there <= stored["runs"].keys(), "python benchmarks/classes.py"
