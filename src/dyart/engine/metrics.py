"""Means of what a method logs, kept on the device; and the run's ``metrics.jsonl``."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dyart.engine.files import write_whole

Record = dict[str, Any]

log = logging.getLogger("dyart")


class Meter:
    """Running means. Adding costs no host synchronisation; values that are not finite are left out of their mean."""

    def __init__(self) -> None:
        """Begin empty."""
        # Sums and counts, [2, values], of every set of names: most methods log the same names at every step.
        self.totals: dict[tuple[str, ...], Tensor] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Take in one step's values."""
        names, values = tuple(metrics), torch.stack([value.detach().float() for value in metrics.values()])
        finite = values.isfinite()
        added = torch.stack([torch.where(finite, values, 0.0), finite]).double()
        self.totals[names] = self.totals[names] + added if names in self.totals else added

    def means(self) -> dict[str, float | None]:
        """Return the means so far (None where there was no value): one host synchronisation."""
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        for names, total in self.totals.items():
            for name, value, count in zip(names, *total.tolist(), strict=True):
                sums[name], counts[name] = sums.get(name, 0.0) + value, counts.get(name, 0.0) + count
        return {name: float(f"{sums[name] / counts[name]:.6g}") if counts[name] else None for name in sums}

    def state_dict(self) -> dict[str, Any]:
        """Return sums and counts."""
        return {"names": [list(names) for names in self.totals], "totals": [t.cpu() for t in self.totals.values()]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take them back."""
        pairs = zip(state["names"], state["totals"], strict=True)
        self.totals = {tuple(names): total.to(device) for names, total in pairs}


class MetricsFile:
    """``metrics.jsonl``: one line per record, each written at once.

    Args:
        path: of the file.
        lines: how many records of a resumed run are kept; what came later is written again.
    """

    def __init__(self, path: Path, lines: int = 0) -> None:
        """Begin anew, or go on."""
        self.path, self.kept = path, [record for record in _records(path)[:lines] if record is not None]
        self.lines = len(self.kept)
        if self.lines < lines:
            log.warning("%s: %d of %d lines are damaged or missing, and left out", path, lines - self.lines, lines)
        write_whole(path, "".join(json.dumps(record) + "\n" for record in self.kept))

    def write(self, record: Record) -> None:
        """Append a record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.lines += 1


def read_metrics(path: Path) -> list[Record]:
    """Return the records of a ``metrics.jsonl``; a last line cut short by a crash, and a damaged one, are left out."""
    return [record for record in _records(path) if record is not None]


def damaged_lines(path: Path) -> list[int]:
    """Return the numbers, from 1, of the lines that are whole and no records: no crash cut these short."""
    whole = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [number for number, line in enumerate(whole, 1) if line.endswith(b"\n") and _record(line) is None]


def _records(path: Path) -> list[Record | None]:
    """Return what every line holds, None for those that cannot be read."""
    return [_record(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    # Of either file: the observations of monitor.jsonl have no kind.
    return record if isinstance(record, dict) and "step" in record else None
