"""Tables of the page about evaluation: dyart.evaluate beside pyautoattack, radius by radius."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from published_tables import grid

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
NAMES = {
    "peer": "pyautoattack, standard, at every radius",
    "strict": "`autoattack`, strict",
    "default": "`autoattack`",
    "apgd": "`apgd`",
    "margins": "`margins`",
}


def _records(name: str, kind: str) -> list[dict[str, Any]]:
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return [record for record in content["records"] if record["kind"] == kind]


def accuracies(name: str) -> str:
    """Return what resists every part at every radius, and what that costs."""
    parts = sorted(_records(name, "part"), key=lambda part: list(NAMES).index(part["part"]))
    radii = list(parts[0]["robust"])
    rows = []
    for part in parts:
        shares = [f"{100 * part['robust'][radius]:.1f}" for radius in radii]
        passes = [f"{part['passes'][way]:,.0f}" for way in ("forward", "backward")]
        rows.append([NAMES[part["part"]], *shares, *passes, f"{part['seconds']:.0f}"])
    return grid(["robust, %", *radii, "forward passes", "backward", "s"], rows)


def differences(name: str) -> str:
    """Return how many examples one part breaks and the other does not."""
    rows = []
    for pair in _records(name, "comparison"):
        if not {pair["first"], pair["second"]} <= NAMES.keys():
            continue
        counts = [
            f"{len(found['only_first_breaks'])}, {len(found['only_second_breaks'])}" for found in pair["radii"].values()
        ]
        words = f"{NAMES[pair['first']]} and {NAMES[pair['second']]}"
        rows.append([words, *counts, f"{pair['time_ratio']:.2f}", f"{pair['passes_ratio']:.2f}"])
    radii = list(_records(name, "comparison")[0]["radii"])
    return grid(["broken by the one alone, by the other alone", *radii, "time of the other", "its passes"], rows)


def precisions() -> str:
    """Return the same evaluations in two precisions."""
    parts = _records("evaluate-precision", "part")
    radii = list(parts[0]["robust"])
    order = sorted(parts, key=lambda part: (part["part"], part["precision"]))
    rows = [
        [f"`{part['part']}`", part["precision"], *(f"{100 * part['robust'][radius]:.1f}" for radius in radii)]
        for part in order
    ]
    return grid(["robust, %", "precision", *radii], rows)


MAKERS: dict[str, Callable[[], str]] = {
    "evaluate-dyart": lambda: accuracies("evaluate-dyart"),
    "evaluate-dyart-differences": lambda: differences("evaluate-dyart"),
    "evaluate-natural": lambda: accuracies("evaluate-natural"),
    "evaluate-natural-differences": lambda: differences("evaluate-natural"),
    "evaluate-10000": lambda: accuracies("evaluate-10000"),
    "evaluate-precision": precisions,
}
