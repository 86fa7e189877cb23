"""The rows of the paper's tables that recipes reproduce, and what the paper says of how they were trained."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dyart.recipes import Config, names, resolve

PAPERS, OURS = "the paper's values", "our values"
# How a note ends where the paper states some of a method's values, or none, and the rest is as its authors have it.
REST = ", the rest its authors'"
METHODS = (
    "natural", "at", "trades", "mart", "mma", "gairat", "mail-at", "mail-trades", "fat", "fat-trades", "at-awp",
    "trades-awp", "dyart-awp", "dyart",
)  # fmt: skip


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


# By data and normalization: of all baselines alike, and of DyART.
BASELINES = {
    ("cifar10", "batch"): Setting(200),
    ("cifar10", "group"): Setting(100),
    ("tiny-imagenet", "batch"): Setting(100),
    ("tiny-imagenet", "group"): Setting(100),
}
DYART = {
    ("cifar10", "batch"): Setting(200, clip=0.1),
    ("cifar10", "group"): Setting(100, schedule="step"),
    ("tiny-imagenet", "batch"): Setting(100, clip=1.0),
    ("tiny-imagenet", "group"): Setting(100, lr=0.05),
}
WITH_EXTRA_DATA = Setting(1200, batch_size=1024, clip=0.1)

# What the paper's text says of the methods' own values, as written (the appendix on experiments, for CIFAR-10).
STATED = {
    "at": {"radius": "8/255", "step_size": "2/255", "steps": "10"},
    "trades": {"radius": "8/255", "step_size": "0.007", "steps": "10", "beta": "6"},
    "mart": {},
    "mma": {"hinge": "32/255"},
    "gairat": {"radius": "8/255", "step_size": "0.007", "steps": "10"},
    "mail-trades": {"beta": "5", "bias": "-1.5", "slope": "1"},
    "awp": {},
    "fat-trades": {"radius": "8/255"},
}
# What it does not say: as in the implementation that it follows (AT, TRADES, MART), or as the methods' authors have it,
# their epochs as fractions of the training.
FOLLOWED = {
    "at": {"start": "uniform"},
    "trades": {"smoothing": "0.1", "start": "uniform"},
    "mart": {"lam": "6", "radius": "8/255", "step_size": "2/255", "steps": "10", "start": "normal"},
    "mma": {"least": "0.005", "steps": "10", "bisections": "10", "clean": "1/3"},
    "gairat": {"start": "uniform", "shift": "-1", "begin": "0.5", "kappa": "correct"},
    "mail-trades": {"radius": "8/255", "steps": "10", "start": "normal", "begin": "0.63", "normalize": "False"},
    "awp": {"gamma": "0.01", "awp_warmup": "0", "radius": "8/255", "step_size": "2/255", "steps": "10"},
    "fat-trades": {"beta": "6", "steps": "10", "start": "normal", "omega": "0", "tau": "None"},
}


def rows() -> list[Row]:
    with (Path(__file__).parent / "paper_rows.csv").open(encoding="utf-8", newline="") as file:
        # "lambda" is a word of Python.
        found = [{"lam": row.pop("lambda"), **row} for row in csv.DictReader(file)]
    return [Row(**{**row, "table": int(row["table"])}) for row in found]


def setting_of(row: Row) -> Setting:
    if row.extra:
        return WITH_EXTRA_DATA
    return (DYART if row.method == "dyart" else BASELINES)[row.data, row.normalization]


def trained_with(row: Row) -> str:
    """Return the method that trains a row: the paper does not say what its AWP is around, and its recipe is of AT."""
    return "at-awp" if row.method == "awp" else row.method


@cache
def resolved() -> dict[str, Config]:
    """All recipes, resolved once."""
    return {name: resolve(name) for name in names()}


def reproduces(config: Config, row: Row) -> bool:
    """Whether a configuration trains what a row reports, by its values and not by its name."""
    same = (config.data.name, config.model.name, config.model.normalization, config.method["name"])
    if same != (row.data, row.network, row.normalization, trained_with(row)) or OURS in config.note:
        return False
    return row.method != "dyart" or dyart_values(config) == (float(row.alpha), row.r0, float(row.lam))


def dyart_values(config: Config) -> tuple[float, str, float]:
    return float(config.method["alpha"]), str(config.method["r0"]), float(config.method["lam"])
