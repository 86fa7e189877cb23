"""Means of what a method logs, kept on the device; and the run's ``metrics.jsonl``."""

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Record = dict[str, Any]


class Meter:
    """Running means. Adding costs no host synchronisation; values that are not finite are left out of their mean."""

    def __init__(self) -> None:
        """Begin empty."""
        self.names: list[str] = []
        self.sums: Tensor | None = None
        self.counts: Tensor | None = None

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Take in one step's values."""
        values = torch.stack([value.detach().float() for value in metrics.values()])
        finite = values.isfinite()
        if self.sums is None or self.counts is None:
            self.names = list(metrics)
            self.sums, self.counts = torch.zeros_like(values, dtype=torch.float64), torch.zeros_like(values)
        self.sums += torch.where(finite, values, 0.0)
        self.counts += finite

    def means(self) -> dict[str, float | None]:
        """Return the means so far (None where there was no value): one host synchronisation."""
        if self.sums is None or self.counts is None:
            return {}
        means = (self.sums / self.counts).tolist()
        return {name: _short(mean) for name, mean in zip(self.names, means, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """Return sums and counts."""
        empty = torch.zeros(0)
        return {
            "names": list(self.names),
            "sums": empty if self.sums is None else self.sums.cpu(),
            "counts": empty if self.counts is None else self.counts.cpu(),
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take them back."""
        self.names = list(state["names"])
        self.sums = state["sums"].to(device) if self.names else None
        self.counts = state["counts"].to(device) if self.names else None


class MetricsFile:
    """``metrics.jsonl``: one line per record, each written at once."""

    def __init__(self, path: Path, up_to_step: int | None = None) -> None:
        """Begin anew, or go on after the records up to a step (what came later happens again)."""
        self.path = path
        kept = [] if up_to_step is None else [r for r in read_metrics(path) if r["step"] <= up_to_step]
        partial = path.with_name(f".{path.name}.part")
        partial.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        os.replace(partial, path)

    def write(self, record: Record) -> None:
        """Append a record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_metrics(path: Path) -> list[Record]:
    """Return the records of a ``metrics.jsonl``; a last line cut short by a crash is left out."""
    if not path.is_file():
        return []
    records: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
