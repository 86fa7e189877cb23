"""Random recipes and random words on the command line: a configuration or a message, never a traceback."""

import dataclasses
from contextlib import suppress

import yaml
from fuzzing import fuzz, refused
from hypothesis import given
from hypothesis import strategies as st

from dyart.cli.main import _user_errors
from dyart.engine.callbacks import Callback
from dyart.engine.run import prepare
from dyart.recipes import RecipeError, dump, resolve
from dyart.recipes.load import check, merge
from dyart.recipes.parser import keys

KNOWN = sorted({key for method in ("dyart", "at", "mma", "trades-awp", "fat") for key in keys(method)})
METHODS = st.sampled_from(["dyart", "at", "trades", "mart", "mma", "gairat", "mail-at", "fat", "at-awp", "natural"])
WORDS = st.sampled_from(["", "8/255", "1/0", "0/0", "-1/3", "inf", "nan", "1e400", "on", "off", "null", "linf", "cnn"])
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.integers(),
        st.floats(),
        WORDS,
        st.text(max_size=12),
        st.binary(max_size=4),
        st.dates(),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.integers(), inner, max_size=3),
    max_leaves=4,
)
KEYS = st.one_of(st.sampled_from(KNOWN), st.sampled_from(KNOWN), st.text("abcdef.:_é \n", max_size=12))
# The processes and places of a training are the machine's: these are not for trying out.
OF_THE_MACHINE = {"train.devices", "train.num_nodes", "train.strategy", "train.device", "train.compile", "out"}
OF_THE_MACHINE |= {"data.name"}
SMALL = {
    "data": {"name": "three-blobs", "limit": 64},
    "model": {"name": "mlp"},
    "train": {"device": "cpu", "compile": "off", "batch_size": 32},
}


def endless(key, value):
    """Say whether one step takes so many passes that nobody waits for it."""
    return key.endswith(("steps", "bisections")) and isinstance(value, int | float) and value > 100


class SteppedError(Exception):
    """The end of a training that has taken a step."""


class OneStep(Callback):
    def on_step(self, training):
        training.guard.check()
        raise SteppedError


def nested(pairs):
    tree = {}
    for key, value in pairs:
        branch = value
        for part in reversed(key.split(".")):
            branch = {part: branch}
        tree = merge(tree, branch)
    return tree


@fuzz
@given(METHODS, st.lists(st.tuples(KEYS, VALUES), max_size=4))
def test_recipes(method, pairs):
    config = None
    with refused(RecipeError):
        config = check(merge({"method": {"name": method}}, nested(pairs)))
    if config is None:
        return
    again = check(yaml.safe_load(dump(config)))
    assert dataclasses.asdict(again) == dataclasses.asdict(config) or "nan" in dump(config)


@fuzz
@given(METHODS, st.tuples(st.sampled_from([key for key in KNOWN if key not in OF_THE_MACHINE]), VALUES))
def test_what_is_accepted_takes_a_first_step_or_is_refused_with_a_message(method, pair):
    with refused(RecipeError, *_user_errors()):
        training = prepare(check(merge(merge(SMALL, {"method": {"name": method}}), nested([pair]))))
        training.callbacks = [OneStep()]
        if endless(*pair):
            return
        with suppress(SteppedError):
            training.run()


@fuzz
@given(
    st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | VALUES.map(lambda v: yaml.dump(v).encode()),
    st.lists(st.one_of(KEYS.map("--{}".format), WORDS, st.text(max_size=8), st.just("--seed=1")), max_size=4),
)
def test_files_and_words(tmp_path_factory, content, words):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(content)
    for recipe in (path, "fashion-mini-cnn-at"):
        with refused(RecipeError):
            resolve(recipe, words)
