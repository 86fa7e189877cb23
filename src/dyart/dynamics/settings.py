"""The settings of methods that a run was not trained with: from the data set's recipes, else the method's defaults."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dyart.attacks.radius import Radius
from dyart.methods.base import Method, find
from dyart.recipes import Config, RecipeError, flat, make_method, names, read
from dyart.recipes.load import check

DEFAULTS = "the method's defaults"


class Chosen(NamedTuple):
    """A method with its settings."""

    method: Method[Any]
    settings: dict[str, Any]
    origin: str
    """Where the settings come from, in words."""
    clip: float | None
    """Largest norm of the gradient that goes with them."""


def choose(name: str, config: Config, overrides: Mapping[str, Any] | None = None) -> Chosen:
    """Return a method for a run.

    The run's own method has the run's settings and clipping. Another has those of the recipe for the same data and
    network, or for the same data, or its defaults and no clipping. Overrides come on top.

    Raises:
        RecipeError: a setting does not exist or has the wrong type.
        ValueError: there is no such method.
    """
    find(name)
    overrides = overrides or {}
    settings, origin, clip = dict(config.method), "the run", config.optim.clip
    if name != config.method["name"]:
        recipe = _recipe_for(name, config)
        tree = read(recipe) if recipe else {}
        settings, clip = dict(tree.get("method", {})), tree.get("optim", {}).get("clip")
        origin = f"the recipe {recipe}" if recipe else DEFAULTS
    settings |= {"name": name} | dict(overrides)
    # A recipe's evaluation must agree with the norm of its method; nothing is evaluated here.
    evaluation = {"l2": {"norm": "l2"}, "l1": {"attack": "none"}}.get(str(settings.get("norm")), {})
    checked = check({"method": settings, "eval": evaluation})
    if overrides:
        origin += f", changed: {', '.join(sorted(overrides))}"
    return Chosen(make_method(checked), {k: v for k, v in checked.method.items() if k != "name"}, origin, clip)


def parse_overrides(words: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return settings by method from words such as ``--at.radius 0.1 --dyart.lam=40``.

    Raises:
        RecipeError: a word is no setting of one of the methods.
    """
    import yaml

    found: dict[str, dict[str, Any]] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        key, given, value = word.removeprefix("--").partition("=")
        # The longest first: "at" is the beginning of no other name with a dot, but a class of one's own may have dots.
        owner = next((m for m in sorted(methods, key=len, reverse=True) if key.startswith(f"{m}.")), None)
        if not word.startswith("--") or owner is None:
            raise RecipeError(
                f"unknown argument {word}: settings of methods are written --METHOD.KEY VALUE, e.g. --at.radius 0.1, "
                f"for the methods measured ({', '.join(methods)})"
            )
        if not given:
            if not waiting:
                raise RecipeError(f"{word} needs a value: {word} VALUE")
            value = waiting.pop(0)
        found.setdefault(owner, {})[key.removeprefix(f"{owner}.")] = yaml.safe_load(value)
    return found


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON can have them: a number written as a fraction as its text."""

    def written(value: object) -> object:
        if isinstance(value, Radius):
            return value.text if "/" in value.text else float(value)
        return value if isinstance(value, bool | int | float | str | None) else str(value)

    return {key: written(value) for key, value in flat(dict(settings)).items()}


def _recipe_for(name: str, config: Config) -> str | None:
    """Return the recipe of a method that is most like a run: its data and network, else its data; the shortest name."""
    trees = {recipe: read(recipe) for recipe in names() if recipe.startswith(config.data.name)}
    same = [
        recipe
        for recipe, tree in trees.items()
        if tree.get("method", {}).get("name") == name and tree.get("data", {}).get("name") == config.data.name
    ]

    def distance(recipe: str) -> tuple[bool, bool, int]:
        model = trees[recipe].get("model", {})
        other_norm = model.get("normalization", "batch") != config.model.normalization
        return model.get("name", "cnn") != config.model.name, other_norm, len(recipe)

    return min(same, key=distance, default=None)
