"""The rows of the paper's tables that recipes reproduce, and what the paper says of how they were trained."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dyart.recipes import Config, names, resolve

PAPERS, OURS = "the paper's values", "our values"


@dataclass(frozen=True)
class Row:
    """One row; accuracies as printed, in per cent. alpha, r0 and lam are empty for methods without them."""

    table: int
    data: str
    network: str
    normalization: str
    method: str
    alpha: str
    r0: str
    lam: str
    extra: str
    clean: str
    aa: str


@dataclass(frozen=True)
class Setting:
    """What the paper's text says of a training (its section 6.1 and its appendix on experiments)."""

    epochs: int
    batch_size: int = 256
    lr: float = 0.1
    schedule: str = "cosine"
    clip: float | None = None


# By data, normalization and method.
SETTINGS = {
    ("cifar10", "batch", "at"): Setting(200),
    ("cifar10", "group", "at"): Setting(100),
    ("tiny-imagenet", "batch", "at"): Setting(100),
    ("tiny-imagenet", "group", "at"): Setting(100),
    ("cifar10", "batch", "dyart"): Setting(200, clip=0.1),
    ("cifar10", "group", "dyart"): Setting(100, schedule="step"),
    ("tiny-imagenet", "batch", "dyart"): Setting(100, clip=1.0),
    ("tiny-imagenet", "group", "dyart"): Setting(100, lr=0.05),
}
WITH_EXTRA_DATA = Setting(1200, batch_size=1024, clip=0.1)


def rows() -> list[Row]:
    with (Path(__file__).parent / "paper_rows.csv").open(encoding="utf-8", newline="") as file:
        # "lambda" is a word of Python.
        found = [{"lam": row.pop("lambda"), **row} for row in csv.DictReader(file)]
    return [Row(**{**row, "table": int(row["table"])}) for row in found]


def setting_of(row: Row) -> Setting:
    return WITH_EXTRA_DATA if row.extra else SETTINGS[row.data, row.normalization, row.method]


@cache
def resolved() -> dict[str, Config]:
    """All recipes, resolved once."""
    return {name: resolve(name) for name in names()}


def reproduces(config: Config, row: Row) -> bool:
    """Whether a configuration trains what a row reports, by its values and not by its name."""
    same = (config.data.name, config.model.name, config.model.normalization, config.method["name"])
    if same != (row.data, row.network, row.normalization, row.method) or OURS in config.note:
        return False
    return row.method != "dyart" or dyart_values(config) == (float(row.alpha), row.r0, float(row.lam))


def dyart_values(config: Config) -> tuple[float, str, float]:
    return float(config.method["alpha"]), str(config.method["r0"]), float(config.method["lam"])
