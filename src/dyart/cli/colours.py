"""Colours for a terminal, and none for a file, a pipe, ``NO_COLOR`` or a terminal that has none."""

import os
from typing import TextIO

CODES = {"green": "32", "yellow": "33", "red": "31", "bold": "1"}


def coloured(stream: TextIO) -> bool:
    """Return whether colours belong on a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return the text in a colour, if colours belong on the stream."""
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if coloured(stream) else text
