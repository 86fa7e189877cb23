"""Recipes: YAML files that share common parts, overridden from the command line, checked into a ``Config``."""

import argparse
import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from dyart.attacks.pgd import AttackNorm
from dyart.attacks.radius import Radius
from dyart.boundary.norms import Norm
from dyart.methods.awp import SUFFIX
from dyart.methods.base import Method, check_parts, find
from dyart.recipes.config import SECTIONS, Config
from dyart.recipes.parser import NOT_IN_RECIPES, build_parser, keys

Tree = dict[str, Any]

AWP_KEYS = ("gamma", "awp_warmup")


class RecipeError(ValueError):
    """Something in a recipe, or in what overrides it, is wrong; the message says what to do."""


def names() -> list[str]:
    """Return the names of all recipes of this package."""
    files = (entry.name for entry in resources.files("dyart.recipes").iterdir())
    return sorted(name[:-5] for name in files if name.endswith(".yaml") and not name.startswith("_"))


def read(recipe: str | Path) -> Tree:
    """Return the values of a recipe, by name or file, with its common parts (``base:``) merged in.

    A base that is a .yaml file is looked for beside the recipe that names it.
    """
    return _read(str(recipe), ())


def _read(recipe: str, above: tuple[str, ...]) -> Tree:
    import yaml

    if recipe in above:
        raise RecipeError(f"the recipe {recipe} is its own base: {' -> '.join((*above, recipe))}")
    text, name = _text(recipe)
    try:
        _refuse_doubles(recipe, yaml.compose(text, Loader=yaml.SafeLoader))
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise RecipeError(f"the recipe {recipe} is no YAML: {error}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"the recipe {recipe} must be a mapping of keys to values, got {type(tree).__name__}")
    merged: Tree = {}
    for base in _bases(recipe, tree.pop("base", [])):
        merged = merge(merged, _read(base, (*above, recipe)))
    # A base lends its values; what it is called and what it reproduces are its own.
    merged.pop("recipe", None)
    merged.pop("note", None)
    merged = merge(merged, tree)
    if all(key in ("recipe", "note") or value == {} for key, value in merged.items()):
        raise RecipeError(
            f"the recipe {recipe} holds no settings: write some, or `base: RECIPE` with a recipe of `dyart "
            "recipes` and what differs from it"
        )
    if not name.startswith("_"):
        merged.setdefault("recipe", name)
    return merged


def _refuse_doubles(recipe: str, node: Any, above: tuple[Any, ...] = (), path: str = "") -> None:  # noqa: ANN401
    """Refuse a key that is written twice: YAML would forget what the first one says."""
    if node in above:  # an alias of something around it
        return
    seen: dict[str, int] = {}
    for key, value in node.value if getattr(node, "id", "") == "mapping" else ():
        name, line = f"{path}{key.value}", key.start_mark.line + 1
        if name in seen:
            raise RecipeError(f"the recipe {recipe} has {name} twice, in lines {seen[name]} and {line}: join the two")
        seen[name] = line
        _refuse_doubles(recipe, value, (*above, node), f"{name}.")


def resolve(recipe: str | Path, overrides: Sequence[object] | Mapping[str, object] = (), method: bool = True) -> Config:
    """Return the configuration of a recipe with overrides such as ``{"optim.lr": 0.05}``.

    Args:
        recipe: a name or a file.
        overrides: values by key, or words of a command line, ``["--optim.lr", "0.05"]``.
        method: False: take the method's settings as they are, whether or not its code is there.

    Raises:
        RecipeError: unknown recipe or key (the nearest right one is named), or a value of the wrong type.
    """
    own, given = read(recipe), _from_arguments(_words(overrides))
    tree = merge(own, given)
    if method:
        config = check(tree)
        _check_radii(own, given)
        return config
    # Natural training has no settings that the others could contradict.
    plain = check(tree | {"method": {"name": "natural"}})
    return dataclasses.replace(plain, method=tree.get("method", Config().method))


def _check_radii(own: Tree, given: Tree) -> None:
    """Refuse another norm with the radii that a recipe has for its own."""
    before, now = own.get("eval", {}), given.get("eval", {})
    if not isinstance(now, dict) or now.get("norm") in (None, before.get("norm", Config().eval.norm)):
        return
    needed = ["radius"] if {**before, **now}.get("attack") == "none" else ["radius", "radii"]
    if missing := [f"eval.{key}" for key in needed if key not in now]:
        raise RecipeError(
            f"eval.norm {now['norm']} needs {' and '.join(missing)}, too: the recipe's are of "
            f"{before.get('norm', Config().eval.norm)}, which has another unit"
        )


def check(tree: Tree) -> Config:
    """Return the configuration in a tree of plain values."""
    _check_keys(tree)
    for section in ("method", *SECTIONS):
        if not isinstance(tree.get(section, {}), dict):
            raise RecipeError(f"{section} is a group of keys, got {tree[section]!r}: write {section}.KEY")
    method = tree.get("method", {})
    name = str(method.get("name", Config().method["name"]))
    try:
        known = keys(name)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    tree = _as_meant(tree, known)
    for key in _leaves(tree, known):
        if key not in known:
            raise RecipeError(_unknown(key, known, name))
    _check_kinds(tree, known)
    try:
        parsed = build_parser(name).parse_object(tree).as_dict()
        sections = {section: cls(**parsed.pop(section)) for section, cls in SECTIONS.items()}
        config = Config(**parsed, **sections)
        check_parts(make_method(config), config.train.accumulate)
        _check_norms(config)
    except (argparse.ArgumentError, ValueError, TypeError) as error:
        raise RecipeError(_readable(str(error))) from error
    return config


def _check_keys(tree: Tree, prefix: str = "") -> None:
    """Refuse keys that are no words: YAML reads 1, on and null as others."""
    for key, value in tree.items():
        if not isinstance(key, str):
            raise RecipeError(f"no key {prefix}{key}: keys are words, got {key!r}")
        if isinstance(value, dict):
            _check_keys(value, f"{prefix}{key}.")


def _check_norms(config: Config) -> None:
    """Refuse a training in one norm that is judged in another: its radii would mean something else."""
    trained, judged = config.method.get("norm"), config.eval.norm
    if trained not in get_args(Norm) or trained == judged:
        return
    if trained in get_args(AttackNorm):
        raise ValueError(
            f"method.norm is {trained} and eval.norm {judged}: set eval.norm to {trained}, with eval.radius and "
            "eval.radii in it (or method.norm the other way)"
        )
    if config.eval.attack != "none":
        raise ValueError(
            f"method.norm is {trained}, in which nothing is evaluated after a training: set eval.attack to none. "
            f"Checkpoints are then compared by the validation attack in eval.norm {judged}: set eval.radius for that"
        )


def make_method(config: Config) -> Method[Any]:
    """Return the training method of a configuration."""
    settings = {key: value for key, value in config.method.items() if key != "name"}
    try:
        return find(config.method["name"])(**settings)
    except TypeError as error:
        if "multiple values for keyword argument" not in str(error):
            raise
        raise ValueError(
            f"the method {config.method['name']} passes a setting on twice ({error}): what it fixes must be an "
            "argument of its own, with that as default"
        ) from error


def dump(config: Config) -> str:
    """Return a configuration as YAML, everything resolved: ``read`` of it gives the same configuration."""
    import yaml

    return str(yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True, width=120))


def differences(first: Config, second: Config) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two configurations differ, with both values."""
    one, two = (flat(dataclasses.asdict(config)) for config in (first, second))
    return {key: (one.get(key), two.get(key)) for key in {**one, **two} if one.get(key) != two.get(key)}


def flat(tree: Tree, prefix: str = "") -> Tree:
    """Return a tree with one level, its keys joined by dots."""
    leaves: Tree = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


def merge(below: Tree, above: Tree) -> Tree:
    """Return two trees in one; where both have a value, the second's.

    Another method brings its own settings, a network of the user's own its own activation. With AWP around it, a method
    is the same.
    """
    new, old, below = _name(above, "method"), _name(below, "method"), dict(below)
    if old is None and isinstance(below.get("method"), dict):
        old = Config().method["name"]
    if new not in (None, old):
        same = str(new).removesuffix(SUFFIX) == str(old).removesuffix(SUFFIX)
        settings = below.pop("method", {})
        if same:
            below["method"] = {key: value for key, value in settings.items() if key not in AWP_KEYS}
    network = _name(above, "model")
    if ":" in str(network) and network != _name(below, "model") and isinstance(below.get("model"), dict):
        below["model"] = {key: value for key, value in below["model"].items() if key != "activation"}
    return _joined(below, above)


def _joined(below: Tree, above: Tree) -> Tree:
    joined = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(joined.get(key), dict)
        joined[key] = _joined(joined[key], value) if both else value
    return joined


def _name(tree: Tree, section: str) -> Any:  # noqa: ANN401
    values = tree.get(section)
    return values.get("name") if isinstance(values, dict) else None


def _text(recipe: str) -> tuple[str, str]:
    path = Path(recipe)
    if path.suffix == ".safetensors":
        raise RecipeError(f"{recipe} is a file of weights, not a recipe: `dyart evaluate {recipe}` measures it")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), path.stem
        except OSError as error:
            raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
        except ValueError as error:
            raise RecipeError(f"the recipe {path} is no text in UTF-8: {error}") from error
    if (path / "config.yaml").is_file():
        raise RecipeError(
            f"{recipe} is a run: `dyart train --resume` goes on with it, {path / 'config.yaml'} as recipe with another "
            "--out repeats it, and `dyart report` compares it with others"
        )
    packaged = resources.files("dyart.recipes") / f"{recipe}.yaml"
    if path.is_dir() and not packaged.is_file():
        raise RecipeError(f"{recipe} is a folder, and no run: it has no config.yaml. Name a recipe (`dyart recipes`)")
    if not packaged.is_file():
        near = get_close_matches(recipe, names(), 3, 0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError(f"no recipe {recipe!r}.{hint} `dyart recipes` lists them; a path to a .yaml file works, too")
    return packaged.read_text(encoding="utf-8"), recipe


def _bases(recipe: str, value: Any) -> list[str]:  # noqa: ANN401
    bases = [value] if isinstance(value, str) else value
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise RecipeError(f"base in the recipe {recipe} must be a recipe or a list of them, got {value!r}")
    return [str(Path(recipe).parent / base) if base.endswith((".yaml", ".yml")) else base for base in bases]


def _words(overrides: Sequence[object] | Mapping[str, object]) -> list[str]:
    """Return overrides as the words of a command line."""
    if isinstance(overrides, str):
        return shlex.split(overrides)
    if isinstance(overrides, Mapping):
        return [f"--{key.removeprefix('--')}={_written(value)}" for key, value in overrides.items()]
    return [_written(value) for value in overrides]


def _written(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, default=str)


def _from_arguments(arguments: Sequence[str]) -> Tree:
    import yaml

    tree: Tree = {}
    # Names and places are as they are written, also 123 or 2026-01-31, in which YAML sees a number and a day.
    texts = {key for key, kind in keys(Config().method["name"]).items() if kind in (str, str | None)}
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--") or word == "--":
            raise RecipeError(f"expected --key value, got {word!r}")
        key, given, value = word[2:].partition("=")
        if not given:
            if not waiting or (waiting[0].startswith("--") and len(waiting[0]) > 2):
                raise RecipeError(f"--{key} needs a value: --{key} VALUE")
            value = waiting.pop(0)
        branch: Any = value
        if key not in texts or value in ("", "null", "~"):
            with suppress(yaml.YAMLError):
                branch = yaml.safe_load(value)
        for part in reversed(key.split(".")):
            branch = {part: branch}
        tree = _joined(tree, branch)  # in any order: a method's name and its settings belong together
    return tree


def _as_meant(tree: Tree, known: dict[str, Any], prefix: str = "") -> Tree:
    """Return the tree with ``2/255,8/255`` as a list where one belongs, and YAML's on and off as the words."""
    done: Tree = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            done[key] = _as_meant(value, known, f"{prefix}{key}.")
        elif "list[" in str(known.get(prefix + key, "")) and isinstance(value, str | int | float):
            done[key] = [part.strip() for part in str(value).split(",")]
        elif isinstance(value, bool) and "off" in get_args(known.get(prefix + key)):
            done[key] = "on" if value else "off"
        else:
            done[key] = value
    return done


def _check_kinds(tree: Tree, known: dict[str, Any], prefix: str = "") -> None:
    """Refuse what the parser lets through: no value where one is needed, and true or a group for a number."""
    for key, value in tree.items():
        name = prefix + key
        if name not in known:
            _check_kinds(value, known, f"{name}.")
        elif value is None and type(None) not in get_args(known[name]):
            raise RecipeError(f"{name} needs a value, got null")
        elif known[name] in (Radius, Radius | None) and isinstance(value, bool | list | dict):
            raise RecipeError(f"{name} must be a number such as 0.03 or 8/255, got {value!r}")


def _leaves(tree: Tree, known: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in known:
            found += _leaves(value, known, f"{name}.") or [name]
        else:
            found.append(name)
    return [name for name in found if name not in SECTIONS and name != "method"]


def _unknown(key: str, known: dict[str, Any], method: str) -> str:
    near = get_close_matches(key, known, 1, 0.5)
    if not near:
        last = {name.rpartition(".")[2]: name for name in known}
        near = [last[match] for match in get_close_matches(key.rpartition(".")[2], last, 1, 0.6)]
    hint = f"; did you mean {near[0]}?" if near else ""
    of = f" of the method {method!r}" if key.startswith("method.") else ""
    python = " (an object of Python, not a value of a recipe)" if key.rpartition(".")[2] in NOT_IN_RECIPES else ""
    return f"no key {key}{of}{python}{hint} `dyart train RECIPE --help` lists all"


def _readable(message: str) -> str:
    """Return an error of the parser on one line, in the words of a recipe."""
    key, found, radius = message.partition("Not of type Radius:")
    if found:
        name = key.split(":")[0].removeprefix("Parser key ").strip('"')
        return f"{name}:{radius.splitlines()[0]}"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    joined = " ".join(line.rstrip(".") if line.startswith("Parser key") else line for line in lines)
    for old, new in (("Parser key ", ""), ("<class '", ""), ("'>", ""), ("typing.", ""), ("dyart.attacks.radius.", "")):
        joined = joined.replace(old, new)
    return joined


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return what YAML and JSON can write, as it would be typed."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if callable(getattr(value, "tolist", None)):  # an array, a tensor, a number of either
        return value.tolist()
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, Radius):
        # A fraction stays one; a decimal is a plain number.
        return value.text if "/" in value.text else float(value)
    return value
