"""The published trainings: what is run, under which names, and about how long it takes."""

from dataclasses import asdict
from fractions import Fraction

import pytest
from bench_cases import evaluation, module, record

from dyart.recipes import resolve

plan, train_and_attack = module("plan"), module("train_and_attack")
module("ideas")  # which some runs name
GROUPS = plan.load_plan()
RUNS = [run for group in GROUPS for run in group.runs]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_resolves_to_what_it_says(run):
    """A burn-in is part of the epochs, so that all methods of a table have equally many."""
    recipe, *words = plan.words(run)
    config = resolve(recipe, words)
    assert config.train.epochs + config.train.burn_in == run.epochs
    assert config.seed == run.seed
    assert [float(Fraction(radius)) for radius in run.radii] == [float(radius) for radius in config.eval.radii]
    assert float(Fraction(run.radius)) == float(config.eval.radius)
    assert run.radius in run.radii
    flat = {
        "method": config.method,
        "model": vars(config.model),
        "data": vars(config.data),
        "optim": vars(config.optim),
        "train": vars(config.train),
        "eval": vars(config.eval),
    }
    for key, value in run.settings.items():
        section, _, name = key.partition(".")
        assert flat[section][name] == (pytest.approx(eval(value)) if "/" in str(value) else value), key


def test_the_plan_has_what_was_promised():
    rows = {group.name: {runs[0].label: runs for runs in group.rows.values()} for group in GROUPS}
    batch = rows["cifar10-resnet18-bn"]
    paper = {"natural", "AT", "TRADES", "MART", "MMA", "GAIRAT", "MAIL-TRADES", "AT-AWP", "TRADES-AWP", "FAT-TRADES"}
    beside = {"AT, weight decay 0.0005", "TRADES, weight decay 0.0005", "DyART, outside 0.25, lam 400"}
    assert set(batch) == paper | {"DyART", "DyART-AWP"} | beside
    several = {label: len(runs) for label, runs in batch.items() if len(runs) > 1}
    assert several == {"AT": 3, "TRADES": 3, "DyART": 3, "DyART-AWP": 2}
    whole = {run.label for runs in batch.values() for run in runs if "autoattack" in run.attacks}
    assert whole == {"AT", "TRADES", "DyART", "DyART-AWP"}
    assert sum("autoattack" in run.attacks for runs in batch.values() for run in runs) == 4
    assert {run.label for runs in batch.values() for run in runs if not run.last} == {"AT, weight decay 0.0005"}
    assert all(run.epochs >= 50 for runs in batch.values() for run in runs)
    assert set(rows["cifar10-resnet18-gn"]) == {"AT", "TRADES", "DyART"}
    tables = [run for run in RUNS if not run.judge and not run.target]
    assert all(run.epochs >= 30 for run in tables if run.recipe.startswith("cifar10"))
    assert {run.images for run in RUNS if run.group.startswith("cifar10-resnet18")} == {10_000}
    assert {run.images for run in RUNS if run.group == "sensitivity"} == {5_000}
    assert all(plan.missing(run, None) == ["train", "apgd"] for run in RUNS if run.group == "sensitivity")
    seeds = [run.seed for run in RUNS if run.group == "cifar10-resnet18-bn"]
    assert seeds == sorted(seeds), "a table is whole before it is precise"


def test_radii_of_other_norms_and_images_are_the_group_s_own():
    others = {"cifar10-resnet18-l2", "fashion-mini-l2", "fashion-mini-ideas", "fashion-mini-methods"}
    assert {run.group for run in RUNS if run.radius != "8/255"} == others


def test_trials_look_at_no_test_image():
    trials = [run for run in RUNS if run.judge]
    assert {run.group for run in trials} == {"trials", "fast-trials"}
    assert {run.judge for run in trials} == {run.images for run in trials} == {4096}
    assert all(plan.missing(run, None) == ["train", "margins"] for run in trials)
    assert len({run.label for run in trials} - {"DyART", "AT", "TRADES"}) >= 10
    assert trials[0].label == "DyART", "what the others are compared with"
    assert all(trials[0].settings.items() <= run.settings.items() for run in trials if run.group == "trials")


def test_a_target_is_measured_at_its_radius_alone():
    runs = [run for run in RUNS if run.target]
    assert {run.images for run in runs} == {10_000}
    assert len([run for run in runs if not run.settings]) >= 3, "seeds of the recipe as it is"
    for run in runs:
        assert plan.missing(run, None) == ["train", "apgd"]
        assert plan.missing(run, record(run, evaluation([80, 46]))) == []
    five = record(runs[0], {**evaluation([80, 70, 60, 50, 30, 10]), "wall_seconds": 1e6})
    assert plan.seconds(runs[1], ["apgd"], [five]) < 200, "an attack at five radii says nothing of one"


def test_an_axis_has_the_base_run_where_its_value_is_the_base_s():
    group = next(group for group in GROUPS if group.axes)
    alpha = group.of_axis("method.alpha")
    assert [runs[0].label for runs in alpha.values()] == ["alpha 0", "base", "alpha 8"]
    assert [runs[0].settings["method.alpha"] for runs in alpha.values()] == [0, 3, 8]
    assert all(len(runs) == 1 for axis in group.axes for runs in group.of_axis(axis).values())
    clip = group.of_axis("optim.clip")
    assert plan.written(clip[None][0].settings["optim.clip"]) == "null"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["rows: [{label: A b, recipe: r}, {label: a-B, recipe: s}]"], "g-a-b-seed0"),
        (["recipe: r", "base: {x.a: 1}", "axes: {x.a: [2, 3]}"], "base's value"),
        (["recipe: r", "base: {x.b: 1}", "axes: {x.a: [1, 3]}"], "base's value"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(more, words, tmp_path):
    lines = ["groups:", "  g:", *(f"    {line}" for line in ["title: T", "epochs: 4", *more])]
    (tmp_path / "plan.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=words):
        plan.load_plan(tmp_path / "plan.yaml")


def test_what_is_missing_of_a_run():
    run = next(run for run in RUNS if "autoattack" in run.attacks)
    assert plan.missing(run, None) == ["train", "apgd", "last", "autoattack"]
    assert plan.missing(run, record(run)) == ["apgd", "last", "autoattack"]
    best, last = evaluation([80, 70, 60, 50, 30, 10]), evaluation([80, 70], checkpoint="last")
    assert plan.missing(run, record(run, best)) == ["last", "autoattack"]
    assert plan.missing(run, record(run, best, last, best | {"tier": "autoattack"})) == []
    assert plan.missing(run, {"name": run.name, "failed": {"stage": "train", "error": "x"}}) == []
    assert plan.missing(run, {"name": run.name})[0] == "train"


def test_seconds_come_from_runs_of_the_same_kind_where_there_are_any():
    runs = {run.name: run for run in RUNS}
    at, dyart = (runs[f"cifar10-resnet18-bn-{name}-seed1"] for name in ("at", "dyart"))
    assert plan.seconds(at, ["train"]) == plan.START + 50 * (plan.EPOCH + plan.VALIDATION)
    known = [record(at, evaluation([80, 70, 60]), seconds_per_epoch=3.0, validation_seconds_per_epoch=0.25)]
    took = 10_000 * 120 / 400  # by the image
    assert plan.seconds(at, ["train", "apgd"], known) == pytest.approx(plan.START + 50 * 3.25 + took)
    larger = {**known[0]["settings"], "train": {"batch_size": 512, "precision": "bf16"}}
    for other in ({"together": 4}, {"settings": larger}):
        assert plan.seconds(at, ["train"], [known[0] | other]) == plan.seconds(at, ["train"]), "not of its kind"
    for other in ({"gpu": "cpu"}, {"recipe": "fashion-mini-cnn-at"}):
        assert plan.seconds(at, ["train"], [known[0] | other]) == plan.seconds(at, ["train"]), "of another machine"
    half = {**known[0]["settings"], "data": {"name": "cifar10", "limit": 25_000}}
    assert plan.seconds(at, ["train"], [known[0] | {"settings": half}]) == pytest.approx(plan.START + 50 * 6.25)
    wide = runs["cifar10-wrn28-10-bn-at-seed0"]
    assert plan.seconds(wide, ["apgd"], known) == pytest.approx(plan.START + 0.2 * 6.8 * plan.ATTACKS["apgd"])
    assert plan.seconds(dyart, ["train"], known) == plan.seconds(dyart, ["train"])
    derived = record(at, evaluation([80, 70]), evaluation([80, 70], checkpoint="last") | {"same_as": "best"})
    assert plan.seconds(at, ["last"], [derived]) == plan.START + plan.ATTACKS["last"]
    long, base = runs["sensitivity-steps-20-seed0"], runs["sensitivity-base-seed0"]
    assert plan.seconds(long, ["train"]) > plan.seconds(base, ["train"])
    assert plan.seconds(runs["cifar10-resnet18-gn-at-seed0"], ["train"]) > plan.seconds(at, ["train"])


def flat(tree, head=""):
    pairs = [(f"{head}{key}", value) for key, value in tree.items()]
    return {
        name: entry
        for key, value in pairs
        for name, entry in (flat(value, f"{key}.") if isinstance(value, dict) else {key: value}).items()
    }


@pytest.mark.parametrize(
    "run", [run for run in RUNS if "settings" in (plan.record_of(run) or {})], ids=lambda r: r.name
)
def test_a_published_record_was_made_with_the_settings_of_the_plan(run):
    """A recipe that changes leaves its old records behind: they are given their own settings, or another name."""
    recipe, *given = plan.words(run)
    planned, found = flat(train_and_attack.plain(asdict(resolve(recipe, given)))), flat(plan.record_of(run)["settings"])
    # These change what is measured and kept on the way, not the training.
    words = {"note", "recipe", "eval.train_examples", "train.checkpoint_every"}
    words |= {"data.limit"} if run.judge else set()  # without the images that are left out
    if planned["method.name"].startswith("ideas:"):  # ran as options of the method itself, all others at its defaults
        found |= {"method.name": planned["method.name"]}
        words |= found.keys() - planned.keys()
    words |= {key for key in found.keys() - planned.keys() if found[key] is None}  # an option that was given up
    assert {key: value for key, value in found.items() if key not in words and planned[key] != value} == {}
