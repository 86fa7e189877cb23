"""What ``dyart recipes`` shows: every recipe, and what it is for."""

from difflib import get_close_matches
from fnmatch import fnmatchcase

from dyart.recipes.load import RecipeError, names, read


def table(pattern: str | None = None) -> list[tuple[str, str]]:
    """Return name and note of the recipes of this package, by name.

    Args:
        pattern: None for all; a part of the name or the note (``gn-dyart``, ``Table 7``), in any case; or, with ``*``,
            ``?`` or ``[``, what the whole name must look like (``*-at``).

    Raises:
        RecipeError: nothing fits; the message names what is near.
    """
    notes = [(name, str(read(name).get("note", ""))) for name in names()]
    if pattern is None:
        return notes
    found = [(name, note) for name, note in notes if _fits(pattern.lower(), name, note)]
    if not found:
        near = get_close_matches(pattern.lower(), names(), 3, 0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError(f"no recipe fits {pattern!r}.{hint} `dyart recipes` without a pattern lists all")
    return found


def _fits(pattern: str, name: str, note: str) -> bool:
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(name, pattern)
    return pattern in name or pattern in note.lower()
