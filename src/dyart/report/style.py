"""How figures look: sized for the columns of a paper, with colours that colour-blind readers can tell apart."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dyart.attacks.radius import Radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

# Inches: one and both columns of the usual two-column paper.
COLUMN, PAGE = 3.35, 6.9
# Of a bold title, in an inch.
LETTERS = 11
# Okabe and Ito's; the last two are Paul Tol's.
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
WINE, OLIVE = "#882255", "#999933"
GREY, BLACK = "#7F7F7F", "#222222"
AWAY, TOWARDS = BLUE, RED
COLOURS = (ORANGE, BLUE, GREEN, PURPLE, SKY, RED, WINE, OLIVE)
# Methods keep their colour from figure to figure.
METHOD_COLOURS = {"at": ORANGE, "dyart": BLUE, "trades": GREEN, "natural": GREY, "mart": PURPLE, "mma": SKY}
METHOD_COLOURS |= {"mail-trades": RED, "gairat": WINE, "fat-trades": OLIVE}
METHOD_NAMES = {"at": "AT", "dyart": "DyART", "trades": "TRADES", "mart": "MART", "mma": "MMA", "gairat": "GAIRAT"}
METHOD_NAMES |= {"fat": "FAT", "mail-at": "MAIL-AT", "mail-trades": "MAIL-TRADES", "fat-trades": "FAT-TRADES"}
METHOD_NAMES |= {"at-awp": "AT-AWP", "trades-awp": "TRADES-AWP", "dyart-awp": "DyART-AWP"}

# What theta' is, by the setting of measured dynamics: theta' = -nabla L, in letters that can be searched for.
UPDATES = {"gradient": "\u03b8\u2032 = \u2212\u2207L", "optimizer": "the optimizer's step"}

FORMATS = (".pdf", ".svg", ".png")
# In the metadata of a picture: whose it is, for whoever is about to replace it.
DRAWN = "drawn by dyart"
METADATA: dict[str, dict[str, Any]] = {
    ".pdf": {"Creator": DRAWN, "CreationDate": None},
    ".svg": {"Creator": DRAWN, "Date": None},
    ".png": {"Software": DRAWN},
}
DPI = 300
SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # letters that journals accept and people can search for
    "svg.fonttype": "none",
    "svg.hashsalt": "dyart",  # the same picture is the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in this style: what is made inside has it, nothing outside changes."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def save(figure: "Figure", path: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure in every format, beside each other; a suffix of ``path`` that names a format does not count."""
    import matplotlib

    written = pictures(path, formats)
    written[0].parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):  # fonts of SVG and PDF are chosen while writing
        for file in written:
            figure.savefig(file, dpi=DPI, metadata=METADATA.get(file.suffix, {}))
    return written


def pictures(path: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Return the files that :func:`save` writes."""
    path = Path(path)
    stem = path.stem if path.suffix in FORMATS else path.name  # not a name with a point in it, as in radius-0.1
    return [path.with_name(stem + suffix) for suffix in formats]


def foreign(path: str | Path) -> Path | None:
    """Return a picture that :func:`save` would replace, though it did not draw it; None where there is none."""
    there = filter(Path.is_file, pictures(path))
    return next((file for file in there if DRAWN.encode() not in file.read_bytes()), None)


def check_update(update: str | None) -> None:
    """Raise unless an update is one that there are words for, or None."""
    if update is not None and update not in UPDATES:
        raise ValueError(f"update must be one of {', '.join(map(repr, UPDATES))}, or None; got {update!r}")


def as_array(values: "np.ndarray | Tensor") -> np.ndarray:
    """Return numbers as an array: a tensor may be on any device, of any precision, and part of a graph."""
    if isinstance(values, np.ndarray):
        return values
    if callable(getattr(values, "detach", None)):
        return np.asarray(values.detach().cpu().double().numpy())
    return np.asarray(values, dtype=np.float64)


def title(words: str, inches: float) -> str:
    """Return the title of a panel that is so wide, in as many lines as that takes: it must not reach into the next."""
    return textwrap.fill(words, max(round(LETTERS * inches), 1))


def method_colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour per method: its own, or one that no other of them has."""
    own = {name: METHOD_COLOURS[name] for name in names if name in METHOD_COLOURS}
    free = cycle([colour for colour in COLOURS if colour not in own.values()] or COLOURS)
    return {name: own.get(name) or next(free) for name in names}


def method_name(name: str) -> str:
    """Return a method's name as papers write it."""
    return METHOD_NAMES.get(name, name)


def radius_words(radius: float) -> str:
    """Return a radius as it was given: 8/255 or a decimal."""
    return str(radius) if isinstance(radius, Radius) else f"{radius:.4g}"
