"""HTML and JSON whose text cannot break out of its place."""

import html
import json
import math
from typing import Any

# Elements that have no end.
VOID = {"br", "hr", "img", "input", "meta"}


class Markup(str):
    """Text that is HTML already. Everything else is escaped on its way in."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | bool | int | None) -> Markup:
    """Return an HTML element.

    Children are escaped unless they are ``Markup``. In the names of attributes ``_`` stands for ``-`` and a last one
    is dropped (``class_``); True gives an attribute without value, False and None none.
    """
    words = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    end = "" if tag in VOID else f"</{tag}>"
    return Markup(f"<{' '.join(words)}>{joined(*children)}{end}")


def joined(*children: str) -> Markup:
    """Return children one after the other, escaped unless they are ``Markup``."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def script_json(value: Any) -> str:  # noqa: ANN401
    """Return JSON that may stand inside a ``<script>`` element: no character in it means anything to HTML.

    Numbers have six digits; what is not finite is null, since JSON has no such number.
    """
    text = json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 is escaped, too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
