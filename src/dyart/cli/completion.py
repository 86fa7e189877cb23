"""``dyart completion``: a script that lets a shell complete commands, options and names.

The script holds all words itself: asking Python for them would take a second at every key.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from dyart.cli.parsers import Commands, every_parser, helps

HELP = """\
to have it in every new shell:
  bash  dyart completion bash > ~/.local/share/bash-completion/completions/dyart    (needs bash-completion)
        or, in ~/.bashrc: source FILE, with FILE written by `dyart completion bash > FILE`
  zsh   dyart completion zsh > FOLDER/_dyart, with `fpath+=FOLDER` before compinit in ~/.zshrc
  fish  dyart completion fish > ~/.config/fish/completions/dyart.fish
Write it anew after an update of dyart.
"""


class Command(NamedTuple):
    """What can follow a command."""

    path: str
    """Its name, e.g. ``train`` or ``data get``; "" is ``dyart`` alone."""
    options: dict[str, str]
    """Options and what they mean."""
    values: dict[str, tuple[str, ...]]
    """What an option that takes a value can be given; nothing known: ()."""
    words: dict[str, str]
    """What can stand by itself, and what it means: commands, names of recipes."""


def add_completion(commands: Commands, build: Callable[[], argparse.ArgumentParser]) -> None:
    """Add ``dyart completion``; ``build`` makes the parser to describe."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in bash, zsh or fish",
        description="Print a script that completes commands, options and names of recipes and data sets.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=lambda options: _completion(options, build))


def _completion(options: argparse.Namespace, build: Callable[[], argparse.ArgumentParser]) -> None:
    from dyart.cli import completion_scripts

    print(getattr(completion_scripts, options.shell)(described(build())), end="")


def described(parser: argparse.ArgumentParser) -> list[Command]:
    """Return every command of a parser, ``dyart`` alone first."""
    return [_command(path, sub) for path, sub in [("", parser), *every_parser(parser)]]


def _command(path: str, parser: argparse.ArgumentParser) -> Command:
    options: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    words = dict(helps(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        known = _known(action)
        if not action.option_strings:
            words |= dict.fromkeys(known, "")
        for option in action.option_strings:
            options[option] = _brief(action.help)
            if action.nargs != 0:
                values[option] = known
    if path in ("train", "compare"):
        keys = _keys()
        options |= keys
        values |= {**dict.fromkeys(keys, ()), "--data.name": _data(), "--model.name": _models(), **_methods()}
    return Command(path, options, values, words)


def _known(action: argparse.Action) -> tuple[str, ...]:
    """Return the values that an argument is known to take."""
    from dyart.recipes import names

    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.dest in ("recipe", "recipes"):
        return tuple(names())
    if action.dest in ("data", "name"):
        return _data()
    if action.dest == "model":
        return _models()
    if action.dest == "device":
        return ("auto", "cpu", "cuda")
    return _methods()["--method.name"] if action.dest in ("method", "against") else ()


def _keys() -> dict[str, str]:
    """Return the keys of all recipes as options."""
    from dyart.methods.base import registered
    from dyart.recipes.parser import keys

    return {f"--{key}": "a key of the recipe" for method in registered() for key in keys(method)}


def _methods() -> dict[str, tuple[str, ...]]:
    from dyart.methods.base import registered

    return {"--method.name": tuple(registered())}


def _data() -> tuple[str, ...]:
    from dyart.data.mini import MINI
    from dyart.data.registry import REGISTRY
    from dyart.data.toy import DRAW

    return (MINI, *REGISTRY, *DRAW)


def _models() -> tuple[str, ...]:
    from dyart.models import NAMES

    return tuple(NAMES)


def _brief(text: str | None) -> str:
    """Return the beginning of a help text, without what argparse would fill in."""
    first = " ".join((text or "").split()).partition(" (default")[0].partition("; ")[0]
    return first.replace("%%", "%")
