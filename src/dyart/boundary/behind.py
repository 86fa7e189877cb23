"""The networks behind a model that is none itself: a function, a partial, an object that is called."""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

# Steps from the model to a network: a function in a partial in an attribute in a closure, and so on.
DEPTH = 6
# Of a list, as an ensemble is: more are rarely networks. And of all there is at one step, as in lists of lists.
MANY, MOST = 64, 4096
# A name, what it refers to, and the attributes of that which the code around it names.
Reference = tuple[str, object, set[str]]


def networks_behind(model: Callable[..., Any]) -> dict[str, nn.Module]:
    """Return the networks that a callable refers to, by the names of variables and attributes, or of their classes.

    Through functions and what they close over, partials, decorators that keep what they wrap, methods and attributes
    that the code names, and lists of all these. A network is not looked into, and a network's method has none behind.
    """
    if isinstance(getattr(model, "__self__", model), nn.Module):
        return {}
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    level: list[Reference] = [("", model, {"__call__"})]
    for _ in range(DEPTH):
        behind: list[Reference] = []
        for name, value, used in level:
            if isinstance(value, nn.Module):
                if all(value is not other for other in found.values()):
                    found[name or type(value).__name__] = value
            elif not isinstance(value, FunctionType) or id(value) not in seen:
                seen.add(id(value))
                behind += _references(name, value, used)
        level = behind[:MOST]
    return found


def _references(name: str, value: object, used: set[str]) -> Iterator[Reference]:
    """Yield what a value refers to."""
    if isinstance(value, FunctionType):
        code_names = _names(value.__code__)
        yield from ((key, each, code_names) for key, each in _variables(value).items())
        yield from (("", each, {"__call__"}) for each in _wrapped(value))
    elif isinstance(value, functools.partial):
        named = [*(("", each) for each in (value.func, *value.args)), *value.keywords.items()]
        yield from ((key, each, {"__call__"}) for key, each in named)
    elif isinstance(value, MethodType):
        yield "", value.__func__, used
        yield "", value.__self__, _names(getattr(value.__func__, "__code__", None))
    elif isinstance(value, list | tuple | dict):
        items = list(value.values() if isinstance(value, dict) else value)[:MANY]
        yield from ((name, each, used | {"__call__"}) for each in items)
    elif not isinstance(value, type) and not inspect.ismodule(value):
        yield from _attributes(value, used)


def _attributes(value: object, used: set[str]) -> Iterator[Reference]:
    """Yield the attributes of an object that code names, or that its own methods name which are called by it."""
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict):
        return
    names, new = set(used) | {"__call__"}, set(used) | {"__call__"}
    while new:
        methods = [inspect.getattr_static(type(value), name, None) for name in new]
        codes = [each.fget if isinstance(each, property) else each for each in methods]
        more = set().union(*(_names(getattr(each, "__code__", None)) for each in codes))
        names, new = names | more, more - names
    for each in _wrapped(value):
        yield "", each, {"__call__"}
    yield from ((name, each, names) for name, each in held.items() if name in names)


def _variables(function: FunctionType) -> dict[str, Any]:
    """Return the values of the variables that a function takes from elsewhere, its defaults included."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    closed = {name: cell.cell_contents for name, cell in cells if _is_set(cell)}
    names = _names(function.__code__)
    world = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = function.__defaults__ or ()
    defaults = dict(zip(arguments[len(arguments) - len(given) :], given, strict=False))
    return {**world, **closed, **defaults, **(function.__kwdefaults__ or {})}


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a variable that is not set yet
        return False
    return True


def _wrapped(value: object) -> list[object]:
    """Return what a decorator has kept as the function that it wraps."""
    held = getattr(value, "__dict__", None)
    return [held["__wrapped__"]] if isinstance(held, dict) and "__wrapped__" in held else []


def _names(code: object) -> set[str]:
    """Return the names of globals and attributes in code, and in functions that it makes."""
    if not isinstance(code, CodeType):
        return set()
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
