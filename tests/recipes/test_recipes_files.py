"""Recipes as files: of one's own, built on packaged ones, and as a run writes them down."""

import dataclasses

import pytest
from recipe_cases import resolved

from dyart.recipes import RecipeError, dump, read, resolve
from dyart.recipes.parser import _written


def written(folder, text: str, name: str = "mine.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(path) -> str:
    with pytest.raises(RecipeError) as error:
        resolve(path)
    return str(error.value)


@pytest.mark.parametrize("name", resolved())
def test_what_is_dumped_is_read_back_the_same(name, tmp_path):
    config = resolved()[name]
    path = written(tmp_path, dump(config), "config.yaml")
    again = resolve(path)
    assert again == config
    assert dump(again) == dump(config), "as written, too: 8/255 and not a decimal"


def test_radii_are_kept_as_written():
    words = ["--eval.radius", "0.03", "--eval.radii", "2/255,0.05"]
    text = dump(resolve("cifar10-wrn28-10-dyart", words))
    for line in ("r0: 16/255", "radius: 0.03", "- 2/255", "- 0.05"):
        assert line in text
    assert "8/255" in dump(resolve("cifar10-wrn28-10-at"))


def test_defaults_are_dumped_as_a_person_writes_them(tmp_path):
    text = dump(resolve(written(tmp_path, "method: {name: at}\n")))
    assert "radius: 8/255" in text
    assert "step_size: 2/255" in text
    assert "clean: 1/3" in dump(resolve(written(tmp_path, "method: {name: mma}\n")))


@pytest.mark.parametrize(
    ("value", "text"),
    [(8 / 255, "8/255"), (15 / 255, "15/255"), (51 / 255, "0.2"), (0.6, "0.6"), (1 / 3, "1/3"), (2 / 3, "2/3"),
     (0.0, "0.0"), (1.0, "1.0"), (1e6, "1000000.0"), (5e-4, "0.0005"), (0.1 + 0.2, "0.30000000000000004")],
)  # fmt: skip
def test_a_default_is_the_same_number_in_the_shortest_way(value, text):
    assert (str(_written(value)), float(_written(value))) == (text, value)


def test_everything_is_in_the_dump():
    """A run's config.yaml says all, also what was not given."""
    config = resolve("fashion-mini-cnn-at")
    text = dump(config)
    for section in ("data", "model", "optim", "train", "eval"):
        for field in dataclasses.fields(getattr(config, section)):
            assert f"  {field.name}:" in text


def test_a_recipe_of_ones_own_builds_on_a_packaged_one(tmp_path):
    path = written(tmp_path, "base: cifar10-wrn28-10-dyart\nmethod: {lam: 700}\ntrain: {epochs: 50}\n")
    config, base = resolve(path), resolve("cifar10-wrn28-10-dyart")
    assert (config.method["lam"], config.train.epochs) == (700, 50)
    assert (config.method["r0"], config.optim, config.model) == (base.method["r0"], base.optim, base.model)


def test_a_base_lends_its_values_and_not_its_name_or_claim(tmp_path):
    config = resolve(written(tmp_path, "base: cifar10-wrn28-10-dyart\nmethod: {lam: 1}\n"))
    assert config.recipe == "mine"
    assert config.note == ""
    noted = resolve(written(tmp_path, "base: cifar10-wrn28-10-dyart\nnote: a trial\nrecipe: other\n"))
    assert (noted.note, noted.recipe) == ("a trial", "other")


def test_later_bases_win(tmp_path):
    first = written(tmp_path, "optim: {lr: 0.3}\ntrain: {epochs: 5}\n", "first.yaml")
    written(tmp_path, "optim: {lr: 0.4}\n", "second.yaml")
    config = resolve(written(tmp_path, f"base: [cifar10-resnet18-at, {first}, second.yaml]\nseed: 2\n"))
    assert (config.optim.lr, config.train.epochs, config.seed) == (0.4, 5, 2)
    assert config.model.name == "resnet18"


def test_a_base_with_another_method_brings_its_settings(tmp_path):
    config = resolve(written(tmp_path, "base: cifar10-wrn28-10-dyart\nmethod: {name: at, steps: 3}\n"))
    assert config.method["steps"] == 3
    assert "lam" not in config.method


def test_a_base_is_looked_for_beside_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    written(tmp_path, "optim: {lr: 0.7}\n", "common.yaml")
    path = written(tmp_path / "deep", "base: ../common.yaml\n")
    monkeypatch.chdir("/")
    assert resolve(path).optim.lr == 0.7


def test_a_recipe_that_is_its_own_base(tmp_path):
    written(tmp_path, "base: two.yaml\n", "one.yaml")
    message = refused(written(tmp_path, "base: one.yaml\n", "two.yaml"))
    assert "its own base" in message
    assert "one.yaml" in message


def test_a_run_can_be_a_base(tmp_path):
    written(tmp_path, dump(resolve("cifar10-wrn28-10-at", ["--seed", "4"])), "config.yaml")
    config = resolve(written(tmp_path, "base: config.yaml\noptim: {lr: 0.2}\n"))
    assert (config.seed, config.optim.lr, config.recipe, config.note) == (4, 0.2, "mine", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: 3\n", "must be a recipe or a list of them, got 3"),
        ("base: cifar10-resnet-at\n", "cifar10-resnet18-at"),
        ("base: nowhere.yaml\n", "nowhere.yaml"),
        ("- a\n- b\n", "must be a mapping"),
        ("a: [1\n", "is no YAML"),
        ("train:\n", "train is a group of keys, got None"),
        ("optim: {lr: [1, 2]}\n", "optim.lr"),
        ("method: {name: dyart, lr: 1}\n", "no key method.lr of the method 'dyart'"),
        ("epochs: 3\n", "did you mean train.epochs?"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, text, said):
    assert said in refused(written(tmp_path, text))


def test_a_file_that_is_missing(tmp_path):
    assert "cannot read the recipe" in refused(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["", "# my recipe\n", "{}\n", "note: mine\n", "base: []\n", "train: {}\n"])
def test_a_recipe_without_settings_is_refused(tmp_path, text):
    message = refused(written(tmp_path, text))
    assert f"{tmp_path / 'mine.yaml'} holds no settings: write some, or `base: RECIPE`" in message


def test_a_base_is_settings_enough(tmp_path):
    path = written(tmp_path, "base: fashion-mini-cnn-at\n")
    base = {key: value for key, value in read("fashion-mini-cnn-at").items() if key != "note"}
    assert read(path) == base | {"recipe": "mine"}


def test_a_key_written_twice_is_refused_with_its_lines(tmp_path):
    text = "base: fashion-mini-cnn-dyart\ntrain:\n  epochs: 2\ntrain:\n  burn_in: 1\n"
    assert "has train twice, in lines 2 and 4: join the two" in refused(written(tmp_path, text))
    text = "base: fashion-mini-cnn-dyart\ntrain:\n  epochs: 2\n  burn_in: 1\n  epochs: 3\n"
    assert "has train.epochs twice, in lines 3 and 5" in refused(written(tmp_path, text))


def test_a_file_of_weights_is_no_recipe(tmp_path):
    with pytest.raises(RecipeError, match=r"w\.safetensors is a file of weights, not a recipe: `dyart evaluate"):
        resolve(str(tmp_path / "w.safetensors"))


def test_the_default_method_named_is_no_other_method(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method: {lam: 5.0}\n")
    for words in ([], ["--method.name", "dyart"], ["--method.name", "dyart-awp"]):
        assert resolve(path, words).method["lam"] == 5.0
    assert "lam" not in resolve(path, ["--method.name", "at"]).method
