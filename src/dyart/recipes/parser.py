"""The typed parser behind a configuration: one argument per key, from the dataclasses and the method's constructor."""

import dataclasses
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any

from dyart.attacks.radius import Radius
from dyart.methods.base import Method, find
from dyart.methods.constructor import settings_of
from dyart.recipes.config import SECTIONS, Config

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

# Arguments of a method that are objects of Python, not values of a recipe.
NOT_IN_RECIPES = {"search_model", "cost", "bounds"}


def build_parser(method: str) -> "ArgumentParser":
    """Return a parser that knows every key of a configuration with this method, its type, default and meaning."""
    from jsonargparse import ArgumentParser
    from jsonargparse.typing import register_type

    register_type(Radius, str, Radius, fail_already_registered=False)
    parser = ArgumentParser(prog="dyart train", exit_on_error=False)
    _add_fields(parser, "", Config, skip={"method", *SECTIONS})
    for section, cls in SECTIONS.items():
        _add_fields(parser, f"{section}.", cls)
    _add_method(parser, find(method), method)
    return parser


def keys(method: str) -> dict[str, Any]:
    """Return every key of a configuration with this method, and its type."""
    found = {name: _type(kind) for name, kind in _hints(Config).items() if name not in {"method", *SECTIONS}}
    for section, cls in SECTIONS.items():
        found |= {f"{section}.{name}": _type(kind) for name, kind in _hints(cls).items()}
    return (
        found | {"method.name": str} | {f"method.{name}": _type(p[0]) for name, p in _arguments(find(method)).items()}
    )


def _add_fields(parser: "ArgumentParser", prefix: str, cls: type[Any], skip: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    meaning, hints = _meanings(cls), _hints(cls)
    for entry in dataclasses.fields(cls):
        if entry.name in skip:
            continue
        factory = entry.default_factory
        default = entry.default if factory is dataclasses.MISSING else factory()
        _add(parser, prefix + entry.name, hints[entry.name], default, meaning.get(entry.name, ""))


def _add_method(parser: "ArgumentParser", cls: type[Method[Any]], name: str) -> None:
    parser.add_argument("--method.name", type=str, default=name, help="the training method")
    # A setting that is passed on to the class that this one is built on is explained there.
    meaning = {
        key: text for base in reversed(cls.__mro__) if issubclass(base, Method) for key, text in _meanings(base).items()
    }
    for argument, (kind, default) in _arguments(cls).items():
        _add(parser, f"method.{argument}", kind, default, meaning.get(argument, ""))


def _add(parser: "ArgumentParser", key: str, kind: Any, default: Any, meaning: str) -> None:  # noqa: ANN401
    parser.add_argument(f"--{key}", type=_type(kind), default=_written(default), help=meaning)


def _arguments(cls: type[Method[Any]]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of every hyper-parameter of a method.

    Raises:
        ValueError: an argument of its constructor is no key of a recipe; the message says what it lacks.
    """
    parameters = settings_of(cls)
    for parameter in parameters:
        if lack := _lack(parameter):
            raise ValueError(f"the method {cls.__module__}.{cls.__qualname__}: its argument {parameter} {lack}")
    return {p.name: (p.annotation, p.default) for p in parameters if p.name not in NOT_IN_RECIPES}


def _lack(parameter: inspect.Parameter) -> str:
    """Return what an argument lacks to be a key of a recipe, and what to do; "" if nothing."""
    name = parameter.name
    if name == "name":
        return "is called as the method's own name in a recipe: call it otherwise"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return "can be anything: name every setting, with its type and default"
    if name not in NOT_IN_RECIPES and parameter.annotation is parameter.empty:
        return f"needs a type, by which recipes read it: write `{name}: float = ...` (or int, bool, str, Literal[...])"
    if parameter.default is parameter.empty:
        return f"needs a default, since a recipe may leave it out: write `{parameter} = ...`"
    return ""


def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _type(kind: Any) -> Any:  # noqa: ANN401
    """Return the type that reads a value of this kind: floats may be written as fractions."""
    if kind is float:
        return Radius
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.Union[tuple(_type(part) for part in arguments)]  # noqa: UP007
    if typing.get_origin(kind) is list:
        return list[_type(arguments[0])]  # type: ignore[misc]
    return kind


def _written(value: Any) -> Any:  # noqa: ANN401
    """Return a default as a person would write it: multiples of 1/255 as such, but 0.2, and 1/3."""
    if isinstance(value, list):
        return [_written(part) for part in value]
    if isinstance(value, float) and not isinstance(value, Radius):
        text = repr(value)
        fractions = [f"{round(value * below)}/{below}" for below in (3, 255) if round(value * below) / below == value]
        return Radius(min([text, *fractions[:1]], key=len))
    return value


def _meanings(cls: type[Any]) -> dict[str, str]:
    """Return what the ``Args:`` part of a docstring says of every argument."""
    text = inspect.getdoc(cls) or ""
    _, found, part = text.partition("Args:\n")
    meanings: dict[str, str] = {}
    name = ""
    for line in part.splitlines() if found else []:
        if not line.strip():
            break
        if not line.startswith(" " * 8):
            name, _, line = line.strip().partition(":")
        meanings[name] = f"{meanings.get(name, '')} {line.strip()}".strip()
    return meanings
