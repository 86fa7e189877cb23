"""The README's few figures, one line each, with the JSON files they come from."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from published_tables import CLEAN, grid, groups, records_of, values_of

ROOT = Path(__file__).parents[1]
# Rows of CIFAR-10's table: of each, the first that was run.
SHOWN = (("DyART",), ("AT", "AT, weight decay 0.0005"))


def _load(path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return content


def _link(*paths: str) -> str:
    if len(paths) == 1:
        return f"[JSON]({paths[0]})"
    return "JSON " + ", ".join(f"[{number}]({path})" for number, path in enumerate(paths, 1))


def step_row() -> list[str]:
    """DyART's step over AT's, beside what the paper measured for its own."""
    path, paper = "benchmarks/results/steps.json", "results/paper/stated.json"
    place = {"network": "resnet18", "normalization": "group", "batch": 128}
    rows = {r["method"]: r for r in _load(path)["records"] if place.items() <= r.items()}
    ours, at = rows["dyart"], rows["at"]
    stated = _load(paper)["step_ms"]
    ratios = [stated[f"DyART, {steps} search steps"] / stated["AT, PGD-10"] for steps in (10, 20)]
    words = (
        f"{ours['ms'] / at['ms']:.2f} of a PGD-10 adversarial step ({ours['ms']:.1f} ms, {ours['search_steps']} search "
        f"steps); in the paper {ratios[0]:.1f} (10 steps) and {ratios[1]:.1f} (20)"
    )
    return ["A DyART step, ResNet-18-GN", words, _link(path, paper)]


def search_row() -> list[str]:
    """Our search beside FAB on the robust network."""
    path = "benchmarks/results/search_robust.json"
    found = {(r["norm"], r["boundary"], r["solver"], r["setting"]): r for r in _load(path)["records"]}
    ours, fab = (found["linf", "exact", *which] for which in (("fast", "20 steps"), ("pyautoattack FAB", "100 steps")))
    words = (
        f"{ours['mean_over_best']:.3f} of the best known distance in {ours['seconds']:.1f} s; AutoAttack's FAB: "
        f"{fab['mean_over_best']:.3f} in {fab['seconds']:.0f} s"
    )
    return ["L-inf margins of 512 images", words, _link(path)]


def evaluation_row() -> list[str]:
    """AutoAttack at five radii, by us and by its package."""
    path = "benchmarks/results/evaluate-dyart.json"
    records = _load(path)["records"]
    seconds = {r["part"]: r["seconds"] for r in records if r["kind"] == "part"}
    (pair,) = [r for r in records if r["kind"] == "comparison" and (r["first"], r["second"]) == ("peer", "default")]
    most = max(len(r["only_first_breaks"]) + len(r["only_second_breaks"]) for r in pair["radii"].values())
    own, peer = f"{seconds['default']:.0f} s", f"{seconds['peer']:.0f} s"
    words = f"{own}; its own package {peer}; at most {most} verdicts differ at a radius"
    return ["AutoAttack at five radii, 1,000 images", words, _link(path)]


def training_row() -> list[str]:
    """CIFAR-10."""
    what = "CIFAR-10, ResNet-18, 50 epochs: % clean / APGD at 4 / 8 / 16/255"
    return [what, *_accuracies_of("cifar10-resnet18-bn", SHOWN, (CLEAN, "4/255", "8/255", "16/255"))]


def embedded_row() -> list[str]:
    """The embedded images."""
    what = "Embedded images, small CNN, 16 epochs: % clean / APGD at 0.1 / 0.15 / 0.2"
    return [what, *_accuracies_of("fashion-mini-methods", (("DyART",), ("AT",)), (CLEAN, "0.1", "0.15", "0.2"))]


def _accuracies_of(group: str, wanted: Sequence[Sequence[str]], columns: Sequence[str]) -> list[str]:
    """Return accuracies of some rows, the first that there is of each choice, mean over their seeds; and the links."""
    rows = {row[0].label: records_of(row) for row in groups()[group].rows.values()}
    cells, paths = [], []
    for label in (next(label for label in labels if rows[label]) for labels in wanted):
        shares = " / ".join(f"{mean(values_of(rows[label], column)):.1f}" for column in columns)
        cells.append(f"{label} {shares} ({_seeds(rows[label])})")
        paths += [f"results/{record['name']}.json" for record in rows[label]]
    return ["; ".join(cells), _link(*paths)]


def fast_row(time: str, target: int, method: str) -> list[str]:
    """The shortest training to a robust accuracy, from its start to its end; all seeds that there are."""
    first, *others = groups()[f"time-to-{target}"].runs
    records = records_of([first, *(run for run in others if run.row == first.row)])
    shares = " / ".join(f"{100 * mean(values):.1f}" for values in zip(*map(_accuracies, records), strict=True))
    longest = max(record["wall_seconds"] for record in records)
    paths = [f"results/{record['name']}.json" for record in records]
    compiling = max(record["start_seconds"] for record in records)
    times = f"{longest:.0f} s, {compiling:.0f} s of them compiling ({_seeds(records)})"
    words = f"{method} {shares} after {times}: `{first.recipe}`"
    return [f"CIFAR-10 in {time}: % clean / APGD at 8/255", words, _link(*paths)]


def _seeds(records: Sequence[object]) -> str:
    return "1 seed" if len(records) == 1 else f"{len(records)} seeds"


def _accuracies(run: Mapping[str, Any]) -> tuple[float, float]:
    return run["clean"], run["robust"]["8/255"]


def headline() -> str:
    """Return the table."""
    fast = [fast_row("a minute", 45, "AT"), fast_row("six minutes", 50, "TRADES-AWP")]
    rows = [step_row(), search_row(), evaluation_row(), training_row(), *fast, embedded_row()]
    return grid(["what", "result", "source"], rows)


MAKERS: dict[str, Callable[[], str]] = {"headline": headline}
