"""The published trainings: which there are, what they are called, and about how long each takes on an H200."""

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLAN = Path(__file__).with_name("published.yaml")
RESULTS = ROOT / "results"
METHODS = ROOT / "benchmarks" / "results" / "methods.json"
BASE = "base"
# Seconds on one H200 (torch 2.11, bf16, compiled), for what has not been run yet; what has been is taken from its JSON.
# An epoch of AT with ResNet-18, BatchNorm, batch 256; other methods by their work in benchmarks/results/methods.json.
EPOCH = 4.7
GROUP_NORM = 1.4  # an epoch with GroupNorm over one with BatchNorm: benchmarks/results/steps.json
FLOAT32 = 2.5  # an epoch in float32 over one in bf16: a guess
VALIDATION = 0.5  # after every epoch
START = 45.0  # imports, data, compiling from a cache that is warm
SEARCH = 10  # steps of DyART's search in methods.json
# By data and network: an epoch, and an attack on an image, over those of ResNet-18 on CIFAR-10. WRN-28-10 by
# steps.json; Tiny-ImageNet has twice the images, four times the pixels.
SIZES = {"cifar10-resnet18": (1.0, 1.0), "cifar10-wrn28-10": (6.8, 6.8), "tiny-imagenet-preactresnet18": (8.0, 4.0)}
IMAGES = {"cifar10": 50_000, "tiny-imagenet": 100_000}  # of an epoch, where none are left out
# 10,000 images: clean and five radii for the best checkpoint, 8/255 for the last; AutoAttack goes on where apgd ends.
ATTACKS = {"margins": 50.0, "apgd": 150.0, "last": 50.0, "autoattack": 340.0}
# Of L-inf; a group may have others.
RADII, RADIUS = ("2/255", "4/255", "8/255", "12/255", "16/255"), "8/255"


@dataclass(frozen=True)
class Run:
    """One training with its attacks."""

    group: str
    label: str
    recipe: str
    seed: int
    epochs: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    attacks: tuple[str, ...] = ("apgd",)
    images: int = 10_000
    paper: str | None = None
    judge: int = 0
    """So many training images are left out of the training, and attacked instead of test images."""
    radii: tuple[str, ...] = RADII
    radius: str = RADIUS
    """Of these the one that counts: the last epoch is attacked there alone."""
    target: float | None = None
    """Accuracy at ``radius`` to be reached in little time: attacked there alone, and the best epoch alone."""
    last: bool = True
    """The last epoch is attacked, too."""
    axis: tuple[str, Any] | None = None
    """The setting that it is about, and its value; None of the base, which is about all of them."""

    @property
    def row(self) -> str:
        """What its seeds have in common."""
        return f"{self.group}-{slug(self.label)}"

    @property
    def name(self) -> str:
        """Of its JSON file."""
        return f"{self.row}-seed{self.seed}"

    @property
    def normalization(self) -> str:
        return "group" if "-gn-" in self.recipe else "batch"


@dataclass(frozen=True)
class Group:
    """The runs of one table."""

    name: str
    title: str
    runs: tuple[Run, ...]
    table: str | None = None
    """Of the paper, with the same methods."""
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)

    @property
    def radii(self) -> tuple[str, ...]:
        """Of all its runs."""
        return self.runs[0].radii

    @property
    def radius(self) -> str:
        """The one that counts, of all its runs."""
        return self.runs[0].radius

    @property
    def rows(self) -> dict[str, list[Run]]:
        """Runs by what their seeds have in common, in order."""
        rows: dict[str, list[Run]] = {}
        for run in self.runs:
            rows.setdefault(run.row, []).append(run)
        return rows

    def of_axis(self, axis: str) -> dict[Any, list[Run]]:
        """The runs of an axis by its values; the base's own value is that of the base run."""
        return {
            value: [run for run in self.runs if run.axis == (None if value == self.base[axis] else (axis, value))]
            for value in self.axes[axis]
        }


def slug(label: str) -> str:
    """Return a label as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


def written(value: object) -> str:
    """Return a setting as the command line takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, float) else str(value)


def load_plan(path: Path = PLAN) -> list[Group]:
    """Return the groups of a plan.

    Raises:
        ValueError: two runs have the same name, or an axis lacks the base's value.
    """
    import yaml

    groups = [_group(name, tree) for name, tree in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"].items()]
    names = [run.name for group in groups for run in group.runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: two runs are called {', '.join(twice)}; change a label")
    return groups


def _group(name: str, tree: Mapping[str, Any]) -> Group:
    base, axes = tree.get("base", {}), {key: tuple(values) for key, values in tree.get("axes", {}).items()}
    rows = [list(_row(name, tree, row)) for row in tree.get("rows", [])]
    # The first seeds of all rows, then the second: a table is whole before it is precise.
    runs = [run for turn in zip_longest(*rows) for run in turn if run is not None]
    if axes:
        runs += _axes(name, tree, base, axes)
    table = str(tree["table"]) if "table" in tree else None
    return Group(name, tree["title"], tuple(runs), table, axes, base)


def _row(group: str, tree: Mapping[str, Any], row: Mapping[str, Any]) -> Iterable[Run]:
    seeds = row.get("seeds", [0])
    for seed in seeds:
        attacks = ("apgd", "autoattack") if row.get("autoattack") == seed else ("apgd",)
        settings = {**tree.get("settings", {}), **row.get("settings", {})}
        recipe, epochs = row.get("recipe", tree.get("recipe")), int(row.get("epochs", tree["epochs"]))
        run = Run(group, row["label"], recipe, seed, epochs, settings, attacks, _images(tree), row.get("paper"))
        target, judge = tree.get("target"), int(tree.get("judge", 0))
        run = replace(run, target=target, last=row.get("last", not (target or judge)), **_radii(tree))
        yield replace(run, attacks=("margins",), images=judge, judge=judge) if judge else run


def _axes(
    group: str, tree: Mapping[str, Any], base: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]
) -> list[Run]:
    for axis, values in axes.items():
        if axis not in base or base[axis] not in values:
            raise ValueError(f"{group}: the axis {axis} {list(values)} needs the base's value among its own")
    seed, epochs = int(tree.get("seed", 0)), int(tree["epochs"])
    usual = Run(group, BASE, tree["recipe"], seed, epochs, dict(base), images=_images(tree), last=False, **_radii(tree))
    runs = [usual]
    for axis, values in axes.items():
        for value in values:
            if value != base[axis]:
                label = f"{axis.partition('.')[2]} {written(value)}"
                runs.append(replace(usual, label=label, settings={**base, axis: value}, axis=(axis, value)))
    return runs


def _radii(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the radii of a group that has its own, as fields of a run."""
    return {"radii": tuple(tree["radii"]), "radius": tree["radius"]} if "radii" in tree else {}


def _images(tree: Mapping[str, Any]) -> int:
    return int(tree.get("images", Run.images))


def words(run: Run) -> list[str]:
    """Return recipe and settings as `benchmarks/train_and_attack.py` takes them; a burn-in is part of the epochs."""
    from dyart.recipes import resolve

    given = [word for key, value in run.settings.items() for word in (f"--{key}", written(value))]
    burn_in = resolve(run.recipe, given).train.burn_in
    return [run.recipe, *given, "--train.epochs", str(run.epochs - burn_in), "--seed", str(run.seed)]


def record_of(run: Run, results: Path = RESULTS) -> dict[str, Any] | None:
    """Return the JSON of a run, if there is one."""
    path = results / f"{run.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def missing(run: Run, record: Mapping[str, Any] | None) -> list[str]:
    """Return the stages that a run lacks, in their order: "train", attacks by name, "last"; of a failed run none."""
    if record is not None and "failed" in record:
        return []
    wanted = {attack: ("best", attack) for attack in run.attacks}
    if run.last:
        wanted["last"] = ("last", "apgd")
    wanted = dict(sorted(wanted.items(), key=lambda one: one[0] == "autoattack"))
    if record is None or "train_seconds" not in record:
        return ["train", *wanted]
    done = {(one["checkpoint"], one["tier"]) for one in record.get("evaluations", [])}
    return [name for name, key in wanted.items() if key not in done]


def seconds(run: Run, stages: Iterable[str], known: Iterable[Mapping[str, Any]] = ()) -> float:
    """Return about how long some stages of a run take: by runs of the same kind that are known, else by the table."""
    known = [record for record in known if _timed_here(record) and _size(record["recipe"]) == _size(run.recipe)]
    total = START
    for stage in stages:
        total += run.epochs * _epoch(run, known) if stage == "train" else _attack(run, stage, known)
    return total


def _timed_here(record: Mapping[str, Any]) -> bool:
    """Return whether a record's seconds are of a GPU and a network that the table knows."""
    return record.get("gpu", "cpu") != "cpu" and any(record["recipe"].startswith(name) for name in SIZES)


def _size(recipe: str) -> str:
    """Return data and network of a recipe, as far as the table knows them."""
    return next((name for name in SIZES if recipe.startswith(name)), "cifar10-resnet18")


def _epoch(run: Run, known: list[Mapping[str, Any]]) -> float:
    settings = _settings(run)
    alike = [
        _share(settings) / _share(record["settings"]) * record["seconds_per_epoch"]
        + record.get("validation_seconds_per_epoch", 0.0)
        for record in known
        if "seconds_per_epoch" in record
        and record.get("together", 1) == 1
        and _kind(record["settings"]) == _kind(settings)
    ]
    if alike:
        return statistics.median(alike)
    work = {r["method"]: r["work"] for r in json.loads(METHODS.read_text(encoding="utf-8"))["records"]}
    method = run.recipe.removeprefix(f"{_size(run.recipe)}-").removeprefix("gn-").removeprefix("l2-")
    factor = work.get(method, work["at"]) / work["at"]
    if method.startswith("dyart"):  # measured later, a step with SEARCH steps of the search takes AT's time
        factor *= (settings["method"]["steps"] + 4) / (SEARCH + 4) * work["at"] / work["dyart"]
    factor *= GROUP_NORM if run.normalization == "group" else 1.0
    factor *= FLOAT32 if _precision(run) == "fp32" else 1.0
    return SIZES[_size(run.recipe)][0] * (VALIDATION + _share(settings) * EPOCH * factor)


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that a run resolves to."""
    from dyart.recipes import resolve

    recipe, *given = words(run)
    return asdict(resolve(recipe, given))


def _kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the time of an epoch depends on, beside data and network."""
    method, train = settings["method"], settings["train"]
    normalization = settings["model"]["normalization"]
    return method["name"], method.get("steps"), normalization, train["batch_size"], train["precision"]


def _share(settings: Mapping[str, Any]) -> float:
    """Return the share of a training set that is trained on."""
    data = settings.get("data", {})
    return 1.0 if data.get("limit") is None else min(1.0, data["limit"] / IMAGES.get(data["name"], data["limit"]))


def _precision(run: Run) -> str:
    return str(run.settings.get("train.precision", "bf16"))


def _attack(run: Run, stage: str, known: list[Mapping[str, Any]]) -> float:
    wanted = ("last", "apgd") if stage == "last" else ("best", stage)
    alone = bool(run.target) or stage == "last"  # at one radius
    took = [
        (one["wall_seconds"] - _begun(record, one)) / one["images"]
        for record in known
        if record.get("together", 1) == 1
        for one in record.get("evaluations", [])
        if (one["checkpoint"], one["tier"]) == wanted and "same_as" not in one and (len(one["robust"]) == 1) == alone
    ]
    usual = SIZES[_size(run.recipe)][1] * ATTACKS["last" if run.target else stage] / 10_000
    return run.images * (statistics.median(took) if took else usual)


def _begun(record: Mapping[str, Any], one: Mapping[str, Any]) -> float:
    """Return the seconds of an evaluation that were those of another: AutoAttack's of the tier apgd before it."""
    first = [
        other["wall_seconds"]
        for other in record["evaluations"]
        if one["tier"] == "autoattack" and (other["checkpoint"], other["tier"]) == (one["checkpoint"], "apgd")
    ]
    return min(one["wall_seconds"], sum(first))
