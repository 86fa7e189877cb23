"""Overrides, and what is said of keys and values that are wrong."""

import copy

import numpy as np
import pytest
import torch

from dyart.attacks.radius import Radius
from dyart.methods import registered
from dyart.recipes import RecipeError, dump, make_method, resolve
from dyart.recipes.load import merge

DYART = "cifar10-wrn28-10-dyart"


def refused(*overrides: str, recipe: str = DYART) -> str:
    with pytest.raises(RecipeError) as error:
        resolve(recipe, overrides)
    message = str(error.value)
    assert "\n" not in message, "an error is one line on a terminal"
    return message


def test_an_override_changes_its_key_alone():
    plain, changed = resolve(DYART), resolve(DYART, ["--optim.lr", "0.05"])
    assert (plain.optim.lr, changed.optim.lr) == (0.1, 0.05)
    changed.optim.lr = plain.optim.lr
    assert changed == plain


@pytest.mark.parametrize(
    "words", [["--optim.lr=1/20"], ["--optim.lr", "0.05"], ["--optim.lr", "1", "--optim.lr", "5e-2"]]
)
def test_ways_to_write_an_override(words):
    assert resolve(DYART, words).optim.lr == 0.05


def test_overrides_of_every_kind_of_value():
    words = "--seed 3 --train.loggers csv --data.flip false --optim.clip null --eval.radii 2/255,8/255 --method.r0 0.1"
    config = resolve(DYART, words.split())
    assert (config.seed, config.train.loggers, config.data.flip, config.optim.clip) == (3, ["csv"], False, None)
    assert [str(radius) for radius in config.eval.radii] == ["2/255", "8/255"]
    assert config.method["r0"] == 0.1


@pytest.mark.parametrize("name", ["123", "007", "2026-11-16", "1e3", "on", "[a", "{x}"])
def test_names_and_places_are_as_they_are_written(name):
    config = resolve(DYART, ["--out", name, f"--data.name={name}", "--note", name])
    assert (config.out, config.data.name, config.note) == (name, name, name)


def test_values_of_python_are_as_they_would_be_typed(tmp_path):
    given = {
        "out": tmp_path / "runs", "eval.radii": [Radius("2/255"), Radius("8/255")], "eval.radius": Radius("8/255"),
        "model.mean": np.array([0.5, 0.25, 0.125]), "model.std": torch.ones(3), "optim.lr": np.float64(0.05),
    }  # fmt: skip
    config = resolve(DYART, given)
    assert config.out == str(tmp_path / "runs")
    assert [str(radius) for radius in config.eval.radii] == ["2/255", "8/255"]
    assert str(config.eval.radius) == "8/255"
    assert (list(config.model.mean), list(config.model.std)) == ([0.5, 0.25, 0.125], [1.0, 1.0, 1.0])
    assert config.optim.lr == 0.05
    assert resolve(DYART, ["--out", tmp_path / "runs"]).out == str(tmp_path / "runs")


@pytest.mark.parametrize("word", ["null", "~"])
def test_no_place_at_all(word):
    assert resolve(DYART, ["--out", "somewhere", "--out", word]).out is None
    assert "data.name needs a value" in refused("--data.name", word)


def test_places_may_begin_at_the_users_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    keys = ("out", "data.root", "data.auxiliary", "data.auxiliary_labels", "train.burn_in_from")
    words = [f"--{key}=~/{key}.npy" for key in keys]
    config = resolve(DYART, [*words, "--train.burn_in", "0"])
    data, train = config.data, config.train
    places = (config.out, data.root, data.auxiliary, data.auxiliary_labels, train.burn_in_from)
    assert places == tuple(str(tmp_path / f"{key}.npy") for key in keys)


def test_a_fraction_is_the_float_nearest_to_it():
    config = resolve(DYART, ["--eval.radii", "[1/3, 8/255]"])
    assert config.eval.radii == [1 / 3, 8 / 255]
    assert make_method(config).r0 == 16 / 255


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("optim.lrr", "optim.lr"),
        ("optim.weight_decy", "optim.weight_decay"),
        ("trian.epochs", "train.epochs"),
        ("method.lamda", "method.lam"),
        ("method.alfa", "method.alpha"),
        ("sed", "seed"),
        ("batch_size", "train.batch_size"),
    ],
)
def test_an_unknown_key_names_the_nearest(key, nearest):
    message = refused(f"--{key}", "1")
    assert f"no key {key}" in message
    assert f"did you mean {nearest}?" in message


def test_a_key_of_another_method_is_unknown():
    assert "no key method.radius of the method 'dyart'" in refused("--method.radius", "8/255")
    assert "no key method.r0 of the method 'at'" in refused("--method.name", "at", "--method.r0", "8/255")


def test_an_object_of_python_is_no_key():
    assert "method.search_model" in refused("--method.search_model", "x")


@pytest.mark.parametrize("name", registered())
def test_images_of_a_recipe_have_no_other_box(name):
    assert "bounds" not in resolve("fashion-mini-cnn-at", ["--method.name", name]).method
    assert "no key method.bounds" in refused("--method.name", name, "--method.bounds", "[0, 255]")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optim.lr", "fast"),
        ("optim.lr", "true"),
        ("optim.lr", "[1]"),
        ("optim.lr", "null"),
        ("optim.lr", ".inf"),
        ("optim.clip", "true"),
        ("train.epochs", "ten"),
        ("train.epochs", "1.5"),
        ("train.epochs", "true"),
        ("train.epochs", "null"),
        ("data.flip", "1"),
        ("data.limit", "few"),
        ("data.name", "null"),
        ("model.normalization", "layer"),
        ("model.activation", "gelu"),
        ("eval.norm", "l1"),
        ("eval.radii", "2/255,big"),
        ("train.precision", "fp16"),
        ("train.loggers", "printer"),
        ("method.r0", "8/0"),
        ("method.steps", "many"),
        ("method.norm", "l3"),
        ("method.joint", "0"),
        ("seed", "null"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_key(key, value):
    message = refused(f"--{key}", value)
    assert key in message
    said = {"true": "True", ".inf": "inf", "2/255,big": "big"}.get(value, value)
    assert said in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--method.r0 0", "r0 must be positive, got 0"),
        ("--method.r0 -8/255", "r0 must be positive, got -8/255"),
        ("--method.alpha -1", "alpha"),
        ("--method.lam -1", "lam must be at least 0 and finite, got -1"),
        ("--method.steps 1", "steps must be an integer of at least 2, got 1"),
        ("--train.epochs 0", "train.epochs must be at least 1, got 0"),
        ("--train.batch_size 256 --train.accumulate 3", "train.accumulate 3 does not divide train.batch_size 256"),
        ("--train.burn_in -1", "train.burn_in must be at least 0, got -1"),
        ("--train.burn_in_from runs/a", "to begin with weights, add --train.burn_in 0"),
        ("--optim.lr 0", "optim.lr must be positive, got 0"),
        ("--optim.burn_in_clip -1", "optim.burn_in_clip must be positive, got -1"),
        ("--optim.average 1", "optim.average must be at least 0 and below 1, got 1"),
        ("--eval.radii 2/255,0", "eval.radii must be positive, got 0"),
        ("--eval.radii []", "eval.radii is empty: give eval.attack pgd a radius, or set eval.attack none"),
        ("--data.auxiliary images.npy", "data.auxiliary and data.auxiliary_labels go together"),
        ("--data.limit 0", "data.limit must be at least 1, got 0"),
        ("--model.bn_momentum 0", "model.bn_momentum must be above 0 and at most 1, got 0"),
        ("--model.bn_momentum 1.5", "model.bn_momentum must be above 0 and at most 1, got 1.5"),
        ("--optim.lr fast", "optim.lr: 'fast' is no number: write 0.03, 1e-4 or 8/255"),
        ("--method.norm l2", "method.norm is l2 and eval.norm linf: set eval.norm to l2"),
        ("--eval.norm l2", "method.norm is linf and eval.norm l2: set eval.norm to linf"),
        ("--method.name at --method.norm l2", "set eval.norm to l2"),
        ("--method.norm l2 --eval.norm l2", "eval.norm l2 needs eval.radius and eval.radii, too"),
        (
            "--method.norm l2 --eval.norm l2 --eval.radius 1",
            "eval.norm l2 needs eval.radii, too: the recipe's are of linf",
        ),
        (
            "--method.norm l1",
            "method.norm is l1, in which nothing is evaluated after a training: set eval.attack to none",
        ),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(words, said):
    assert said in refused(*words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--method.norm l2 --eval.norm l2 --eval.radius 1 --eval.radii 0.5,1",
        "--method.name at --method.norm l2 --eval.norm l2 --eval.radius 1 --eval.radii 0.5,1",
        "--method.norm l1 --eval.attack none",
        "--method.norm l1 --eval.attack none --eval.norm l2 --eval.radius 1",
        "--method.name natural --eval.norm l2 --eval.radius 1 --eval.radii 0.5,1",
    ],
)
def test_a_training_is_judged_in_its_own_norm(words):
    config = resolve(DYART, words.split())
    pairs = dict(zip(words.split()[::2], words.split()[1::2], strict=True))
    assert config.method.get("norm") == pairs.get("--method.norm")
    assert config.eval.norm == pairs.get("--eval.norm", "linf")


def test_weights_are_perturbed_for_whole_batches():
    with pytest.raises(RecipeError, match=r"train\.accumulate must be 1"):
        resolve("fashion-mini-cnn-dyart-awp", ["--train.accumulate", "2"])


def test_batches_that_divide_are_taken():
    assert resolve(DYART, ["--train.accumulate", "4"]).train.accumulate == 4


def test_another_method_drops_the_settings_of_the_first():
    config = resolve(DYART, ["--method.name", "at", "--method.steps", "7"])
    assert config.method == {
        "name": "at",
        "radius": 8 / 255,
        "steps": 7,
        "step_size": 2 / 255,
        "norm": "linf",
        "start": "uniform",
    }
    assert config.model == resolve(DYART).model


@pytest.mark.parametrize("words", ["--method.steps 7 --method.name at", "--method.name at --method.steps 7"])
def test_a_method_may_be_named_after_its_settings(words):
    config = resolve(DYART, words.split())
    assert config.method == resolve(DYART, ["--method.name", "at"]).method | {"steps": 7}


def test_naming_the_same_method_keeps_its_settings():
    assert resolve(DYART, ["--method.name", "dyart"]).method == resolve(DYART).method


def test_an_unknown_method_names_the_nearest():
    assert "did you mean 'dyart'?" in refused("--method.name", "dyrt")


@pytest.mark.parametrize(
    "overrides",
    [
        ["--optim.lr", 1e-5, "--optim.clip", None, "--train.epochs=3", "--optim.nesterov", False],
        {"optim.lr": 1e-5, "optim.clip": None, "train.epochs": 3, "--optim.nesterov": False},
        "--optim.lr 1e-5 --optim.clip null --train.epochs 3 --optim.nesterov false",
    ],
)
def test_overrides_from_python_may_be_values_by_key(overrides):
    words = ["--optim.lr", "1e-5", "--optim.clip", "null", "--train.epochs", "3", "--optim.nesterov", "false"]
    assert resolve(DYART, overrides) == resolve(DYART, words) != resolve(DYART)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr", "1"], "expected --key value, got 'lr'"),
        (["--optim.lr"], "--optim.lr needs a value"),
        (["--optim.lr", "--seed", "1"], "--optim.lr needs a value"),
        (["--method", "at"], "method is a group of keys"),
        (["--train", "3"], "train is a group of keys"),
    ],
)
def test_words_that_are_no_overrides(words, said):
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("recipe", "near"),
    [
        ("cifar10-resnet-dyart", "cifar10-resnet18-dyart"),
        ("cifar10-wrn-28-10-at", "cifar10-wrn28-10-at"),
        ("fashion-cnn-dyart", "fashion-mini-cnn-dyart"),
    ],
)
def test_an_unknown_recipe_names_near_ones(recipe, near):
    message = refused(recipe=recipe)
    assert f"no recipe {recipe!r}" in message
    assert near in message


def test_a_network_of_ones_own_has_its_own_activation():
    assert resolve("cifar10-resnet18-at").model.activation == "silu"
    assert resolve("cifar10-resnet18-at", ["--model.name", "wrn28-10"]).model.activation == "silu"
    assert resolve("cifar10-resnet18-at", ["--model.name", "my_net:make"]).model.activation is None
    words = ["--model.name", "my_net:make", "--model.activation", "relu"]
    assert resolve("cifar10-resnet18-at", words).model.activation == "relu"


def test_with_awp_around_it_a_method_keeps_its_settings():
    around = resolve("cifar10-resnet18-at-fast", ["--method.name", "at-awp"])
    assert str(around.method["radius"]) == "10/255"
    assert around.method["steps"] == 3
    without = resolve("cifar10-resnet18-trades-awp-fast", ["--method.name", "trades"])
    assert without.method["steps"] == 3
    assert "gamma" not in without.method
    other = resolve("cifar10-resnet18-at-fast", ["--method.name", "trades-awp"])
    assert other.method["steps"] == 10, "another method brings its own"


def test_what_a_run_was_trained_by_need_not_be_there_to_read_the_rest(tmp_path):
    norms = ["--method.norm", "l2", "--method.radius", "0.5", "--eval.norm", "l2", "--eval.radius", "0.5"]
    whole = resolve("fashion-mini-cnn-at", [*norms, "--eval.radii", "[0.5, 1]"])
    path = tmp_path / "config.yaml"
    path.write_text(dump(whole).replace("name: at\n", "name: nowhere:At\n"))
    with pytest.raises(RecipeError, match="nowhere"):
        resolve(path)
    read = resolve(path, method=False)
    assert read.method["name"] == "nowhere:At"
    for section in ("eval", "data", "model", "optim", "train"):
        assert getattr(read, section) == getattr(whole, section)


def test_merging_leaves_both_trees_as_they_are():
    below = {"method": {"name": "at", "gamma": 1}, "model": {"name": "cnn", "activation": "relu"}}
    before = copy.deepcopy(below)
    merged = merge(below, {"model": {"name": "mine:net"}})
    assert "activation" not in merged["model"]
    assert below == before
    assert merge(below, {"method": {"name": "at-awp"}})["method"] == {"name": "at-awp"}
    assert below == before
