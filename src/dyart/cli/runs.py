"""Which runs a user names."""

from collections.abc import Sequence
from pathlib import Path

from dyart.engine.stored import CONFIG


def runs_in(places: Sequence[Path], marks: Sequence[str] = (CONFIG,)) -> list[Path]:
    """Return folders of runs: those that are named, and in place of one that is no run itself those inside of it.

    Args:
        places: what is named.
        marks: files one of which every such folder has.
    """
    found = []
    for place in places:
        itself = any((place / mark).is_file() for mark in marks)
        inside = [] if itself else sorted({path.parent for mark in marks for path in place.glob(f"*/{mark}")})
        found += inside or [place]
    return found
