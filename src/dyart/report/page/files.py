"""The files of a run's folder as the page needs them: typed, checked, without what it does not show.

Every reader raises ValueError (or KeyError, OSError) for a file that is not what it should be; the page then says so
and goes on without it.
"""

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dyart.attacks.radius import Radius
from dyart.engine.metrics import Record, damaged_lines, read_metrics
from dyart.evaluation.intervals import wilson

Columns = dict[str, np.ndarray]
QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")
SPEED = "speed_"
NEEDED = {"index", "label", "margin"}


@dataclass(frozen=True)
class Estimate:
    """A share of examples with its 95 % interval; nan of no examples."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Accuracy:
    """What an evaluation measured."""

    attack: str
    norm: str
    data: str
    """Name of the data set, "" where the record does not say it."""
    images: int
    clean: Estimate
    robust: dict[Radius, Estimate]
    alarms: list[str]
    """Reasons to trust the numbers less."""
    folder: str
    """Name of the folder that the record is in."""
    drawn_from: int | None
    """Images of the whole test set, where the record says so."""
    checkpoint: str = ""
    """Name of the checkpoint that it is of, where the record says so."""
    data_digest: str = ""
    """Of the data set's test part, where the record says so."""
    by_class: dict[int, dict[str, float]] = field(default_factory=dict)
    """By label, then by "clean" and by radius as text; empty where the record does not say it."""

    @property
    def partial(self) -> bool:
        """It is known to be of a part of the test set."""
        return self.drawn_from is not None and self.images < self.drawn_from


@dataclass(frozen=True)
class MethodShares:
    """Shares of negative speed under one step of a method: below the radius, and per interval of margins."""

    below: Estimate
    intervals: list[tuple[float, float, Estimate]]


@dataclass(frozen=True)
class Shares:
    """The summary of measured dynamics."""

    radius: Radius
    split: str
    examples: int | None
    methods: dict[str, MethodShares]
    tests: list[dict[str, Any]]
    update: str = ""
    """What moves the boundary: ``gradient``, ``optimizer``, or nothing where the file does not say."""
    step: str = ""
    """The same in words, e.g. the optimizer with its settings."""
    checkpoint: str = ""
    """Name of the checkpoint that they are of, where the file says so."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Examples, uint8 ``[M, C, H, W]``, and the steps to their closest boundary points.

    A step is ``steps * unit`` in grey levels, one unit per example: the steps of the most vulnerable are smaller than
    one level.
    """

    index: np.ndarray
    inputs: np.ndarray
    steps: np.ndarray
    unit: np.ndarray


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file that holds one object."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {type(content).__name__}")
    return content


def checkpoint_name(record: dict[str, Any]) -> str:
    """Return which checkpoint a record of margins or of an evaluation is of; "" of earlier versions, or of no run."""
    return str(record.get("checkpoint_name") or "")


def read_columns(path: Path) -> Columns:
    """Return the columns of a CSV file that hold numbers; words are left out, but not from those that it must have."""
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file)) or [[]]
    if NEEDED - set(head):
        raise ValueError(f"it has the columns {', '.join(head) or '(none)'}")
    columns: Columns = {}
    for name, cells in zip(head, zip(*rows, strict=True), strict=True) if rows else []:
        try:
            columns[name] = np.array([cell or "nan" for cell in cells], dtype=np.float64)
        except ValueError:
            if name in NEEDED or name.startswith(SPEED):
                raise
    for name in ("index", "label") if rows else ():
        if not np.isfinite(columns[name]).all():
            raise ValueError(f"its column {name} has gaps")
    return columns or {name: np.zeros(0) for name in head}


def read_margins(path: Path) -> Columns | None:
    """Return the columns of a ``per_example.csv``; None if no margin was measured (PGD alone measures none)."""
    columns = read_columns(path)
    return columns if np.isfinite(columns["margin"]).any() else None


def read_accuracy(path: Path) -> Accuracy:
    """Return an ``evaluation.json``; intervals that it does not have are computed from the number of images."""
    content = read_json(path)
    images, given = int(content["images"]), content.get("intervals", {})

    def share(key: str, value: float) -> Estimate:
        low, high = given[key] if key in given else wilson(round(value * images), images)
        return Estimate(float(value), float(low), float(high), images)

    robust = {Radius(key): share(key, value) for key, value in content.get("robust", {}).items()}
    return Accuracy(
        attack=str(content.get("attack", "")),
        norm=str(content.get("norm", "linf")),
        data=str(content.get("data") or ""),
        images=images,
        clean=share("clean", content["clean"]),
        robust=dict(sorted(robust.items())),
        alarms=[str(alarm["message"]) for alarm in content.get("alarms", [])],
        folder=path.parent.name,
        drawn_from=content.get("drawn_from"),
        checkpoint=checkpoint_name(content),
        data_digest=str(content.get("data_digest") or ""),
        by_class={int(label): shares for label, shares in content.get("by_class", {}).items()},
    )


def read_shares(path: Path) -> Shares:
    """Return a ``dynamics.json``."""
    content = read_json(path)
    return Shares(
        radius=Radius(content.get("radius_text", content["radius"])),
        split=str(content.get("split", "")),
        examples=content.get("counts", {}).get("examples"),
        methods={
            str(name): MethodShares(
                below=_share(entry["below_radius"]),
                intervals=[(float(part["from"]), _end(part["to"]), _share(part)) for part in entry["intervals"]],
            )
            for name, entry in content["methods"].items()
        },
        tests=[test for test in content.get("tests", []) if test.get("difference") is not None],
        update=str(content.get("update", "")),
        step=str(content.get("step", "")),
        checkpoint=Path(str(content.get("checkpoint") or "")).name,  # a path, which may have been of another machine
    )


def _share(part: dict[str, Any]) -> Estimate:
    value = math.nan if part["share"] is None else float(part["share"])
    return Estimate(value, float(part["low"]), float(part["high"]), int(part["count"]))


def _end(value: float | None) -> float:
    return math.inf if value is None else float(value)


def read_monitor(path: Path) -> Columns:
    """Return some columns of a ``monitor.jsonl``: step, share of negative speed, correlation, margin quantiles.

    A last line cut short by a crash is left out, and so is a line without margins.
    """
    if damaged := damaged_lines(path):
        raise ValueError(f"line {damaged[0]} is no observation of a monitor")
    rows: list[list[float]] = []
    for number, record in enumerate(read_metrics(path), 1):
        quantiles = record.get("margin_quantiles") or {}
        if not isinstance(quantiles, dict):
            raise ValueError(f"line {number}: margin_quantiles is {quantiles!r}, and no object")
        values = {name: record.get(name) for name in ("step", "negative_share", "correlation")}
        values |= {f"margin quantile {share}": quantiles.get(share) for share in QUANTILES}
        for name, value in values.items():
            if not (isinstance(value, int | float) or (value is None and name != "step")):
                raise ValueError(f"line {number}: {name} is {value!r}, and no number")
        if quantiles.get("0.5") is not None:
            rows.append([math.nan if value is None else float(value) for value in values.values()])
    table = np.array(rows, dtype=np.float64).reshape(-1, 3 + len(QUANTILES))
    return dict(zip(("step", "negative_share", "correlation", *QUANTILES), table.T, strict=True))


def read_records(path: Path) -> list[Record]:
    """Return a ``metrics.jsonl``, whose records all have a step and, those of epochs, a number from 1 on."""
    if damaged := damaged_lines(path):
        raise ValueError(f"line {damaged[0]} is no record of a step or an epoch")
    records = read_metrics(path)
    for number, record in enumerate(records, 1):
        if not isinstance(record["step"], int) or (record.get("kind") == "epoch" and not record.get("epoch", 0) >= 1):
            raise ValueError(f"line {number} is no record of a step or an epoch")
    return records


def read_pictures(path: Path) -> Pictures:
    """Return a ``dynamics.npz``.

    Where it has ``steps`` (int8) and ``scale`` (one per example, in units of the inputs' range), these say what the
    step to the boundary is; otherwise it is the difference of the two pictures, to the nearest grey level.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:  # numpy leaves a damaged one open
        index, inputs, points = (content[name] for name in ("index", "inputs", "points"))
        fine = (content["steps"], content["scale"]) if "steps" in content and "scale" in content else None
    if inputs.ndim != 4 or inputs.shape != points.shape or len(index) != len(inputs) or inputs.dtype != np.uint8:
        raise ValueError(f"expected uint8 images [M, C, H, W], got {inputs.dtype} {inputs.shape} and {points.shape}")
    if fine is None:
        fine = points.astype(np.int16) - inputs, np.full(len(inputs), 1 / 255)
    if fine[0].shape != inputs.shape or fine[1].shape != (len(inputs),):
        raise ValueError(f"expected steps like the images and one scale each, got {fine[0].shape} and {fine[1].shape}")
    return Pictures(index.astype(np.int64), inputs, fine[0], 255.0 * fine[1])
