"""The settings of a method's class: the arguments of its constructor, and of those that it passes the rest on to."""

import inspect
import typing

KEYWORDS = inspect.Parameter.VAR_KEYWORD


def settings_of(cls: type) -> list[inspect.Parameter]:
    """Return the arguments of a class's constructor, ``self`` aside, their types evaluated.

    ``**settings`` stands for the arguments of the class that it is built on, to whose constructor they go; it is
    returned as it is where there is no such class.
    """
    found: dict[str, inspect.Parameter] = {}
    rest: inspect.Parameter | None = None
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is None or base is object:
            continue
        hints, rest = typing.get_type_hints(constructor), None
        for parameter in list(inspect.signature(constructor).parameters.values())[1:]:
            if parameter.kind is KEYWORDS:
                rest = parameter
            else:
                found.setdefault(
                    parameter.name, parameter.replace(annotation=hints.get(parameter.name, parameter.empty))
                )
        if rest is None:
            break
    # In the order in which Python takes their kinds.
    return sorted(found.values(), key=lambda parameter: parameter.kind) + ([] if rest is None else [rest])
