"""Every row of the paper's tables has its recipe, with the paper's values."""

from pathlib import Path

import pytest
from recipe_cases import (
    FOLLOWED,
    METHODS,
    OURS,
    PAPERS,
    REST,
    STATED,
    dyart_values,
    reproduces,
    resolved,
    rows,
    setting_of,
)

from dyart.data.auxiliary import open_auxiliary
from dyart.data.registry import REGISTRY
from dyart.methods.base import registered
from dyart.models import NAMES
from dyart.recipes import resolve

ROWS = rows()
RADII = ["2/255", "4/255", "8/255", "12/255", "16/255"]


def label(row) -> str:
    return "-".join(
        str(part) for part in (row.table, row.data, row.normalization, row.method, row.alpha, row.r0, row.lam)
    )


def recipe_of(row):
    found = [name for name, config in resolved().items() if reproduces(config, row)]
    assert len(found) == 1, f"{row} is reproduced by {found}"
    return resolved()[found[0]]


def test_the_tables_are_whole():
    """The methods that the paper prints, table by table, and as many rows of DyART."""
    three, six = ["at", "trades", "mart"], ["at", "trades", "mart", "mma", "gairat", "mail-trades"]
    printed = {
        1: ([*six, "awp"], 1),
        2: (three, 1),
        3: ([*six, "fat-trades"], 1),
        4: (three, 1),
        5: ([*six, "fat-trades"], 5),
        6: (three, 8),
        7: ([*six[:-1], "awp"], 12),
        8: (three, 12),
        9: ([], 1),
    }
    counted = {
        table: (
            [row.method for row in ROWS if row.table == table and row.method != "dyart"],
            sum(row.table == table and row.method == "dyart" for row in ROWS),
        )
        for table in printed
    }
    assert counted == printed
    assert len(ROWS) == 81


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_a_row_has_exactly_one_recipe_with_its_settings(row):
    config, setting = recipe_of(row), setting_of(row)
    assert config.train.epochs == setting.epochs
    assert config.train.batch_size == setting.batch_size
    assert config.optim.lr == setting.lr
    assert config.optim.schedule == setting.schedule
    assert config.optim.clip == setting.clip
    assert (config.optim.weight_decay, config.optim.momentum, config.optim.average) == (0.0005, 0.9, 0.995)
    assert (config.data.crop, config.data.flip) == (4, True)
    assert (config.eval.steps, str(config.eval.radius), config.eval.norm) == (20, "8/255", "linf")
    assert [str(radius) for radius in config.eval.radii] == RADII
    assert config.train.precision == "bf16"


@pytest.mark.parametrize("row", [row for row in ROWS if row.method == "dyart"], ids=label)
def test_dyart_searches_and_burns_in_as_the_paper_says(row):
    config = recipe_of(row)
    assert (config.method["beta"], config.method["steps"], config.method["boundary"]) == (5, 20, "soft")
    assert (config.train.burn_in, config.optim.burn_in_lr, config.optim.burn_in_clip) == (10, 0.1, None)


@pytest.mark.parametrize("row", [row for row in ROWS if row.method != "dyart"], ids=label)
def test_a_baseline_has_the_values_that_the_paper_states_and_follows(row):
    expected = STATED[row.method] | FOLLOWED[row.method]
    if row.data == "tiny-imagenet":  # of which the text states no step: as in the implementation that it follows
        expected |= {"step_size": "2/255"}
    method = recipe_of(row).method
    assert {key: as_written(method[key]) for key in expected} == expected
    assert method.get("norm", "linf") == "linf"


def as_written(value) -> str:
    """A value of a recipe in the words of a text: 8/255, 6, 0.007."""
    text = str(value)
    return text.removesuffix(".0") if "/" not in text else text


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_the_note_says_which_row_and_what_was_published(row):
    note = recipe_of(row).note
    assert f"Table {row.table}," in note
    assert f"published {row.clean} clean, {row.aa} AA at 8/255" in note
    whole = row.method in ("at", "trades", "dyart")
    assert note.endswith(f"; {PAPERS}." if whole else f"; {PAPERS}{REST}.")
    assert ("BN" if row.normalization == "batch" else "GN") in note


def test_the_step_schedule_begins_at_its_peak():
    """The text: it begins at 0.1 and is decayed at the 50th and 75th epoch."""
    steps = [config for config in resolved().values() if config.optim.schedule == "step"]
    assert len(steps) == 5
    assert {config.optim.warmup for config in steps} == {0.0}


def test_a_recipe_with_the_papers_values_has_a_row():
    claimed = [config for config in resolved().values() if PAPERS in config.note]
    assert [config.recipe for config in claimed if not any(reproduces(config, row) for row in ROWS)] == []
    baselines = 7 + 7 + 3 + 3
    assert len(claimed) == baselines + 37 + 1


@pytest.mark.parametrize("name", resolved())
def test_a_name_follows_the_scheme(name):
    """<data>-<network>[-gn][-l2]-<method>, then the hyper-parameters (r0 in 1/255) where the paper has several rows."""
    config = resolved()[name]
    group = "-gn" if config.model.normalization == "group" else ""
    norm = "-l2" if config.eval.norm == "l2" else ""
    stem = f"{config.data.name}-{config.model.name}{group}{norm}-{config.method['name']}"
    assert name.startswith(stem)
    rest = name.removeprefix(stem)
    if rest not in ("", "-extra", "-fast"):
        alpha, r0, lam = dyart_values(config)
        assert rest == f"-a{alpha:g}-r{r0.removesuffix('/255')}-l{lam:g}"
    assert config.recipe == name


@pytest.mark.parametrize("name", resolved())
def test_a_note_is_one_short_line_that_says_whose_values(name):
    note = resolved()[name].note
    assert note
    assert "\n" not in note
    assert len(note) < 160
    assert (PAPERS in note) != (OURS in note)


@pytest.mark.parametrize("name", resolved())
def test_data_and_network_exist(name):
    config = resolved()[name]
    assert config.data.name in (*REGISTRY, "fashion-mini")
    assert config.model.name in NAMES


@pytest.mark.parametrize("network", ["wrn28-10", "wrn28-10-gn", "resnet18", "resnet18-gn"])
@pytest.mark.parametrize("method", ["natural", "at", "trades", "dyart"])
def test_cifar10_has_the_usual_methods_for_every_network(network, method):
    assert f"cifar10-{network}-{method}" in resolved()


def test_all_methods_are_meant():
    assert sorted(METHODS) == sorted(registered())


@pytest.mark.parametrize("stem", ["cifar10-resnet18", "fashion-mini-cnn"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_recipe(stem, method):
    config = resolved()[f"{stem}-{method}"]
    assert config.method["name"] == method
    assert (config.model.normalization, OURS in config.note) == ("batch", True)


def test_the_awp_row_has_its_other_reading_beside_it():
    around_at, around_trades = (resolved()[f"cifar10-wrn28-10-{method}-awp"] for method in ("at", "trades"))
    assert "not said" in around_at.note
    assert "Table 1's AWP" in around_trades.note
    assert (around_trades.train, around_trades.optim) == (around_at.train, around_at.optim)
    assert (around_trades.method["gamma"], around_trades.method["awp_warmup"]) == (0.005, 0.05)


@pytest.mark.parametrize("group", ["", "-gn"])
@pytest.mark.parametrize("method", METHODS)
def test_methods_on_resnet18_share_all_but_the_method(group, method):
    """A comparison of methods is one of methods: the same epochs, rate and batches as natural training."""
    config = resolved().get(f"cifar10-resnet18{group}-{method}")
    if config is None:
        assert group, "with GroupNorm there are some methods only"
        return
    natural = resolved()[f"cifar10-resnet18{group}-natural"]
    assert (config.data, config.model, config.eval) == (natural.data, natural.model, natural.eval)
    assert (config.train.epochs, config.train.batch_size) == (natural.train.epochs, natural.train.batch_size)
    assert (config.optim.lr, config.optim.schedule) == (natural.optim.lr, natural.optim.schedule)


@pytest.mark.parametrize("method", METHODS)
def test_methods_on_fashion_mini_share_data_network_and_radius(method):
    config, natural = (resolved()[f"fashion-mini-cnn-{m}"] for m in (method, "natural"))
    assert (config.data, config.model, config.eval) == (natural.data, natural.model, natural.eval)
    assert config.method.get("radius", 0.1) == 0.1
    assert config.method.get("step_size", 0.025) == 0.025


@pytest.mark.parametrize("stem", ["cifar10-resnet18", "fashion-mini-cnn"])
def test_dyart_with_awp_differs_from_dyart_by_awp_alone(stem):
    plain, perturbed = (resolved()[f"{stem}-{method}"] for method in ("dyart", "dyart-awp"))
    assert (perturbed.optim, perturbed.train) == (plain.optim, plain.train)
    added = perturbed.method.items() - plain.method.items()
    assert {key for key, _ in added} == {"name", "gamma", "awp_warmup"}
    assert plain.method.keys() <= perturbed.method.keys()


def test_without_the_additional_data_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = resolved()["cifar10-wrn28-10-dyart-extra"].data
    assert data.auxiliary_fraction == 0.7
    with pytest.raises(FileNotFoundError, match=r"no auxiliary file edm-10m-images\.npy: set data\.auxiliary"):
        open_auxiliary(Path(data.auxiliary), Path(data.auxiliary_labels), 0.7, (3, 32, 32), 10)
    words = ["--data.auxiliary", "a.npy", "--data.auxiliary_labels", "b.npy"]
    data = resolve("cifar10-wrn28-10-dyart-extra", words).data
    assert (data.auxiliary, data.auxiliary_labels) == ("a.npy", "b.npy")


@pytest.mark.parametrize("name", resolved())
def test_tiny_imagenet_has_the_released_momentum_of_batch_norm_and_others_their_networks(name):
    config = resolved()[name]
    released = config.data.name == "tiny-imagenet" and config.model.normalization == "batch"
    assert config.model.bn_momentum == (0.01 if released else None)
