"""Write the tables of the documentation from the JSON files of the measurements.

    python scripts/docs_tables.py            rewrite the tables
    python scripts/docs_tables.py --check    exit with 1 if one is not what its JSON says

A table stands between `<!-- table: NAME -->` and `<!-- end -->` in any page of docs/ (or README.md); NAME is that of a
function here, in published_tables.py, class_tables.py, sensitivity_tables.py, trial_tables.py, target_tables.py,
dynamics_tables.py or evaluation_tables.py (docs/results), in savings_tables.py (the pages about speed) or in
headline_table.py (the README).
Sentences can have numbers, too: `<!-- number: NAME -->...<!-- end -->`.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import class_tables
import dynamics_tables
import evaluation_tables
import headline_table
import published_tables
import savings_tables
import sensitivity_tables
import target_tables
import trial_tables
from published_tables import grid

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- (table|number): ([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)
BOUNDS = ("robust_by_margin_search", "robust_by_pgd20")
METHODS = {"natural": "natural", "at": "AT", "dyart": "DyART"}
# Of many lengths of our own search these; the JSON has all. Those of other packages are shown as they are.
LENGTHS = (
    "10 steps",
    "20 steps",
    "40 steps",
    "41 steps",
    "43 steps",
    "46 steps",
    "50 steps",
    "100 steps",
    "4 x 20 steps",
)


def load(path: str) -> dict[str, Any]:
    """Return a file of measurements."""
    data: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return data


def fashion() -> str:
    """Return accuracies on the embedded set: the smaller of margin search and PGD, mean over seeds."""
    records = load("benchmarks/results/fashion_mini.json")["records"]
    radii = list(records[0]["robust_by_pgd20"])
    rows = []
    for method in dict.fromkeys(record["method"] for record in records):
        runs = [run for run in records if run["method"] == method]
        clean = mean(run["clean"] for run in runs)
        robust = [mean(min(run[key][radius] for key in BOUNDS) for run in runs) for radius in radii]
        seconds = mean(run["train_seconds"] for run in runs)
        epochs = str(runs[0]["epochs"])
        rows.append(
            [METHODS.get(method, method), *(f"{100 * one:.1f}" for one in (clean, *robust)), epochs, f"{seconds:.0f}"]
        )
    return grid(["mean of three seeds, %", "clean", *radii, "epochs", "seconds"], rows)


def steps() -> str:
    """Return the time of a training step of every method."""
    data = load("benchmarks/results/methods.json")
    rows = [
        [record["method"], str(record["batch"]), f"{record['ms']:.1f}", f"{record['work']:.1f}"]
        for record in data["records"]
    ]
    return grid(["method", "batch", "ms (median)", "work (natural training: 1)"], rows)


def conflict() -> str:
    """Return the shares of negative speed below the radius, over all seeds, for BatchNorm and GroupNorm."""
    records = load("benchmarks/results/dynamics.json")["records"]
    rows = []
    for normalization in ("batch", "group"):
        for model in ("natural", "partially robust"):
            runs = [r for r in records if r["model"] == model and r["normalization"] == normalization]
            for key, suffix in (("radius 0.1", ""), ("radius 0.03137", ", 8/255")):
                cells = []
                for method in ("at", "dyart"):
                    parts = [run[key]["methods"][method + suffix]["below_radius"] for run in runs]
                    negative, count = (sum(part[what] for part in parts) for what in ("negative", "count"))
                    low, high = wilson(negative, count)
                    cells.append(f"{100 * negative / count:.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
                tests = [test for run in runs for test in run[key]["tests"] if test["second"] == "dyart" + suffix]
                batches = (sum(test[f"batches_{which}"] for test in tests) for which in ("first", "second"))
                radius = "8/255" if suffix else "0.1"
                rows.append([model, normalization, radius, *cells, " / ".join(map(str, batches))])
    return grid(["network", "norm layers", "radius", "AT", "DyART", "batches with more under AT / DyART"], rows)


def movement() -> str:
    """Return how predicted and actual changes of margins correlate."""
    records = load("benchmarks/results/dynamics.json")["records"]
    rows = []
    for step in sorted({move["step"] for record in records for move in record["movement"]}):
        moves = [move for record in records for move in record["movement"] if move["step"] == step]
        sizes = [move["correlation"] for move in moves]
        signs = [move["same_sign"] for move in moves]
        ends = [f"{min(sizes):.3f} to {max(sizes):.3f}", f"{100 * min(signs):.0f} to {100 * max(signs):.0f} %"]
        rows.append([f"{step:g}", str(len(moves)), *ends])
    return grid(["share of the optimizer's step", "cases", "correlation", "same sign"], rows)


def jvp() -> str:
    """Return time and memory of the speed of a batch."""
    records = load("benchmarks/results/speed_jvp.json")["records"]
    rows = [[record["call"], f"{record['ms']:.1f}", f"{record['peak_mib']:.0f}"] for record in records]
    return grid(["", "ms", "peak memory, MiB"], rows)


def search(norm: str, boundary: str, file: str = "search") -> str:
    """Return the quality of the searches for one norm."""
    records = [
        record
        for record in load(f"benchmarks/results/{file}.json")["records"]
        if record["norm"] == norm and record["boundary"] == boundary
        if not record["solver"].startswith("fast") or record["setting"] in LENGTHS
    ]
    rows = [
        [
            record["solver"],
            record["setting"].removesuffix(" steps"),
            f"{record['backward']:.0f}",
            f"{100 * record['found']:.1f}",
            f"{record['mean_distance']:.4g}",
            f"{record['mean_over_best']:.3f}",
            f"{record['q95_over_best']:.3f}",
            f"{100 * record['optimal']:.1f}" if "optimal" in record else "",  # other packages do not say
            f"{record['seconds']:.1f}",
        ]
        for record in sorted(records, key=lambda record: (record["solver"], record["backward"]))
    ]
    head = ["search", "steps", "backward passes", "found, %", "mean", "over best", "95 % quantile", "optimal, %", "s"]
    return grid(head, rows)


def optimality() -> str:
    """Return AttackBench's grade by norm: of our search, as long as fits into some passes, and of each other one."""
    rows = []
    for network, file in (("natural", "search"), ("robust", "search_robust")):
        records = [r for r in load(f"benchmarks/results/{file}.json")["records"] if r["boundary"] == "exact"]
        for norm in ("linf", "l2", "l1"):
            here = [(r["forward"] + r["backward"], r) for r in records if r["norm"] == norm]
            own = [(passes, r) for passes, r in here if r["solver"] == "fast"]
            best = [max((entry for entry in own if entry[0] <= most), key=lambda e: e[0]) for most in (100, 220)]
            others = [(passes, r) for passes, r in here if _of_a_package(r)]
            words = [f"{r['optimality']:.3f} ({passes:.0f})" for passes, r in best]
            named = [f"{_short(r['solver'])} {r['optimality']:.3f} ({passes:.0f})" for passes, r in others]
            rows.append([network, norm, *words, ", ".join(named)])
    return grid(["network", "norm", "fast, up to 100", "fast, up to 220", "other packages"], rows)


def _short(solver: str) -> str:
    """Return a search's name without its package, but for the second package's FAB."""
    return "adv_lib's FAB" if solver == "adv_lib FAB" else solver.split()[-1]


def _of_a_package(record: dict[str, Any]) -> bool:
    return str(record["solver"]).startswith(("pyautoattack", "adv_lib"))


def ahead() -> str:
    """Return with how few steps our search has no larger a mean distance than another package's, and finds no less.

    "about": the two were not timed in one process.
    """
    rows = []
    for network, file in (("natural", "search"), ("robust", "search_robust")):
        records = [r for r in load(f"benchmarks/results/{file}.json")["records"] if r["boundary"] == "exact"]
        own = sorted((r for r in records if r["solver"] == "fast"), key=lambda r: r["backward"])
        others = [r for r in records if _of_a_package(r)]
        for other in sorted(others, key=lambda r: ("linf", "l2", "l1").index(r["norm"])):
            closer = (r for r in own if r["norm"] == other["norm"] and r["mean_distance"] <= other["mean_distance"])
            first = next(r for r in closer if r["found"] >= other["found"])
            fewer, faster = other["backward"] / first["backward"], other["seconds"] / first["seconds"]
            name = f"{other['solver']}, {other['setting']}"
            steps = first["setting"].removesuffix(" steps")
            together = "call" in other and other["call"] == first.get("call")
            words = f"{faster:.1f}" if together else f"about {faster:.0f}"
            rows.append([network, other["norm"], name, steps, f"{fewer:.1f}", words])
    head = ["network", "norm", "other search", "steps of fast", "times fewer backward passes", "times faster"]
    return grid(head, rows)


def paper_conditions() -> str:
    """Return how many points meet the paper's conditions, by its own search and by ours."""
    cases = [("search", "fab", 20), ("search", "fab", 100), ("search", "fast", 20), ("search_robust", "fast", 20)]
    rows = []
    for file, solver, steps in cases:
        for record in load(f"benchmarks/results/{file}.json")["records"]:
            if (record["solver"], record["setting"]) == (solver, f"{steps} steps") and record["norm"] != "l1":
                network = "robust" if file == "search_robust" else "natural"
                shares = [f"{100 * record[name]:.1f}" for name in ("conditions_ab", "condition_c")]
                c = shares[1] if record["norm"] == "linf" else ""  # the paper has (c) for L-inf alone
                boundary = f"{record['norm']}, {record['boundary']}"
                rows.append([solver, str(steps), network, boundary, shares[0], c])
    return grid(["search", "steps", "network", "boundary", "(a) and (b), %", "(c), %"], rows)


def classes_cost() -> str:
    """Return the passes of searches on networks with few and with many classes."""
    counts: dict[tuple[str, str], list[str]] = {}
    for r in load("benchmarks/results/search_classes.json")["records"]:
        counts.setdefault((r["solver"], r["setting"]), []).append(f"{r['forward']:.0f}, {r['backward']:.0f}")
    return grid(["search", "setting", "10 classes", "200 classes"], [[*key, *both] for key, both in counts.items()])


def saturating(norm: str) -> str:
    """Return how close the points on saturated networks are to the closest, and how many are much farther."""
    data = load("benchmarks/results/saturating.json")
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for record in data["records"]:
        if record["norm"] != norm:
            continue
        solver = "" if record["solver"] == "fast" else f"{record['solver']}, "
        restarts = "" if record["restarts"] == 1 else f", {record['restarts']} restarts"
        row = cells.setdefault((record["table"], record["activation"]), {})
        row[f"{solver}{record['steps']} steps{restarts}"] = f"{record['ratio']:.3f} ({100 * record['far']:.1f} %)"
    columns = list(next(iter(cells.values())))
    rows = [[*names, *(row[column] for column in columns)] for names, row in cells.items()]
    return grid(["table", "activation", *columns], rows)


def bench(name: str = "steps") -> str:
    """Return the steps of `dyart bench --gpu`."""
    records = load(f"benchmarks/results/{name}.json")["records"]
    adversarial = {_place(record): record["ms"] for record in records if record["method"] == "at"}
    rows = [
        [
            f"{record['network']}, {record['normalization']} norm",
            str(record["batch"]),
            METHODS.get(record["method"], record["method"].upper()),
            f"{record['ms']:.1f}",
            f"{record['ms'] / adversarial[_place(record)]:.3f}",
            f"{record['passes']:.0f}",
            f"{100 * record['of_product']:.0f}",
            f"{record['peak_mib'] / 1024:.1f}",
            f"{record['cifar10_epoch_seconds']:.1f}",
        ]
        for record in records
    ]
    head = ["network", "batch", "method", "ms", "over AT", "passes", "% of product", "peak, GiB", "CIFAR-10 epoch, s"]
    return grid(head, rows)


def _place(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["network"], record["normalization"], record["batch"]


def scaling_fit() -> str:
    """Return the cost formula's predictions beside what was measured."""
    rows = []
    for fit in load("benchmarks/results/scaling.json")["fits"]:
        for check in fit["checked"]:
            rows.append(
                [
                    f"{fit['network']}, {fit['normalization']} norm",
                    METHODS.get(check["method"], check["method"].upper()),
                    str(check["batch"]),
                    f"{check['measured_ms']:.1f}",
                    f"{check['predicted_ms']:.1f} ({100 * check['error']:+.1f} %)",
                    f"{check['measured_mib']:.0f}",
                    f"{check['predicted_mib']:.0f} ({100 * check['memory_error']:+.0f} %)",
                ]
            )
    return grid(["network", "method", "batch", "ms", "by the formula", "peak, MiB", "by the formula"], rows)


def scaling_numbers() -> str:
    """Return the fitted numbers of the cost formula."""
    rows = [
        [
            f"{fit['network']}, {fit['normalization']} norm",
            f"{1000 * fit['launch_ms']:.0f}",
            f"{1000 * fit['per_image_ms']:.2f}",
            f"{fit['fixed_ms']:.2f}",
            f"{fit['per_image_mib']:.2f}",
            f"{fit['fixed_mib']:.0f}",
        ]
        for fit in load("benchmarks/results/scaling.json")["fits"]
    ]
    head = ["network", "launch, us", "per image, us", "fixed, ms", "MiB per image", "fixed, MiB"]
    return grid(head, rows)


def scaling_plans() -> str:
    """Return what larger trainings would take."""
    rows = [
        [
            plan["training"],
            str(plan["gpus"]),
            f"{plan['images_per_gpu']:g}",
            f"{plan['step_ms']:.0f}",
            f"{plan['launching_ms']:.0f}",
            f"{plan['waiting_ms']:.0f}",
            f"{100 * plan['efficiency']:.0f}",
            f"{plan['hours']:.1f}",
        ]
        for plan in load("benchmarks/results/scaling.json")["plans"]
    ]
    head = ["training", "GPUs", "images each", "step, ms", "launching, ms", "waiting, ms", "efficiency, %", "hours"]
    return grid(head, rows)


def monitor(file: str) -> str:
    """Return the share of time that a monitor takes."""
    record = load(f"benchmarks/results/{file}.json")["records"][0]
    return f"{100 * record['share']:.1f} %"


def wilson(successes: int, trials: int, quantile: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95 % interval, as ``dyart.evaluation.intervals`` does (here without torch)."""
    share, extra = successes / trials, quantile**2 / trials
    middle = (share + extra / 2) / (1 + extra)
    half = quantile * (share * (1 - share) / trials + extra / (4 * trials)) ** 0.5 / (1 + extra)
    return middle - half, middle + half


MAKERS: dict[str, Callable[[], str]] = {
    "fashion": fashion,
    "steps": steps,
    "conflict": conflict,
    "movement": movement,
    "jvp": jvp,
    "monitor": lambda: monitor("monitor"),
    "monitor-gpu": lambda: monitor("monitor_gpu"),
    "bench": bench,
    "scaling-fit": scaling_fit,
    "scaling-numbers": scaling_numbers,
    "scaling-plans": scaling_plans,
    "search-linf": lambda: search("linf", "exact"),
    "search-l2": lambda: search("l2", "exact"),
    "search-l1": lambda: search("l1", "exact"),
    "search-soft": lambda: search("linf", "soft"),
    "search-optimality": optimality,
    "search-conditions": paper_conditions,
    "search-ahead": ahead,
    "search-classes": classes_cost,
    "search-saturating-linf": lambda: saturating("linf"),
    "search-saturating-l2": lambda: saturating("l2"),
    "search-robust-linf": lambda: search("linf", "exact", "search_robust"),
    "search-robust-l2": lambda: search("l2", "exact", "search_robust"),
    "search-robust-l1": lambda: search("l1", "exact", "search_robust"),
    "search-robust-soft": lambda: search("linf", "soft", "search_robust"),
    **published_tables.MAKERS,
    **class_tables.MAKERS,
    **sensitivity_tables.MAKERS,
    **dynamics_tables.MAKERS,
    **evaluation_tables.MAKERS,
    **headline_table.MAKERS,
    **savings_tables.MAKERS,
    **target_tables.MAKERS,
    **trial_tables.MAKERS,
}


def rewritten(text: str) -> str:
    """Return a page with its tables as the JSON files have them."""

    def fresh(place: re.Match[str]) -> str:
        made = MAKERS[place[3]]()
        return f"{place[1]}{f'{chr(10)}{made}{chr(10)}' if place[2] == 'table' else made}{place[5]}"

    return PLACE.sub(fresh, text)


def main(check: bool) -> int:
    """Rewrite or check all pages; return the exit status."""
    stale = []
    for page in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        fresh = rewritten(text)
        if fresh != text:
            stale.append(page.relative_to(ROOT).as_posix())
            if not check:
                page.write_text(fresh, encoding="utf-8")
    if stale and check:
        print(f"not what the JSON files say: {', '.join(stale)}; run python scripts/docs_tables.py", file=sys.stderr)
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
