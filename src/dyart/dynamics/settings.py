"""The settings of methods that a run was not trained with: from the data set's recipes, else the method's defaults."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from dyart.attacks.radius import Radius
from dyart.boundary.norms import Norm
from dyart.methods.base import Method, find
from dyart.recipes import Config, RecipeError, flat, make_method, names, read
from dyart.recipes.load import check
from dyart.recipes.parser import keys

DEFAULTS = "the method's defaults"
# How far a method looks, by the name that it has for it, in training radii; its other lengths go along.
REACH = {"radius": 1, "r0": 2, "hinge": 4}
LENGTHS = ("step_size", "least", "omega")
# Where r0 is the reach: one over a length.
INVERSES = ("alpha", "lam")


class Chosen(NamedTuple):
    """A method with its settings."""

    method: Method[Any]
    settings: dict[str, Any]
    origin: str
    """Where the settings come from, in words."""
    clip: float | None
    """Largest norm of the gradient that goes with them."""


def choose(
    name: str, config: Config, overrides: Mapping[str, Any] | None = None, radius: float | None = None
) -> Chosen:
    """Return a method for a run.

    The run's own method has the run's settings and clipping. Another has those of the recipe for the same data and
    network, or for the same data, in the run's norm; or its defaults and no clipping. Overrides come on top.

    Defaults are those for CIFAR-10 at 8/255: without a recipe, the method's radius (DyART's r0 twice, MMA's hinge four
    times as much), with what else has a unit of length in proportion, and its norm are those of the run.

    Args:
        name: of the method.
        config: of the run.
        overrides: settings that the user gave.
        radius: for methods without a recipe; None: the one that the run was trained with, else its ``eval.radius``.

    Raises:
        RecipeError: a setting does not exist or has the wrong type.
        ValueError: there is no such method.
    """
    find(name)
    overrides = dict(overrides or {})
    settings, origin, clip = dict(config.method), "the run", config.optim.clip
    if name != config.method["name"]:
        recipe = _recipe_for(name, config)
        tree = read(recipe) if recipe else {}
        settings, clip = dict(tree.get("method", {})), tree.get("optim", {}).get("clip")
        origin = f"the recipe {recipe}" if recipe else DEFAULTS
        if not recipe:
            settings, words = _adapted(name, config, overrides, radius)
            origin += words
    settings |= {"name": name} | overrides
    try:
        checked = _checked(settings)
    except RecipeError as error:  # in the words of the user: --dyart.lam, not method.lam
        raise RecipeError(re.sub(r"\bmethod\.(?=\w)", f"{name}.", str(error))) from error
    if overrides:
        origin += f", changed: {', '.join(sorted(overrides))}"
    return Chosen(make_method(checked), {k: v for k, v in checked.method.items() if k != "name"}, origin, clip)


def _checked(settings: dict[str, Any]) -> Config:
    # A recipe's evaluation must agree with the norm of its method; nothing is evaluated here.
    evaluation = {"l2": {"norm": "l2"}, "l1": {"attack": "none"}}.get(str(settings.get("norm")), {})
    return check({"method": settings, "eval": evaluation})


def _adapted(
    name: str, config: Config, overrides: Mapping[str, Any], radius: float | None
) -> tuple[dict[str, Any], str]:
    """Return the norm and the lengths of a method at the radius of a run, and words for it."""
    defaults = _checked({"name": name}).method
    reach = reach_of(defaults)
    if reach is None:
        return {}, ""
    norm = norm_of(config)
    # Most know no l1: whoever wants that hears of it where the norms of methods are compared.
    found: dict[str, Any] = {"norm": norm} if norm in norms_of(name) else {}
    times, wanted = REACH[reach], Radius(radius or config.method.get("radius") or config.eval.radius)
    if reach in overrides:
        wanted = Radius(Radius(overrides[reach]) / times)
    found[reach] = wanted if times == 1 else times * wanted
    ratio = found[reach] / defaults[reach]
    scales = dict.fromkeys(LENGTHS, ratio) | (dict.fromkeys(INVERSES, 1 / ratio) if reach == "r0" else {})
    for key, scale in scales.items():
        if isinstance(defaults.get(key), float):  # rounded: 0.025, and not 0.025000000000000005
            found[key] = float(f"{defaults[key] * scale:.6g}")
    return found, "" if reach in overrides else f" for radius {wanted}"


def norms_of(name: str) -> tuple[str, ...]:
    """Return the norms that a method can be given; none where it has no such setting."""
    return get_args(keys(name).get("method.norm"))


def reach_of(settings: Mapping[str, Any]) -> str | None:
    """Return which of a method's settings says how far it looks."""
    return next((key for key in REACH if isinstance(settings.get(key), float)), None)


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


def norm_of(config: Config) -> Norm:
    """Return the norm that a run's method works in, else the one that the run is evaluated in."""
    norm: Norm = config.method.get("norm", config.eval.norm)
    return norm


def usual_radius(data: str, norm: Norm) -> Radius | None:
    """Return the radius that the recipes for a data set are evaluated at, in a norm; None where there are none."""
    radii = {recipe: tree["eval"]["radius"] for recipe, tree in _recipes(data).items() if _judged_in(tree) == norm}
    return Radius(radii[min(radii, key=lambda recipe: (len(recipe), recipe))]) if radii else None


def _recipes(data: str) -> dict[str, dict[str, Any]]:
    """Return all recipes for a data set, by name."""
    trees = {recipe: read(recipe) for recipe in names() if recipe.startswith(data)}
    return {recipe: tree for recipe, tree in trees.items() if tree.get("data", {}).get("name") == data}


def _judged_in(tree: dict[str, Any]) -> str:
    return str(tree.get("eval", {}).get("norm", Config().eval.norm))


def _recipe_for(name: str, config: Config) -> str | None:
    """Return the recipe of a method that is most like a run: its data and network, else its data; the shortest name.

    Its norm is the run's, if it has one: lengths of another are of no use there.
    """
    trees = _recipes(config.data.name)
    any_norm = "norm" not in _checked({"name": name}).method
    same = [
        recipe
        for recipe, tree in trees.items()
        if tree.get("method", {}).get("name") == name and (any_norm or _judged_in(tree) == norm_of(config))
    ]

    def distance(recipe: str) -> tuple[bool, bool, int]:
        model = trees[recipe].get("model", {})
        other_norm = model.get("normalization", "batch") != config.model.normalization
        return model.get("name", "cnn") != config.model.name, other_norm, len(recipe)

    return min(same, key=distance, default=None)
