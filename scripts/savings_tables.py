"""Tables of the page about speed: what DyART's savings save, and a step on a CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from published_tables import grid

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PUBLISHED_STEPS = 8  # of the search, in the published trainings
NAMES = {"natural": "natural", "at": "AT, PGD-10", "trades": "TRADES, PGD-10", "dyart": "DyART"}


def _records(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["records"]
    return records


def ablation() -> str:
    """Return every variant's accuracies, passes and time, means over the seeds."""
    records, rows = _records("ablation"), []
    base = {record["seed"]: record["step_ms"] for record in records if record["variant"] == "none"}
    for variant in dict.fromkeys(record["variant"] for record in records):
        runs = [record for record in records if record["variant"] == variant]
        steps = f"{mean(mean(run['search_steps']) for run in runs):.1f}"
        shares = [f"{100 * mean(run[key] for run in runs):.1f}" for key in ("clean", "robust", "found", "good")]
        passes = " + ".join(f"{mean(run[key] for run in runs):.1f}" for key in ("forward_passes", "backward_passes"))
        time = f"{mean(run['step_ms'] / base[run['seed']] for run in runs):.2f}"
        rows.append([variant, steps, *shares, passes, time, f"{mean(run['over_beside'] for run in runs):.2f}"])
    head = [
        "variant",
        "steps",
        "clean, %",
        "robust, %",
        "found, %",
        "good, %",
        "passes",
        "time",
        "over AT",
    ]
    return grid(head, rows)


def _search_of_steps(precision: str = "") -> dict[str, Any]:
    """Return how good the search of the published steps is: as a training runs it, or in plain float32."""
    searches = json.loads((RESULTS / "steps.json").read_text(encoding="utf-8"))["quality"]["records"]
    (search,) = [record for record in searches if record["search"] == f"{PUBLISHED_STEPS} steps{precision}"]
    found: dict[str, Any] = search
    return found


def plain_search() -> str:
    """Return, as words, how good the search is in plain float32."""
    search = _search_of_steps()
    return f"{search['mean_over_best']:.2f} and {search['conditions_ab']:.0%}"


def trained_across() -> str:
    """Return how many points of the search as a training runs it are across the boundary in plain float32."""
    return f"{_search_of_steps(', as trained')['holds_in_fp32']:.0%}"


def released() -> str:
    """Return steps and their search beside those of the authors' code."""
    theirs = json.loads((ROOT / "results" / "paper" / "stated.json").read_text(encoding="utf-8"))["released_code"]
    place = {"network": "resnet18", "normalization": "group", "batch": 128}
    steps = {record["method"]: record for record in _records("steps") if place.items() <= record.items()}
    rows = [
        [f"step, {NAMES[method]}, ms", f"{ms}", f"{steps[method]['ms']:.1f}", f"{ms / steps[method]['ms']:.1f}"]
        for method, ms in theirs["step_ms"].items()
    ]
    search = _search_of_steps(", as trained")
    for name, key, form in (
        ("distance over best", "mean_over_best", ".2f"),
        ("conditions (a), (b)", "conditions_ab", ".0%"),
    ):
        rows.append([f"search, {name}", *(format(record[key], form) for record in (theirs, search)), ""])
    return grid(["", "released code", "dyart", "times as fast"], rows)


def precision() -> str:
    """Return how good the search of a training step is in several precisions."""
    shares = ("found", "a", "b", "conditions_ab")
    rows = [
        [
            record["precision"],
            record["ends"],
            *(f"{100 * record[share]:.1f}" for share in shares),
            f"{record['mean_over_reference']:.3f}",
        ]
        for record in _records("search_precision")
        if record["steps"] == PUBLISHED_STEPS
    ]
    return grid(["precision", "ends", "found, %", "(a), %", "(b), %", "both, %", "distance over reference"], rows)


def kl_precision() -> str:
    """Return the divergence that TRADES' attack reaches in half precision beside float32."""
    records = _records("kl_precision")
    plain = {(one["start"], one["steps"]): one["kl"] for one in records if one["precision"] == "fp32"}
    rows = [
        [
            one["start"],
            str(one["steps"]),
            f"{plain[one['start'], one['steps']]:.3f}",
            f"{one['kl']:.3f}",
            f"{one['difference']:+.3f} ± {one['error']:.3f}",
            f"{100 * one['first_step']:.0f}",
        ]
        for one in records
        if one["precision"] != "fp32"
    ]
    head = ["start", "steps", "KL, float32", "KL, bfloat16", "difference", "signs of the first step as in float32, %"]
    return grid(head, rows)


def cpu_steps() -> str:
    """Return the demo network's steps on a CPU."""
    records = _records("steps_cpu")
    adversarial = next(record["ms"] for record in records if record["method"] == "at")
    rows = [
        [NAMES[record["method"]], f"{record['ms']:.0f}", f"{record['ms'] / adversarial:.2f}", f"{record['passes']:.0f}"]
        for record in records
    ]
    return grid(["method", "ms (median)", "over AT", "passes"], rows)


def cpu_range() -> str:
    """Return the smallest and the largest ratio of DyART's step to AT's among all runs of the measurement."""
    ratios = sorted(record["dyart"] / record["at"] for record in _records("steps_cpu_runs"))
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} runs"


MAKERS: dict[str, Callable[[], str]] = {
    "ablation": ablation,
    "precision": precision,
    "kl-precision": kl_precision,
    "plain-search": plain_search,
    "trained-across": trained_across,
    "released": released,
    "steps-cpu": cpu_steps,
    "steps-cpu-range": cpu_range,
}
