"""The files of an evaluation: ``evaluation.json``, ``per_example.csv``, and flags for paired comparisons."""

import csv
import dataclasses
import io
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from dyart.engine.files import read_object, write_json, write_whole
from dyart.evaluation.alarms import alarm_flags
from dyart.evaluation.intervals import wilson
from dyart.evaluation.result import Evaluation
from dyart.evaluation.verdicts import Flags, Verdicts

FILE, FLAGS, EXAMPLES = "evaluation.json", "evaluation.npz", "per_example.csv"
PACKAGES = ("dyart", "torch", "numpy", "pyautoattack")
# What a training's own measurement says of the run, and a later evaluation does not know.
OF_THE_RUN = ("epoch", "seconds_per_epoch")
CHECKPOINT = "checkpoint_name"


def write_records(result: Evaluation, folder: Path) -> None:
    """Write the three files into a folder; what an earlier one says of the run's training stays in the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(result.per_example, folder / EXAMPLES)
    write_flags(folder, result.verdicts.correct, result.resisting)
    now, before = plain(result), earlier(folder, (*OF_THE_RUN, CHECKPOINT))
    of = before.pop(CHECKPOINT, None)
    if of is not None and now.get(CHECKPOINT, of) != of:
        before.pop("epoch", None)  # that of other weights
    write_json(folder / FILE, before | now)


def earlier(folder: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return some entries of the record that a folder has already; none where there is no readable one."""
    stored = read_object(folder / FILE) or {}
    return {key: stored[key] for key in keys if key in stored}


def write_flags(folder: Path, correct: Flags, resisting: Mapping[str, Flags]) -> None:
    """Write which examples are right, and which resist at each radius: ``evaluation.npz``."""
    packed = io.BytesIO()
    np.savez_compressed(packed, clean=correct, **resisting)  # type: ignore[arg-type]
    write_whole(folder / FLAGS, packed.getvalue())


def accuracies(correct: Flags, resisting: Mapping[str, Flags]) -> dict[str, Any]:
    """Return clean and robust accuracy with Wilson's 95 % intervals, as the record has them."""
    held = {"clean": correct} | dict(resisting)
    return {
        "images": len(correct),
        "clean": float(correct.mean()),
        "robust": {name: float(flags.mean()) for name, flags in resisting.items()},
        "intervals": {name: list(wilson(int(flags.sum()), len(flags))) for name, flags in held.items()},
    }


def plain(result: Evaluation) -> dict[str, Any]:
    """Return the record as JSON values."""
    settings, verdicts = result.settings, result.verdicts
    return {
        **result.facts,
        **accuracies(verdicts.correct, result.resisting),
        "attack": result.words,
        "tier": settings.attack,
        "norm": settings.norm,
        "radii": {str(radius): float(radius) for radius in verdicts.radii},
        "strict": settings.strict,
        "by_class": {str(label): dict(shares) for label, shares in result.by_class.items()},
        "inferred": {str(radius): count for radius, count in result.inferred.items()},
        "after": {name: {str(radius): share for radius, share in by.items()} for name, by in result.after.items()},
        "settings": {
            "seed": settings.seed,
            "bounds": settings.plain()["bounds"],
            "batch_size": settings.batch_size,
            "search_steps": settings.steps,
            "search_restarts": settings.restarts,
            **result.view,
        },
        "findings": [dataclasses.asdict(finding) for finding in result.findings],
        "alarms": [dataclasses.asdict(alarm) for alarm in result.alarms],
        "notes": [*result.facts.get("notes", ()), *result.notes],
        "passes": {
            **result.passes,
            "by_attack": {
                name: {way: cost[way] / len(verdicts) for way in ("forward", "backward")}
                for name, cost in result.costs.items()
            },
        },
        "seconds": {"all": result.seconds} | {name: cost["seconds"] for name, cost in result.costs.items()},
        "versions": dict(result.versions),
    }


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def columns(verdicts: Verdicts) -> dict[str, np.ndarray]:
    """Return one array per column of ``per_example.csv``.

    ``broken_at`` is the smallest radius with a point within it, nan where there is none; ``broken_at_<attack>`` that
    of one attack's points; ``alarms`` names the signs of masked gradients that the example shows (single ones are seen
    on healthy models, too). A column named after a radius has one word per example.
    """
    table: dict[str, np.ndarray] = {
        "index": verdicts.index,
        "label": verdicts.labels,
        "prediction": verdicts.predictions,
        "correct": verdicts.correct,
        "margin": verdicts.margin,
        "value": verdicts.value,
        "alignment": verdicts.alignment,
        "optimal": verdicts.optimal,
    }
    for place, name in enumerate("abc"):
        table[f"condition_{name}"] = verdicts.conditions[:, place]
    table["rival"] = verdicts.rival
    if not verdicts.attacks:
        return table
    closest = np.min([verdicts.closest(attack) for attack in verdicts.attacks], axis=0)
    table["closest"] = np.where(np.isfinite(closest), closest, np.nan)
    table["broken_at"] = _smallest(verdicts, verdicts.broken)
    for attack in verdicts.attacks:
        table[f"broken_at_{attack}"] = _smallest(verdicts, verdicts.broken_by(attack))
    resists, inferred = verdicts.resists, verdicts.inferred
    flags = alarm_flags(verdicts)
    table["alarms"] = np.asarray(
        ["; ".join(kind for kind in flags if flags[kind][row]) for row in range(len(verdicts))]
    )
    for level, radius in enumerate(verdicts.radii):
        words = np.where(resists[:, level], np.where(inferred[:, level], "inferred", "resists"), "broken")
        table[str(radius)] = np.where(verdicts.correct, words, "wrong")
    return table


def write_csv(table: Mapping[str, np.ndarray], path: Path) -> None:
    """Write columns as CSV: numbers in full, truth as 0 and 1, nothing where there is no number."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    cells = [(column.astype(int) if column.dtype == bool else column).tolist() for column in table.values()]
    for row in zip(*cells, strict=True):
        writer.writerow(["" if cell != cell else cell for cell in row])
    write_whole(path, text.getvalue())


def table(result: Evaluation) -> str:
    """Return accuracies, and what to know about them, for a person."""
    verdicts, intervals = result.verdicts, result.intervals
    head = ["", "accuracy", "95 % interval", "inferred", *(f"after {name}" for name in verdicts.attacks)]
    rows = [["clean", *_share(result.clean_accuracy, intervals["clean"]), "", *("" for _ in verdicts.attacks)]]
    for radius, share in result.robust_accuracy.items():
        after = [f"{100 * by[radius]:.2f}" for by in result.after.values()]
        rows.append([str(radius), *_share(share, intervals[str(radius)]), str(result.inferred[radius]), *after])
    if not any(result.inferred.values()):
        head, rows = (head[:3] + head[4:]), [row[:3] + row[4:] for row in rows]
    passes = result.passes
    lines = [
        f"{len(verdicts)} examples, {verdicts.norm}, {result.words}" + ("; strict" if result.settings.strict else ""),
        *_aligned([head, *rows]),
        f"{passes['forward']:.0f} forward and {passes['backward']:.0f} backward passes per example, "
        f"{result.seconds:.1f} s",
    ]
    lines += [f"note: {note}" for note in result.notes]
    lines += [str(finding) for finding in result.findings]
    return "\n".join(lines + [f"alarm: {alarm.message}" for alarm in result.alarms])


def _share(share: float, interval: tuple[float, float]) -> tuple[str, str]:
    return f"{100 * share:.2f}", f"{100 * interval[0]:.2f} to {100 * interval[1]:.2f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _smallest(verdicts: Verdicts, broken: Flags) -> np.ndarray:
    """Return the smallest radius at which an example that is right as it is is broken; nan: at none."""
    radii = np.asarray([float(radius) for radius in verdicts.radii])
    smallest = np.where(broken, radii, np.inf).min(axis=1)
    return np.where(verdicts.correct & np.isfinite(smallest), smallest, np.nan)
