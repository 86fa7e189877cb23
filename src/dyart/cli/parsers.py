"""An argument parser whose errors are one line that names the nearest right word."""

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from dyart.attacks.radius import Radius
from dyart.cli.errors import WRONG

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DEBUG = "show the traceback of an error"


class Parser(argparse.ArgumentParser):
    """As argparse's, with errors in one line on stderr: what was wrong, the nearest right word, where help is."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401
        """Also take -8/255 and -1,2 for values, so that what reads them can say what is wrong with them."""
        super().__init__(*arguments, **settings)
        self._negative_number_matcher = re.compile(r"^-[\d.][\d.,/eE+-]*$")

    def error(self, message: str) -> NoReturn:
        """Leave with status 2."""
        words = _plain(message)
        self.exit(WRONG, f"{self.prog}: {words}{'' if words.endswith('?') else ';'} see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"no command {str(value)!r}{did_you_mean(str(value), known)}")
        message = f"{value!r} is none of {', '.join(known)}{did_you_mean(str(value), known)}"
        raise argparse.ArgumentError(action, message)


def names(text: str) -> list[str]:
    """Return what stands between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def radii(text: str) -> list[Radius]:
    """Return the radii in a list such as ``2/255,8/255``.

    Raises:
        argparse.ArgumentTypeError: one of them is none.
    """
    try:
        return [Radius(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def file_path(text: str) -> Path:
    """Return the path of a file to be written.

    Raises:
        argparse.ArgumentTypeError: it is written as that of a folder, whose slash a path would lose.
    """
    if text.endswith(("/", os.sep)):
        raise argparse.ArgumentTypeError(f"{text} is a folder: name the file")
    return Path(text)


def picture_size(text: str) -> tuple[int, int]:
    """Return the width and height that ``64`` or ``64x48`` means.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})(?:[xX*]([1-9]\d{0,4}))?", text.replace(" ", ""), re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"pixels are needed, e.g. 64, or 64x48 for width and height; got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def with_values(words: Sequence[str]) -> list[str]:
    """Return words with every setting of a method, ``--at.radius 0.1``, in one: its value is no place of a run."""
    joined: list[str] = []
    for word in words:
        last = joined[-1] if joined else ""
        waits = last.startswith("--") and "." in last and "=" not in last
        if waits and not word.startswith("--"):
            joined[-1] = f"{last}={word}"
        else:
            joined.append(word)
    return joined


def did_you_mean(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return ``; did you mean X?`` for the nearest of the known words; "" if none is ``alike`` enough, from 0 to 1."""
    near = get_close_matches(word, list(known), 1, alike)
    return f"; did you mean {near[0]}?" if near else ""


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands, by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: sub for action in actions for name, sub in action.choices.items()}


def every_parser(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield all parsers of commands, and of commands of commands, with their paths, e.g. ``data get``."""
    for name, sub in subparsers(parser).items():
        here = f"{path} {name}".strip()
        yield here, sub
        yield from every_parser(sub, here)


def helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return what a parser's commands are for, by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {entry.dest: entry.help or "" for action in actions for entry in action._choices_actions}


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Let ``--debug`` be before the command and after it."""
    parser.add_argument("--debug", action="store_true", help=DEBUG)
    for _, sub in every_parser(parser):
        # No default of its own: it would take back what was said before the command.
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)


def refuse_near_flags(parser: argparse.ArgumentParser, command: str, words: list[str], keys: Iterable[str]) -> None:
    """Leave because of a misspelt flag among the keys of a recipe, e.g. ``--quiett``."""
    own = [option for option in subparsers(parser)[command]._option_string_actions if option.startswith("--")]
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and "." not in flag and flag[2:] not in keys and did_you_mean(flag, own, 0.75):
            refuse(parser, command, [flag])


def refuse(parser: argparse.ArgumentParser, command: str | None, words: list[str]) -> NoReturn:
    """Leave because of words that a command does not know."""
    chosen = subparsers(parser)[command] if command else parser
    known = {option for _, sub in every_parser(chosen, "") for option in sub._option_string_actions}
    known |= set(chosen._option_string_actions)
    first = next((word for word in words if word.startswith("-")), words[0])
    chosen.error(f"unknown: {' '.join(words)}{did_you_mean(first.partition('=')[0], sorted(known))}")


def _plain(message: str) -> str:
    """Return argparse's words in ours."""
    for old, new in (
        (r"^argument ", ""),
        (r"invalid (?:int|_?count) value: (.*)", r"a whole number is needed, got \1"),
        (r"invalid float value: (.*)", r"a number is needed, got \1"),
        (r"^the following arguments are required: (.*)", r"\1 is missing"),
        (r"expected one argument", "a value is needed"),
        (r"expected at least one argument", "at least one value is needed"),
    ):
        message = re.sub(old, new, message)
    return message
