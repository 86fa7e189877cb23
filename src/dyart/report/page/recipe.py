"""Which recipe a run is of, in words: its note is about its own values, not about those of a run that changed some."""

import json
from typing import Any

from dyart.recipes.config import Config
from dyart.recipes.load import dump, flat, names, resolve
from dyart.recipes.parser import build_parser
from dyart.report.page.run import Run
from dyart.report.page.words import listed

# About places and the machine, or said elsewhere on the card: a run with others is still that of the recipe.
NO_VALUES = {"recipe", "note", "out", "seed", "data.root", "data.residency", "train.device"}
FIRST = ("data.name", "model.name", "method.name", "train.epochs", "train.burn_in")


def of_recipe(run: Run) -> str:
    """Return the recipe's name with its note where a run has all of its values; otherwise every value that differs.

    A recipe of the user's own is not looked for: the run knows its name alone, and the file may have changed since.
    """
    name, note = str(run.config.get("recipe") or ""), str(run.config.get("note") or "")
    if not name:
        return f"Note: {note}" if note else ""
    if name not in names():
        told = f" Its note: {note}" if note else ""
        return f"Recipe {name}, which is not dyart's own and was not compared with this run.{told}"
    own = _values(name)
    changed = _changed(run.config, own)
    if note == own["note"] and not changed:
        return f"Recipe {name}: {note}"
    words = f"Built on the recipe {name}, with {listed(changed)}." if changed else f"Recipe {name}."
    return words if note in ("", own["note"]) else f"{words} The note in its config.yaml: {note}"


def _values(name: str) -> dict[str, Any]:
    """Return all values of a recipe of this package, defaults included, as a run's config.yaml has them."""
    import yaml

    return flat(yaml.safe_load(dump(resolve(name))))


def _changed(config: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """Return the settings that differ from the recipe's, as they would be typed, the main ones first."""
    keys = [key for key in dict.fromkeys((*FIRST, *config)) if key in config and key not in NO_VALUES]
    note = ""
    if config.get("method.name") != own["method.name"]:
        # Another method has settings of its own, to which its own defaults are compared, and not the recipe's.
        defaults = _defaults(str(config.get("method.name")))
        note = " (and its own settings)" if defaults is None else " (its own defaults but for what is said)"
        known = {"method.name": None} | (defaults or {})
        keys = [key for key in keys if not key.startswith("method.") or key in known]
        own = {key: value for key, value in own.items() if not key.startswith("method.")} | known
    keys = [key for key in keys if key not in own or config[key] != own[key]]
    return [f"{key} {_typed(config[key])}{note if key == 'method.name' else ''}" for key in keys]


def _defaults(name: str) -> dict[str, Any] | None:
    """Return the default settings of a method, as a run's config.yaml has them; None where its class is not here."""
    import yaml

    try:
        values = build_parser(name).parse_object({"method": {"name": name}}).as_dict()["method"]
    except Exception:  # somebody's code, which may be gone by now or fail in any way: the page does without
        return None
    found = flat(yaml.safe_load(dump(Config(method=values))))
    return {key: value for key, value in found.items() if key.startswith("method.") and key != "method.name"}


def _typed(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list):
        return ",".join(_typed(part) for part in value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
