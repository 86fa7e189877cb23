"""Pictures inside the page: sheets of examples, and per run a sheet of the ways to their boundary points.

Examples are lossless, so that the page can show them as they are, and stored once however many runs measured them. A
way to the boundary has few levels, as large as its own largest change: the page adds it to the example to show the
point, and enlarges it to show the difference.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dyart.report.page.files import Pictures
from dyart.report.page.markup import script_json

# Pixels of one example on a sheet: larger ones are made smaller.
LARGEST = 96
COLUMNS = 48
GALLERY = 24
# Of a change, on either side of none. Most pixels change by the most that is allowed or not at all.
LEVELS = 15
# Multiples of it spread evenly between 0 and 1: keeps the same share of all examples, and the same ones in every run.
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class Wanted:
    """The pictures of one run, and the examples that the page shows: their names and margins."""

    pictures: Pictures
    index: np.ndarray
    margin: np.ndarray


@dataclass
class Pool:
    """Examples of one size, each once."""

    images: list[np.ndarray] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)

    def place(self, image: np.ndarray) -> int:
        """Return the place of an image, which is added if it is new."""
        key = image.tobytes()
        if key not in self.places:
            self.places[key] = len(self.images)
            self.images.append(image)
        return self.places[key]


def sheets(runs: Sequence[Wanted], budget: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the pictures of all runs within a budget of bytes, as plain values for the page's script.

    While they are too many, some are left out, the same ones in every run; the most vulnerable of each stay, since the
    gallery shows them.

    Returns:
        The sheets of examples; and per run, or for none where not even the gallery fits, its ``place`` by example (-1:
        no picture) and its ``sheet``.
    """
    share = 1.0
    while True:
        examples, entries = _made(runs, share)
        size = len(script_json([examples, entries]))
        if size <= budget:
            return examples, entries
        if share == 0:
            return [], []
        share *= min(0.95, 0.98 * max(budget, 0) / size)
        share = share if share > 0.01 else 0.0


def _made(runs: Sequence[Wanted], share: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    pools: dict[tuple[int, ...], Pool] = {}
    entries = []
    for run in runs:
        rows = _kept(run, share)
        chosen = rows[rows >= 0]
        images, steps = _small(run.pictures.inputs[chosen]), run.pictures.steps[chosen].astype(np.float32)
        pool = pools.setdefault(images.shape[1:], Pool())
        largest = np.abs(steps).max(axis=(1, 2, 3), initial=0)
        full = LEVELS * steps / np.where(largest > 0, largest, 1)[:, None, None, None]
        made = {
            "examples": list(pools).index(images.shape[1:]),
            "at": [pool.place(image) for image in images],
            "steps": _uri(_tiled(_small((np.rint(full) + 128).astype(np.uint8)))),
            "levels": LEVELS,
            "reach": (largest * run.pictures.unit[chosen]).tolist(),
        }
        places = np.where(rows >= 0, np.cumsum(rows >= 0) - 1, -1)
        entries.append({"place": places.tolist(), "sheet": made})
    return [_examples(np.array(pool.images)) for pool in pools.values()], entries


def _kept(run: Wanted, share: float) -> np.ndarray:
    """Return the row of the picture of every example; -1 where there is none, or where it is left out."""
    found = {int(name): row for row, name in enumerate(run.pictures.index)}
    rows = np.array([found.get(int(name), -1) for name in run.index], dtype=np.int64)
    kept = (run.index * GOLDEN) % 1 < share
    kept[np.argsort(run.margin, kind="stable")[:GALLERY]] = True
    return np.where(kept, rows, -1)


def _examples(images: np.ndarray) -> dict[str, Any]:
    count, channels, height, width = images.shape
    facts = {"width": width, "height": height, "columns": COLUMNS, "count": count, "grey": channels == 1}
    return {"uri": _uri(_tiled(images))} | facts


def _small(images: np.ndarray) -> np.ndarray:
    """Return images ``[M, 1 or 3, H, W]`` of at most ``LARGEST`` pixels a side."""
    from PIL import Image

    images = images[:, :3] if images.shape[1] >= 3 else images[:, :1]
    side = max(images.shape[-2:])
    if side <= LARGEST:
        return images
    size = tuple(max(1, round(length * LARGEST / side)) for length in reversed(images.shape[-2:]))
    planes = [[np.asarray(Image.fromarray(plane).resize(size)) for plane in image] for image in images]
    return np.array(planes, dtype=np.uint8)


def _tiled(images: np.ndarray) -> np.ndarray:
    """Return one large image ``[H, W, 3]`` (or ``[H, W]`` of grey ones), examples from left to right."""
    count, channels, height, width = images.shape
    lines = -(-count // COLUMNS)
    full = np.zeros((lines * COLUMNS, channels, height, width), dtype=np.uint8)
    full[:count] = images
    tiled = full.reshape(lines, COLUMNS, channels, height, width).transpose(0, 3, 1, 4, 2)
    tiled = tiled.reshape(lines * height, COLUMNS * width, channels)
    return np.ascontiguousarray(tiled[..., 0] if channels == 1 else tiled)


def _uri(image: np.ndarray) -> str:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, "WEBP", lossless=True, method=4)
    return "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode("ascii")
