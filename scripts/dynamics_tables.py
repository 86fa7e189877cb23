"""The tables of docs/results about the paper's dynamics on CIFAR-10, beside what the paper states and plots."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from published_tables import NOT_YET, RESULTS, figure, grid

MODELS = ("natural", "partially robust")
RADIUS = 8 / 255
SHARES = ("negative_share", "negative_share_of_step")  # of theta' = -grad, and of the optimizer's step
ONE_UPDATE, WHOLE = "python benchmarks/paper_dynamics.py", "python benchmarks/whole_training.py"


def read(path: Path) -> dict[str, Any] | None:
    """Return a JSON file, if there is one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def stated() -> dict[str, Any]:
    """Return the numbers that the paper's text states."""
    found = read(RESULTS / "paper" / "stated.json")
    assert found is not None
    return found


def plotted(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return margins and speeds of the paper's figure 3 for one of its networks."""
    with (RESULTS / "paper" / "AT_margin_speed.csv").open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["model"] == model.replace(" ", "_")]
    if not lines:
        raise ValueError(f"AT_margin_speed.csv has no network {model!r}")
    return tuple(np.array([float(line[key]) for line in lines]) for key in ("margin", "speed"))  # type: ignore[return-value]


def negative(margin: np.ndarray, speed: np.ndarray, below: float) -> float:
    """Return the share of negative speed among margins below a radius."""
    return float((speed[margin < below] < 0).mean())


def one_update() -> str:
    """Return the shares of negative speed under one update, ours beside the paper's."""
    found, said = read(RESULTS / "paper-dynamics.json"), stated()
    lines = []
    for model in MODELS:
        margin, speed = plotted(model)
        network = said["networks"][model]
        lines.append(
            [
                f"{model}, the paper",
                f"about {100 * network['clean']:.0f} / {100 * network['robust']:.0f}",
                "",
                f"{100 * said['negative_below_8_255'][model]:.1f} (dots: {100 * negative(margin, speed, RADIUS):.1f})",
                "",
                f"{100 * said['first_interval_natural']['at']:.1f}" if model == "natural" else "",
                f"{100 * said['first_interval_natural']['dyart']:.1f}" if model == "natural" else "",
                "1",
            ]
        )
        record = next((one for one in found["records"] if one["model"] == model), None) if found else None
        lines.append([f"{model}, here", *(_ours(record) if record else [NOT_YET, *[""] * 6])])
    shares = [f"{method}, below {radius}, %" for radius in ("8/255", "4/255") for method in ("AT", "DyART")]
    return grid(["network", "clean / PGD-20, %", "images below 8 / 4", *shares, "batches"], lines)


def one_update_conditions() -> str:
    """Return on what one update was measured."""
    found = read(RESULTS / "paper-dynamics.json")
    if found is None:
        return f"\nMeasured on: {NOT_YET}.\n"
    settings, steps = found["settings"], ", ".join(f"{r['model']} {r['step']}" for r in found["records"])
    return (
        f"\n{found['machine']['gpu'] or 'CPU'}, torch {found['versions']['torch']}, seed {settings['seed']}, one run; "
        f"networks after so many steps: {steps}; batches of {found['records'][0]['batch']}. "
        "[JSON](../../results/paper-dynamics.json)\n"
    )


def _ours(record: Mapping[str, Any]) -> list[str]:
    methods = record["dynamics"]["methods"]
    below = [_share(methods[name]["below_radius"]) for name in ("at", "dyart")]
    first = [_share(methods[name]["intervals"][0]) for name in ("at", "dyart")]
    (robust,) = record["robust"].values()
    accuracies = f"{100 * record['clean']:.1f} / {100 * robust:.1f}"
    counts = [methods["at"]["below_radius"]["count"], methods["at"]["intervals"][0]["count"]]
    return [accuracies, " / ".join(map(str, counts)), *below, *first, str(record["batches"])]


def _share(part: Mapping[str, Any]) -> str:
    if part["share"] is None:
        return "none"
    return f"{100 * part['share']:.1f} [{100 * part['low']:.1f}, {100 * part['high']:.1f}]"


def batches() -> str:
    """Return the paired tests of AT against DyART: by example and by batch."""
    found = read(RESULTS / "paper-dynamics.json")
    if found is None:
        return f"\nPaired tests: {NOT_YET}.\n"
    lines = []
    for record in found["records"]:
        for test in record["dynamics"]["tests"]:
            wins = f"{test['batches_first']} / {test['batches_second']}"
            ps = [f"{test[key]:.2g}" for key in ("p_value", "p_value_by_batch")]
            lines.append([record["model"], f"{100 * test['difference']:+.1f}", ps[0], wins, ps[1]])
    head = ["network", "DyART - AT, points", "p (McNemar)", "batches with more under AT / DyART", "p (sign test)"]
    return grid(head, lines)


def whole_training() -> str:
    """Return where the whole trainings end, ours beside the paper's curves."""
    lines = []
    for method, name in (("at", "AT"), ("dyart", "DyART")):
        accuracies, share = _last(f"{name}_acc.csv"), _last("neg_ratio_wholeTraining.csv")
        paper = [100 * accuracies["test_clean"], 100 * accuracies["test_robust"], 100 * share[name]]
        lines.append([f"{name}, the paper", *(f"{value:.1f}" for value in paper), "", "25,000", "", ""])
        record = read(RESULTS / f"whole-training-{method}.json")
        if record is None:
            lines.append([f"{name}, here", NOT_YET, *[""] * 6])
            continue
        (robust,) = record["test"]["robust"].values()
        ours = [record["test"]["clean"], robust, *(record["ends"].get(key) for key in SHARES)]
        words = ["" if value is None else f"{100 * value:.1f}" for value in ours]
        place = f"{record['gpu']}, torch {record['versions']['torch']}, seed {record['seed']}"
        link = f"[{place}](../../results/whole-training-{method}.json)"
        lines.append([f"{name}, here", *words, f"{record['iterations']:,}", f"{record['wall_seconds']:.0f}", link])
    head = ["", "clean, %", "PGD-20, %", "negative speed, %", "of the optimizer's step, %", "iterations", "s", "JSON"]
    return grid(head, lines)


def _last(name: str) -> dict[str, float]:
    with (RESULTS / "paper" / name).open(newline="", encoding="utf-8") as file:
        *_, last = csv.DictReader(file)
    return {key: float(value) for key, value in last.items()}


MAKERS: dict[str, Callable[[], str]] = {
    "one-update": one_update,
    "one-update-conditions": one_update_conditions,
    "one-update-tests": batches,
    "one-update-scatter": lambda: figure("dynamics-scatter", "Margin and speed of every image", ONE_UPDATE),
    "one-update-bars": lambda: figure("dynamics-bars", "Positive and negative speed by margin", ONE_UPDATE),
    "whole-training": whole_training,
    "whole-training-curves": lambda: figure("whole-training", "Accuracies and negative speed over time", WHOLE),
}
