"""``dyart compare``: several recipes, several seeds, one table; what is finished is not done again."""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dyart.data.ranks import team_here
from dyart.dynamics.watch import Watch
from dyart.engine.display import Display
from dyart.engine.environment import changed_sources, commit, recorded
from dyart.engine.files import read_object, write_json, write_whole
from dyart.engine.fit import TrainingError
from dyart.engine.run import train
from dyart.engine.stored import CONFIG, ENVIRONMENT, read_config
from dyart.evaluation.paired import paired_difference
from dyart.evaluation.quick import FILE, FLAGS, measure_run
from dyart.recipes import Config, RecipeError, differences, resolve

# What the records of all runs must have in common.
MEASURED = ("data", "images", "attack", "norm", "strict")

# The files of a comparison, with a number where earlier ones stay, and how the table begins.
TABLE, JSON = "compare{}.md", "compare{}.json"
HEAD = "Test accuracy in %, "
COMMIT = 7  # characters of a commit


@dataclass(frozen=True)
class Entry:
    """All seeds of one recipe."""

    recipe: str
    epochs: str
    """Of the burn-in, if there is one, and of the method."""
    measured: list[dict[str, Any]]
    flags: list[dict[str, np.ndarray]]

    def spread(self, column: str) -> str:
        """Return mean and half the range over seeds of a column of flags, in percent."""
        shares = [100 * float(flags[column].mean()) for flags in self.flags]
        half = (max(shares) - min(shares)) / 2
        return f"{np.mean(shares):.1f}" + (f" ± {half:.1f}" if len(shares) > 1 else "")


def compare_command(options: argparse.Namespace) -> None:
    """Train and measure every recipe with every seed, print one table and write it beside the runs."""
    # A misspelt name shows now, not after hours of training.
    names = [resolve(recipe, options.rest).recipe or Path(recipe).stem for recipe in options.recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"two recipes are called {', '.join(twice)}, by which their runs are named: rename one")
    try:
        entries = [_entry(recipe, options) for recipe in options.recipes]
    except TrainingError as error:
        raise TrainingError(f"{error} (here: the same command again)") from error
    if team_here().rank:  # of several processes, the first writes
        return
    text = "\n".join(_table(entries))
    rows = [{"recipe": entry.recipe, "seeds": options.seeds, "runs": entry.measured} for entry in entries]
    options.out.mkdir(parents=True, exist_ok=True)
    table, record = _free_files(options.out, _runs(rows))
    write_json(record, rows)  # the first: without it nothing says whose a table is
    write_whole(table, text + "\n")
    print(f"\n{text}\n\n{table}, {record}")


def _entry(recipe: str, options: argparse.Namespace) -> Entry:
    measured, flags = [], []
    for seed in options.seeds:
        config = resolve(recipe, [*options.rest, "--seed", str(seed)])
        folder = options.out / f"{config.recipe or Path(recipe).stem}-seed{seed}"
        config = replace(config, out=str(folder))
        finished = (folder / FILE).is_file() and (folder / FLAGS).is_file()
        if not finished:
            _run(config, folder)
        _same(config, folder)
        if finished and not team_here().rank:
            print(_reused(folder), file=sys.stderr)
        measured.append({"seed": seed, **json.loads((folder / FILE).read_text(encoding="utf-8"))})
        with np.load(folder / FLAGS, allow_pickle=False) as stored:
            flags.append({name: stored[name] for name in stored.files})
    burn_in, epochs = config.train.burn_in, config.train.epochs
    return Entry(recipe, f"{burn_in} + {epochs}" if burn_in else str(epochs), measured, flags)


def _run(config: Config, folder: Path) -> None:
    from rich.console import Console

    begun = (folder / CONFIG).is_file()
    if begun:
        _same(config, folder)
    # Standard output is for the one table at the end.
    display = Display(f"{config.recipe}, seed {config.seed}", Console(stderr=True, highlight=False))
    measure_run(train(config, resume=begun, callbacks=[display, Watch()]))


def _same(config: Config, folder: Path) -> None:
    """Refuse a folder whose run has other settings than are asked for."""
    changed = sorted(set(differences(read_config(folder), config)) - {"out"})
    changed += [f"{name} has changed" for name in changed_sources(folder / ENVIRONMENT, config)]
    if changed:
        raise RecipeError(f"{folder} holds a run with other settings ({', '.join(changed)}): choose another --out")


def _reused(folder: Path) -> str:
    """Return a line on a run that is not trained again: by which code it was, and when it was measured."""
    was, now = (read_object(folder / ENVIRONMENT) or {}).get("commit"), commit()
    code = f"commit {_short(str(was))}" if was else f"dyart {recorded(folder / ENVIRONMENT, 'versions').get('dyart')}"
    other = f"; the code is of commit {_short(now)} by now" if was and now and was != now else ""
    date = datetime.fromtimestamp((folder / FILE).stat().st_mtime).astimezone().strftime("%Y-%m-%d")
    return f"{folder}: finished earlier ({code}, {date}), not trained again{other}"


def _short(name: str) -> str:
    digits, dash, dirty = name.partition("-")
    return f"{digits[:COMMIT]}{dash}{dirty}"


def _free_files(out: Path, runs: set[tuple[str, int]]) -> tuple[Path, Path]:
    """Return the files for a comparison: the first whose earlier content, if any, is of no other run than these."""
    for number in count(1):
        table, record = (out / name.format("" if number == 1 else f"-{number}") for name in (TABLE, JSON))
        if _makes_room(table, record, runs):
            break
        print(f"{table} is not of these runs alone, and stays as it is", file=sys.stderr)
    return table, record


def _makes_room(table: Path, record: Path, runs: set[tuple[str, int]]) -> bool:
    if not table.exists() and not record.exists():
        return True
    try:
        known = not table.exists() or table.read_text(encoding="utf-8").startswith(HEAD)
        return known and _runs(json.loads(record.read_bytes())) <= runs
    except (OSError, ValueError, TypeError, LookupError):  # of something else, damaged, or gone
        return False


def _runs(rows: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """Return what is compared, as runs are named: recipes and seeds."""
    return {(Path(row["recipe"]).stem, int(run["seed"])) for row in rows for run in row["runs"]}


def _table(entries: list[Entry]) -> list[str]:
    columns = list(entries[0].flags[0])
    if any(list(flags) != columns for entry in entries for flags in entry.flags):
        raise RecipeError("the recipes are measured at different radii: give them the same --eval.radii")
    _check_alike([one for entry in entries for one in entry.measured])
    head = ["recipe", *columns, "epochs", "s/epoch"]
    rows = [
        [entry.recipe, *(entry.spread(column) for column in columns), entry.epochs, f"{_seconds(entry):.1f}"]
        for entry in entries
    ]
    first = entries[0]
    several = len(first.flags) > 1
    seeds = f"{len(first.flags)} seeds: mean ± half the range" if several else "1 seed"
    lines = [f"{HEAD}{seeds}. {first.measured[0]['attack']}.", "", *_aligned([head, *rows])]
    if len(entries) > 1:
        seeds = "; ± half the range over the seeds" if several else ""
        lines += ["", f"Points more than {first.recipe}, with 95 % intervals over the examples{seeds}:", ""]
        gains = [[e.recipe, *(_gain(_column(first, c), _column(e, c)) for c in columns)] for e in entries[1:]]
        lines += _aligned([["recipe", *columns], *gains])
    return lines


def _check_alike(measured: list[dict[str, Any]]) -> None:
    """Refuse to set accuracies side by side that come from different attacks or images."""
    for name in MEASURED:
        values = sorted({str(one.get(name)) for one in measured})
        if len(values) > 1:
            raise RecipeError(
                f"the runs were not measured alike, {name}: {', '.join(values)}. Evaluate all of them with the same "
                "dyart evaluate RUN --attack ..., or choose another --out"
            )


def _column(entry: Entry, name: str) -> list[np.ndarray]:
    return [flags[name] for flags in entry.flags]


def _gain(first: list[np.ndarray], second: list[np.ndarray]) -> str:
    """Return a difference with its interval over the examples, and how far apart the seeds are in it."""
    words = str(paired_difference(first, second))
    if len(first) == 1 or len(first) != len(second):
        return words
    by_seed = [100 * float(other.mean() - one.mean()) for one, other in zip(first, second, strict=True)]
    return f"{words} ± {(max(by_seed) - min(by_seed)) / 2:.1f}"


def _seconds(entry: Entry) -> float:
    return float(np.mean([row["seconds_per_epoch"] for row in entry.measured]))


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines
