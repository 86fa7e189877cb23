"""Which runs a user names."""

from collections.abc import Sequence
from pathlib import Path

from dyart.engine.stored import CONFIG


def runs_in(places: Sequence[Path]) -> list[Path]:
    """Return folders of runs: those that are named, and in place of one that is no run itself those inside of it."""
    found = []
    for place in places:
        inside = [] if (place / CONFIG).is_file() else sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
        found += inside or [place]
    return found
