"""Folders of runs as trainings and measurements leave them, with made-up numbers: for tests of the page."""

import csv
import html.parser
import json
from pathlib import Path

import numpy as np

EXAMPLES = 60
SIDE = 8
RADIUS = 0.1
SECONDS = {"train_seconds": 2.5, "validation_seconds": 1.0}
# Texts that try to be more than text: in HTML, in an attribute, in a script, in plotly's little HTML, in a template.
HOSTILE = (
    "<img src=x onerror=\"window.hacked='image'\">",
    "\"'><svg onload=window.hacked='svg'>&amp;\u2028",
    "</script><script>window.hacked='script'</script>",
    "<b>bold</b><a href='https://example.com'>link</a> %{x} $title @blue",
)
CONFIG = """\
recipe: {recipe}
note: {note}
seed: {seed}
method: {{name: {method}, radius: 0.1, r0: 0.2, steps: {steps}, norm: linf}}
data: {{name: {data}, limit: null}}
model: {{name: cnn, normalization: batch}}
optim: {{lr: 0.1, schedule: cosine}}
train: {{epochs: 4, burn_in: 0, batch_size: 128}}
eval: {{radius: 0.1, norm: linf, radii: [0.05, 0.1]}}
"""


def write_run(
    folder: Path, method: str = "at", seed: int = 0, texts: tuple[str, ...] = (), whole: bool = True, channels: int = 1
) -> Path:
    """Write a run's folder and return it; ``texts`` go wherever one can be; not ``whole``: the configuration alone."""
    folder.mkdir(parents=True)
    data, note = "fashion-mini", "made up for tests"
    if texts:
        data, note = str(_data_set(folder, texts)), " ".join(texts)
    words = {"recipe": f"fashion-mini-cnn-{method}", "note": json.dumps(note), "seed": seed, "method": method}
    words |= {"steps": 10 + seed, "data": json.dumps(data)}
    (folder / "config.yaml").write_text(CONFIG.format(**words), encoding="utf-8")
    if not whole:
        return folder
    random = np.random.default_rng(seed)
    versions = {"dyart": "0.1.0", "torch": "2.13.0"} | ({texts[2]: texts[3]} if texts else {})
    _json(folder / "environment.json", {"seed": seed, "python": "3.12.1", "versions": versions, "device": "cpu"})
    _json(folder / "evaluation.json", evaluation(seed, texts) | {"data": data})
    write_metrics(folder / "metrics.jsonl", seed, texts)
    write_monitor(folder / "monitor.jsonl")
    write_dynamics(folder, random, texts, channels)
    return folder


def evaluation(seed: int = 0, texts: tuple[str, ...] = ()) -> dict:
    """Return an evaluation of 200 images."""
    content = {"data": "fashion-mini", "images": 200, "attack": texts[0] if texts else "APGD", "norm": "linf"}
    content |= {
        "clean": 0.8,
        "robust": {"0.05": 0.7, "0.1": 0.6 - 0.01 * seed},
        "alarms": [alarm(text) for text in texts],
    }
    return content | {"intervals": {"clean": [0.74, 0.85], "0.05": [0.63, 0.76], "0.1": [0.5, 0.65]}}


def alarm(message: str) -> dict:
    """Return an alarm as an evaluation records it."""
    return {"kind": "pgd weaker", "message": message, "examples": [77000111, 77000222]}


def write_metrics(path: Path, seed: int, texts: tuple[str, ...]) -> None:
    lines = []
    for epoch in range(1, 5):
        common = {
            "epoch": epoch,
            "step": 10 * epoch,
            "loss": 2.0 / epoch + seed,
            (texts[3] if texts else "extra"): epoch,
        }
        lines.append({"kind": "step", **common, "step": 10 * epoch - 5, "lr": 0.1 / epoch})
        shares = {"val_clean": 0.6 + 0.04 * epoch, "val_robust": 0.4 + 0.04 * epoch}
        lines.append({"kind": "epoch", "phase": "train", **common, **shares, "best": epoch == 3, **SECONDS})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_monitor(path: Path) -> None:
    lines = []
    for step in range(10, 50, 10):
        quantiles = {key: float(key) * 0.2 + 0.001 * step for key in ("0.05", "0.25", "0.5", "0.75", "0.95")}
        line = {"step": step, "epoch": None, "negative_share": 0.3, "margin_quantiles": quantiles, "correlation": 0.9}
        lines.append(json.dumps(line | {"margins": [None, 0.1]}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def write_dynamics(folder: Path, random: np.random.Generator, texts: tuple[str, ...], channels: int) -> None:
    """Write margins.csv and the three files of ``dyart dynamics``. The last example's point is not locally optimal."""
    index = np.arange(EXAMPLES) * 3
    margin = random.permutation(np.linspace(0.002, 0.3, EXAMPLES))
    label = np.arange(EXAMPLES) % 2
    speed = {"at": random.normal(size=EXAMPLES), "dyart": random.normal(size=EXAMPLES)}
    optimal = np.arange(EXAMPLES) < EXAMPLES - 1
    head = ["index", "label", "rival", "margin", "alignment", "optimal", *(f"speed_{name}" for name in speed)]
    _csv(
        folder / "dynamics.csv",
        head,
        index,
        label,
        1 - label,
        margin,
        np.full(EXAMPLES, 0.99),
        optimal,
        *speed.values(),
    )
    wrong = np.arange(EXAMPLES) % 5 == 0
    head = ["index", "label", "rival", "correct", "inside", "found", "margin", "verdict"]
    known = np.where(wrong, np.nan, margin)
    _csv(folder / "margins.csv", head, index, label, 1 - label, ~wrong, ~wrong, ~wrong, known, ["word"] * EXAMPLES)
    part = {"negative": 3, "count": 10, "share": 0.3, "low": 0.11, "high": 0.6}
    nothing = {"from": 0.1, "to": None, "negative": 0, "count": 0, "share": None, "low": 0.0, "high": 1.0}
    methods = {name: {"below_radius": part, "intervals": [{"from": 0.0, "to": 0.1} | part, nothing]} for name in speed}
    test = {"first": "at", "second": texts[3] if texts else "dyart", "difference": -0.1, "p_value": 0.04}
    summary = {"radius": RADIUS, "radius_text": "0.1", "split": "train", "counts": {"examples": 70, "counted": 59}}
    _json(folder / "dynamics.json", summary | {"methods": methods, "tests": [test | {"p_value_by_batch": 0.5}]})
    inputs = random.integers(0, 256, (EXAMPLES, channels, SIDE, SIDE)).astype(np.uint8)
    away = random.integers(-9, 10, inputs.shape)
    points = np.clip(inputs.astype(int) + away, 0, 255).astype(np.uint8)
    np.savez_compressed(folder / "dynamics.npz", index=index, inputs=inputs, points=points)


def _data_set(folder: Path, texts: tuple[str, ...]) -> Path:
    images, labels = np.zeros((8, 4, 4, 1), np.uint8), np.arange(8) % 2
    path = folder.parent / "data.npz"
    names = np.array(texts[2:4])
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels, classes=names)
    return path


def _json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _csv(path: Path, head: list[str], *columns: object) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for row in zip(*columns, strict=True):  # type: ignore[call-overload]
            writer.writerow([int(cell) if isinstance(cell, bool | np.bool_) else cell for cell in row])


class Outline(html.parser.HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
