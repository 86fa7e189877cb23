"""Which runs a user names."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dyart.engine.stored import CONFIG


def runs_among(places: Sequence[Path], marks: Sequence[str]) -> list[Path]:
    """Return the folders of runs among what is named, e.g. by ``runs/*``, and say what is left out; all if none is one.

    Args:
        places: what is named.
        marks: files one of which every run's folder, or one in it, has.
    """
    runs = [place for place in places if any(path.is_file() for mark in marks for path in _marked(place, mark))]
    others = [place for place in places if place.exists() and place not in runs]
    if not runs or not others:
        return list(places)
    print(f"left out, since there is no run in it: {', '.join(map(str, others))}", file=sys.stderr)
    return [place for place in places if place not in others]


def _marked(place: Path, mark: str) -> list[Path]:
    # Of a checkpoint, RUN/checkpoints/epoch-0004, the run counts.
    return [place / mark, place.resolve().parent.parent / mark, *place.glob(f"*/{mark}")]


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
