"""Every row of the paper's tables has its recipe, with the paper's values."""

from collections import Counter

import pytest
from recipe_cases import OURS, PAPERS, dyart_values, reproduces, resolved, rows, setting_of

from dyart.data.registry import REGISTRY
from dyart.models import NAMES

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
    """As many rows of AT and DyART as the paper prints, table by table."""
    printed = {1: (1, 1), 2: (1, 1), 3: (1, 1), 4: (1, 1), 5: (1, 5), 6: (1, 8), 7: (1, 12), 8: (1, 12), 9: (0, 1)}
    counted = Counter((row.table, row.method) for row in ROWS)
    assert {table: (counted[table, "at"], counted[table, "dyart"]) for table in printed} == printed
    assert sum(counted.values()) == len(ROWS) == 50


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


@pytest.mark.parametrize("row", [row for row in ROWS if row.method == "at"], ids=label)
def test_at_attacks_as_the_paper_says(row):
    method = recipe_of(row).method
    assert (str(method["radius"]), str(method["step_size"]), method["steps"]) == ("8/255", "2/255", 10)


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_the_note_says_which_row_and_what_was_published(row):
    note = recipe_of(row).note
    assert f"Table {row.table}," in note
    assert f"published {row.clean} clean, {row.aa} AA at 8/255" in note
    assert note.endswith(f"; {PAPERS}.")
    assert ("BN" if row.normalization == "batch" else "GN") in note


def test_the_step_schedule_begins_at_its_peak():
    """The text: it begins at 0.1 and is decayed at the 50th and 75th epoch."""
    steps = [config for config in resolved().values() if config.optim.schedule == "step"]
    assert len(steps) == 5
    assert {config.optim.warmup for config in steps} == {0.0}


def test_a_recipe_with_the_papers_values_has_a_row():
    claimed = [config for config in resolved().values() if PAPERS in config.note]
    assert [config.recipe for config in claimed if not any(reproduces(config, row) for row in ROWS)] == []
    assert len(claimed) == 4 + 37 + 1


@pytest.mark.parametrize("name", resolved())
def test_a_name_follows_the_scheme(name):
    """<data>-<network>[-gn]-<method>, then the hyper-parameters (r0 in 1/255) where the paper has several rows."""
    config = resolved()[name]
    group = "-gn" if config.model.normalization == "group" else ""
    stem = f"{config.data.name}-{config.model.name}{group}-{config.method['name']}"
    assert name.startswith(stem)
    rest = name.removeprefix(stem)
    if rest not in ("", "-extra"):
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
@pytest.mark.parametrize("method", ["natural", "at", "dyart"])
def test_cifar10_has_every_method_for_every_network(network, method):
    assert f"cifar10-{network}-{method}" in resolved()


@pytest.mark.parametrize("name", [f"cifar10-resnet18{group}-{m}" for group in ("", "-gn") for m in ("at", "dyart")])
def test_methods_on_resnet18_share_all_but_the_method(name):
    """A comparison of methods is one of methods: the same epochs, rate and batches as natural training."""
    config = resolved()[name]
    natural = resolved()[name.rpartition("-")[0] + "-natural"]
    assert (config.data, config.model, config.eval) == (natural.data, natural.model, natural.eval)
    assert (config.train.epochs, config.train.batch_size) == (natural.train.epochs, natural.train.batch_size)


def test_additional_data_waits_for_the_users_files():
    config = resolved()["cifar10-wrn28-10-dyart-extra"]
    assert (config.data.auxiliary, config.data.auxiliary_labels, config.data.auxiliary_fraction) == (None, None, 0.7)
