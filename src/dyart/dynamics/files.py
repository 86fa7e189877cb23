"""The files of measured dynamics: ``dynamics.csv``, ``dynamics.json``, and pictures for a page in ``dynamics.npz``."""

import csv
import io
import math
import zipfile
from pathlib import Path
from typing import Any

from torch import Tensor

from dyart.dynamics.pictures import packed
from dyart.dynamics.shares import Paired, Share, paired, share, shares
from dyart.dynamics.step import Dynamics
from dyart.engine.files import read_object, write_json, write_whole

CSV, JSON, NPZ = "dynamics.csv", "dynamics.json", "dynamics.npz"
PICTURES = 2000
PREFIX = "speed_"
# By which files of earlier measurements are known: how the CSV begins, what the others have.
HEAD = "index,label,rival,margin,alignment,optimal,"
PARTS, ARRAYS = {"radius", "counts", "methods", "tests"}, {"index.npy", "inputs.npy", "points.npy"}


def write(
    measured: Dynamics, folder: Path, settings: dict[str, Any], radius: float, edges: list[float], against: str
) -> dict[str, Any]:
    """Write the three files into a folder and return what the JSON holds.

    Args:
        measured: the dynamics.
        folder: made if it is not there.
        settings: plain values that say how it was measured; ``methods`` in it has a dictionary per method.
        radius: below which an example is vulnerable.
        edges: of the margin intervals.
        against: the method that others are compared with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / CSV, _csv(measured))
    summary = summarize(measured, radius, edges, against)
    for name, entry in settings.get("methods", {}).items():
        summary["methods"][name] |= entry
    summary = {**settings, **summary}
    write_json(folder / JSON, summary)
    if measured.found.inputs.ndim == 4:  # vectors are no pictures
        rows = measured.found.found.nonzero()[:PICTURES, 0]
        write_whole(folder / NPZ, packed(measured.found, measured.index, rows))
    return summary


def foreign(folder: Path) -> Path | None:
    """Return a file of a folder that :func:`write` would replace, though it did not write it; None where there is none.

    Args:
        folder: need not be there.
    """
    own = {CSV: _is_csv, JSON: _is_summary, NPZ: _is_pictures}
    there = {folder / name: is_own for name, is_own in own.items() if (folder / name).is_file()}
    return next((path for path, is_own in there.items() if not is_own(path)), None)


def examples(path: Path) -> int:
    """Return how many examples a ``dynamics.json`` is of; 0 where there is none that can be read."""
    counts = (read_object(path) or {}).get("counts")
    count = counts.get("examples") if isinstance(counts, dict) else None
    return count if isinstance(count, int) else 0


def _is_csv(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().startswith(HEAD)


def _is_summary(path: Path) -> bool:
    return (read_object(path) or {}).keys() >= PARTS


def _is_pictures(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) >= ARRAYS
    except zipfile.BadZipFile:
        return False


def summarize(measured: Dynamics, radius: float, edges: list[float], against: str) -> dict[str, Any]:
    """Return counts, shares of negative speed with Wilson intervals, and paired tests, as plain values."""
    margin, rows = measured.found.margin, measured.counted
    below = rows & (margin < radius)
    methods = {
        name: {
            "below_radius": _plain(share(speed, below)),
            "all": _plain(share(speed, rows)),
            "intervals": [
                {"from": low, "to": None if math.isinf(high) else high} | _plain(part)
                for low, high, part in zip(edges[:-1], edges[1:], shares(margin, speed, rows, edges), strict=True)
            ],
            "largest_speed": float(speed[rows].abs().max()) if rows.any() else None,
        }
        for name, speed in measured.speeds.items()
    }
    tests = [
        {"first": against, "second": name, "where": "below_radius"}
        | _test(paired(measured.speeds[against], speed, below, measured.batch))
        for name, speed in measured.speeds.items()
        if name != against
    ]
    return {"radius": radius, "counts": measured.counts, "methods": methods, "tests": tests}


def _csv(measured: Dynamics) -> str:
    found, rows = measured.found, measured.found.found
    columns: dict[str, Tensor] = {
        "index": measured.index,
        "label": found.labels,
        "rival": found.rival,
        "margin": found.margin,
        "alignment": found.alignment,
        "optimal": measured.counted.int(),
        **{f"{PREFIX}{name}": speed for name, speed in measured.speeds.items()},
        "batch": measured.batch,
    }
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*(values[rows].tolist() for values in columns.values()), strict=True))
    return text.getvalue()


def _plain(part: Share) -> dict[str, Any]:
    low, high = part.interval
    known = None if math.isnan(part.value) else part.value
    return {"negative": part.negative, "count": part.count, "share": known, "low": low, "high": high}


def _test(result: Paired) -> dict[str, Any]:
    return {
        "count": result.count,
        "only_first": result.only_first,
        "only_second": result.only_second,
        "difference": None if math.isnan(result.difference) else result.difference,
        "p_value": result.p_value,
        "batches_first": result.batches_first,
        "batches_second": result.batches_second,
        "p_value_by_batch": result.p_value_by_batch,
    }
