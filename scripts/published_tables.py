"""The tables of docs/results about published trainings: from the plan, the JSON files in results/, and the paper's.

What the plan has and results/ has not, is said to be missing, in the same tables; what failed is listed.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from dyart.evaluation.paired import Difference, paired_difference

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: its modules have common names

from publish_model import command  # noqa: E402

from plan import RADII, Group, Run, load_plan, missing, record_of, written  # noqa: E402
from run_records import CLEAN, evaluation_of, flags_of, unpacked  # noqa: E402

RESULTS = ROOT / "results"
MODELS = ROOT / "models"
FIGURES = ROOT / "docs" / "results" / "figures"
COLUMNS = (CLEAN, *RADII)
OWN = ("DyART-AWP", "DyART, outside 0.25, lam 400", "natural")  # not among the paper's robust methods
NOT_YET = "not run yet"
PAPERS = "the paper"
# In brackets: how many shared the GPU, where several did; each is slower then.
EFFORT = ("epochs", "s per epoch (runs at a time)", "training, s")
Records = Mapping[str, list[dict[str, Any]]]


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def grid_of_runs(what: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of runs, those that are missing among them; one line while all are."""
    here = [row for row in rows if not row[1].startswith(PAPERS)]
    return f"\n{what}: {NOT_YET}.\n" if all(NOT_YET in row for row in here) else grid(head, rows)


@cache
def groups() -> dict[str, Group]:
    """Return the groups of the plan by name."""
    return {group.name: group for group in load_plan()}


def read(runs: Sequence[Run], results: Path | None = None) -> list[dict[str, Any]]:
    """Return the records of runs that there are, failed ones included."""
    return [record for run in runs if (record := record_of(run, results or RESULTS)) is not None]


def records_of(runs: Sequence[Run], results: Path | None = None) -> list[dict[str, Any]]:
    """Return the records of runs that were trained and attacked."""
    return [record for record in read(runs, results) if evaluation_of(record, "best", "apgd") is not None]


def values_of(records: Sequence[Mapping[str, Any]], column: str, which: str = "best") -> list[float]:
    """Return one accuracy under the tier apgd of every run that has it, in per cent."""
    parts = [evaluation_of(record, which, "apgd") for record in records]
    shares = [part[CLEAN] if column == CLEAN else part["robust"].get(column) for part in parts if part is not None]
    return [100 * share for share in shares if share is not None]


def cell(values: Sequence[float], bold: bool = False) -> str:
    """Return a mean, with the standard deviation over seeds where there are several."""
    if not values:
        return ""
    text = f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
    return f"**{text}**" if bold else text


def methods(name: str) -> str:
    """Return the accuracies of all rows of a group; the best of every column in bold."""
    group = groups()[name]
    columns = (CLEAN, *group.radii)
    found = {row: records_of(runs) for row, runs in group.rows.items()}
    best = {column: _best(found, column) for column in columns}
    lines = []
    for row, runs in group.rows.items():
        records = found[row]
        if not records:
            lines.append([runs[0].label, f"0 of {len(runs)}", NOT_YET, *[""] * len(columns)])
            continue
        accuracies = [cell(values_of(records, column), row == best[column]) for column in columns]
        last = cell(values_of(records, group.radius, which="last"))
        seeds = str(len(records)) if len(records) == len(runs) else f"{len(records)} of {len(runs)}"
        lines.append([runs[0].label, seeds, *accuracies, last])
    head = ["", "seeds", "clean, %", *group.radii, f"{group.radius}, last"]
    return grid_of_runs("Accuracies", head, lines)


def efforts(name: str) -> str:
    """Return epochs, seconds and files of all rows of a group."""
    found = {runs[0].label: records_of(runs) for runs in groups()[name].rows.values()}
    lines = [
        [label, *effort(records), links(records)] if records else [label, NOT_YET, "", "", ""]
        for label, records in found.items()
    ]
    return grid_of_runs("Epochs and seconds", ["", *EFFORT, "JSON, seed"], lines)


def _best(found: Records, column: str) -> str | None:
    means = {row: mean(values) for row, records in found.items() if (values := values_of(records, column))}
    return max(means, key=means.__getitem__) if len(means) > 1 else None


def effort(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells below ``EFFORT``."""
    burn_in = records[0].get("burn_in", 0)
    epochs = f"{burn_in} + {records[0]['epochs'] - burn_in}" if burn_in else str(records[0]["epochs"])
    each = mean(record["seconds_per_epoch"] for record in records)
    together = max(record.get("together", 1) for record in records)
    beside = f" ({together})" if together > 1 else ""
    return [epochs, f"{each:.1f}{beside}", f"{mean(record['wall_seconds'] for record in records):.0f}{beside}"]


def links(records: Sequence[Mapping[str, Any]]) -> str:
    """Return links to the JSON of every seed."""
    return ", ".join(f"[{record['seed']}](../../results/{record['name']}.json)" for record in records)


def common_settings(group: Group) -> dict[str, Any]:
    """Return the settings that all runs of a group have."""
    first, *others = (run.settings for run in group.runs)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def settings_of(run: Run) -> str:
    """Return a run's settings that the others of its group do not share; its recipe, if there are none."""
    common = common_settings(groups()[run.group])
    own = {key: value for key, value in run.settings.items() if key not in common}
    return named_settings(own) if own else f"`{run.recipe}`"


def named_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as the command line takes them."""
    return ", ".join(f"`{key} {written(value)}`" for key, value in settings.items())


def conditions(name: str) -> str:
    """Return on what and how a group's runs were measured, how many there are, what is missing and what failed."""
    group = groups()[name]
    records = records_of(group.runs)
    parts = [f"{len(records)} of {len(group.runs)} runs are there."]
    if records:
        gpus = ", ".join(sorted({record["gpu"] for record in records}))
        torch = ", ".join(sorted({record["versions"]["torch"] for record in records}))
        one = evaluation_of(records[0], "best", "apgd")
        assert one is not None
        parts.append(f"On {gpus}; torch {torch}; {one['images']:,} test images; attack: {one['attack']}.")
    records_by_run = {run.name: record_of(run, RESULTS) for run in group.runs}
    failed = [
        f"{name} ({record['failed']['stage']}: {record['failed']['error'].splitlines()[0]})"
        for name, record in records_by_run.items()
        if record is not None and "failed" in record
    ]
    if failed:
        parts.append(f"Failed: {'; '.join(failed)}.")
    left = [run for run in group.runs if missing(run, records_by_run[run.name])]
    if left:
        labels = dict.fromkeys(run.label for run in left)
        counts = {label: sum(run.label == label for run in left) for label in labels}
        words = ", ".join(f"{label} ({count} seeds)" if count > 1 else label for label, count in counts.items())
        parts.append(f"Missing, in whole or in part: {words}.")
    return "\n" + " ".join(parts) + "\n"


def winners(name: str) -> str:
    """Return which of the paper's methods has the highest mean, by radius."""
    group = groups()[name]
    found = {
        runs[0].label: records
        for runs in group.rows.values()
        if runs[0].label not in OWN and (records := records_of(runs))
    }
    lacking = [runs[0].label for runs in group.rows.values() if runs[0].label not in OWN and not records_of(runs)]
    if len(found) < 2:
        return f"\nWhich method is best at which radius: {NOT_YET}.\n"
    words = ", ".join(f"{_best(found, column)} at {column}" for column in group.radii)
    without = f" (without {', '.join(lacking)}: {NOT_YET})" if lacking else ""
    whole = {label: over_radii(records, group.radii) for label, records in found.items()}
    ranked = ", ".join(f"{label} {whole[label]:.1f}" for label in sorted(whole, key=whole.__getitem__, reverse=True))
    return (
        f"\nHighest mean among the paper's methods: {words}{without}.\n\nMean accuracy over all radii from 0 to "
        f"{group.radii[-1]}, straight between those measured, in per cent: {ranked}.\n"
    )


def over_radii(records: Sequence[Mapping[str, Any]], radii: Sequence[str]) -> float:
    """Return the mean accuracy over all radii from 0 to the last, by trapezoids: the mean margin up to it."""
    places = [0.0, *(float(Fraction(radius)) for radius in radii)]
    heights = [mean(values_of(records, column)) for column in (CLEAN, *radii)]
    return float(np.trapezoid(heights, places) / places[-1])


def differences(name: str) -> str:
    """Return paired differences between the first row of a group and every other, on the same images."""
    group = groups()[name]
    rows = {runs[0].label: records_of(runs) for runs in group.rows.values()}
    of = group.runs[0].label
    own = rows.pop(of)
    if not own:
        return f"\nPaired differences: {NOT_YET} ({of}).\n"
    lines = []
    for label, records in rows.items():
        if records:
            parts = [str(difference(records, own, column)) for column in (CLEAN, *group.radii)]
            lines.append([f"{of} - {label}", f"{len(own)}, {len(records)}", *parts])
    return grid(["points", "seeds", "clean", *group.radii], lines) if lines else f"\nOther methods: {NOT_YET}.\n"


def difference(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], column: str) -> Difference:
    """Return how much more often the second runs are right than the first, paired by image."""
    return paired_difference(_flags(first, column), _flags(second, column))


def _flags(records: Sequence[Mapping[str, Any]], column: str) -> list[np.ndarray]:
    parts = [evaluation_of(record, "best", "apgd") for record in records]
    return [flags_of(part, column).astype(float) for part in parts if part is not None]


def held_out(name: str) -> str:
    """Return, of every row's best epoch, what PGD-20 left of the hold-out beside what the tier apgd leaves of the test
    images, and of these what PGD-20 alone leaves where that is known.
    """
    group, lines = groups()[name], []
    for runs in group.rows.values():
        records = records_of(runs)
        if not records or max(values_of(records, group.radius)) == 0:  # natural training resists neither
            continue
        chosen = [100 * record["validation"]["val_robust"][record["best_epoch"] - 1] for record in records]
        whole = values_of(records, group.radius)
        lost = mean(after - before for before, after in zip(chosen, whole, strict=True))
        lines.append(
            [runs[0].label, cell(chosen), cell(whole), f"{lost:+.1f}", cell(_under_pgd(records, group.radius))]
        )
    head = ["%", "hold-out, PGD-20", f"{group.radius}, apgd", "difference", f"{group.radius}, PGD-20"]
    if not any(line[-1] for line in lines):  # records before a certain day do not have it
        head, lines = head[:-1], [line[:-1] for line in lines]
    return grid(head, lines) if lines else f"\nThe hold-out: {NOT_YET}.\n"


def _under_pgd(records: Sequence[Mapping[str, Any]], radius: str) -> list[float]:
    parts = [evaluation_of(record, "best", "apgd") or {} for record in records]
    kept = [(part["resists_pgd"][radius], part["images"]) for part in parts if radius in part.get("resists_pgd", {})]
    return [100 * float(unpacked(*flags).mean()) for flags in kept]


def tiers(name: str) -> str:
    """Return AutoAttack beside the tier apgd: what FAB-T and Square find beyond it."""
    group, lines = groups()[name], []
    for run in group.runs:
        if "autoattack" not in run.attacks:
            continue
        record = record_of(run, RESULTS) or {}
        quick, whole = (evaluation_of(record, "best", tier) for tier in ("apgd", "autoattack"))
        if quick is None or whole is None:
            lines.append([f"{run.label}, seed {run.seed}", NOT_YET, *[""] * (len(group.radii) + 1)])
            continue
        shown = [_tier_cell(quick, whole, radius) for radius in group.radii]
        first = [f"{run.label}, seed {run.seed}", f"{100 * whole[CLEAN]:.2f}"]
        lines.append([*first, *shown, f"{whole['wall_seconds']:.0f}"])
    return grid_of_runs("AutoAttack", ["AutoAttack, % (minus apgd)", "clean", *group.radii, "s"], lines)


def _tier_cell(quick: Mapping[str, Any], whole: Mapping[str, Any], radius: str) -> str:
    share = 100 * whole["robust"][radius]
    return f"{share:.2f} ({share - 100 * quick['robust'][radius]:+.2f})"


@cache
def published() -> list[dict[str, str]]:
    """Return the lines of the paper's tables."""
    with (RESULTS / "paper" / "tables.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def beside_paper(name: str) -> str:
    """Return our accuracies beside those of the paper's table with the same methods."""
    table = groups()[name].table
    numbers = {(line["defense"], line["radius"]): line for line in published() if line["table"] == table}
    lines = []
    for runs in groups()[name].rows.values():
        paper = runs[0].paper
        if paper is None:
            continue
        records = records_of(runs)
        ours = [cell(values_of(records, column)) for column in COLUMNS] if records else [NOT_YET, *[""] * len(RADII)]
        theirs = [_published(numbers[paper, column]) for column in COLUMNS]
        lines += [[runs[0].label, "here", *ours], ["", f"{PAPERS}, {_network(table)}", *theirs]]
    return grid_of_runs("Our runs", ["", "", "clean, %", *RADII], lines)


def _published(line: Mapping[str, str]) -> str:
    return f"{line['percent']} ± {line['sd']}" if line["sd"] else line["percent"]


def _network(table: str | None) -> str:
    return {"wrn28-10": "WRN-28-10", "preactresnet18": "PreActResNet-18"}[
        next(line["network"] for line in published() if line["table"] == table)
    ]


def overview() -> str:
    """Return, per group, how many runs are done, done in part, failed and missing, and the time they took."""
    lines = []
    for group in groups().values():
        records = {run.name: record_of(run, RESULTS) for run in group.runs}
        there = [record for record in records.values() if record is not None]
        failed = sum("failed" in record for record in there)
        left = len(group.runs) - len(there)
        parts = sum(bool(missing(run, records[run.name])) for run in group.runs) - left
        spent = sum(record.get("wall_seconds", 0.0) for record in there)
        spent += sum(one.get("wall_seconds", 0.0) for record in there for one in record.get("evaluations", []))
        done = len(there) - parts - failed
        lines.append([group.title, *map(str, (len(group.runs), done, parts, failed, left)), f"{spent / 60:.0f}"])
    return grid(["", "runs planned", "done", "in part", "failed", "missing", "minutes"], lines)


def earlier() -> str:
    """Return the runs on CIFAR-10 that the plan does not have."""
    planned = {run.name for group in groups().values() for run in group.runs}
    lines = []
    for path in sorted(RESULTS.glob("cifar10-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        if path.stem in planned or "robust" not in run:
            continue
        robust = ", ".join(f"{radius}: {100 * share:.2f}" for radius, share in run["robust"].items())
        name, place = f"[{path.stem}](../../results/{path.name})", f"{run['gpu']}, torch {run['versions']['torch']}"
        numbers = [str(run["epochs"]), str(run["seed"]), f"{run['seconds_per_epoch']:.1f}"]
        lines.append([name, f"{100 * run['clean']:.2f}", robust, *numbers, place])
    return grid(["", "clean, %", "robust, %", "epochs", "seed", "s per epoch", "GPU"], lines)


def models() -> str:
    """Return the published models, each with the command that measures it."""
    lines = []
    for path in sorted(MODELS.glob("*.safetensors")):
        record = record_named(path.stem)
        lines.append([f"`models/{path.name}`", f"{path.stat().st_size / 1e6:.1f}", cell([100 * record[CLEAN]])])
        lines[-1] += [cell([100 * record["robust"]["8/255"]]), f"`{command(f'models/{path.name}')}`"]
    if not lines:
        return "\nPublished weights: none yet.\n"
    return grid(["file, with a card beside it", "MB", "clean, %", "8/255, %", "measure it"], lines)


def record_named(name: str) -> dict[str, Any]:
    """Return the record of a run by its name."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def figure(name: str, words: str, command: str) -> str:
    """Return the picture of a figure, or that it is missing and which command makes its data."""
    if (FIGURES / f"{name}.png").is_file():
        return f"\n![{words}](figures/{name}.png)\n"
    return f"\n{words}: {NOT_YET} (`{command}`, then `python scripts/docs_figures.py`).\n"


def makers() -> dict[str, Callable[[], str]]:
    """Return the tables by name: those of a group end with the group's."""
    run = "python benchmarks/run_queue.py run"
    at = ("methods-against-at", "Accuracy of every method minus that of AT", run)
    both = ("methods-trade-off", "Accuracy of every method at 8/255 against clean accuracy", run)
    embedded = ("methods-embedded", "Accuracy of every method by radius, embedded images", run)
    made: dict[str, Callable[[], str]] = {
        "runs-overview": overview,
        "runs-earlier": earlier,
        "models": models,
        "figure-methods": partial(figure, *at),
        "figure-trade-off": partial(figure, *both),
        "figure-embedded": partial(figure, *embedded),
    }
    for name, group in groups().items():
        if group.runs[0].judge:  # trial_tables.py
            continue
        made[f"conditions-{name}"] = partial(conditions, name)
        if group.axes or group.runs[0].target:  # sensitivity_tables.py, target_tables.py
            continue
        made[f"runs-{name}"] = partial(methods, name)
        made[f"efforts-{name}"] = partial(efforts, name)
        made[f"winners-{name}"] = partial(winners, name)
        made[f"differences-{name}"] = partial(differences, name)
        made[f"held-out-{name}"] = partial(held_out, name)
        if group.table is not None:
            made[f"paper-{name}"] = partial(beside_paper, name)
        if any("autoattack" in run.attacks for run in group.runs):
            made[f"tiers-{name}"] = partial(tiers, name)
    return made


MAKERS = makers()
