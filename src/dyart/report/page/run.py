"""One run as the page shows it: everything that its folder holds, and what is missing or damaged.

A folder may also hold measurements alone, of a network that was trained elsewhere.
"""

import shlex
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from dyart.attacks.radius import Radius
from dyart.data import DataError, load
from dyart.data.names import FASHION
from dyart.data.registry import REGISTRY
from dyart.dynamics.pictures import PICTURED
from dyart.engine.checkpoint import MANIFEST, CheckpointError
from dyart.engine.files import read_object
from dyart.engine.metrics import Record
from dyart.engine.stored import CONFIG, ENVIRONMENT, RunError, checkpoint_of
from dyart.evaluation.records import EXAMPLES
from dyart.evaluation.records import FILE as EVALUATION
from dyart.recipes.load import flat, read
from dyart.report.page import files
from dyart.report.page.colours import slots
from dyart.report.page.files import Accuracy, Columns, Pictures, Shares
from dyart.report.page.subject import no_run, other_data, other_network, part_of, same_data, subject_of, typed

T = TypeVar("T")
Part = Callable[[str, Callable[[Path], Any]], Any]
MARGINS = "margins.csv"
MONITOR = "monitor.jsonl"
DYNAMICS = "dynamics.json"
MARKS = (CONFIG, EVALUATION, MARGINS, MONITOR, DYNAMICS)
"""Files one of which a folder must have."""
# What reading a damaged file may raise; anything else is a bug.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error, EOFError)


@dataclass(frozen=True, eq=False)
class Run:
    """A run's folder, read. Parts that it does not have are None or empty."""

    name: str
    folder: Path
    config: dict[str, Any]
    """One level, keys joined by dots."""
    environment: dict[str, Any]
    metrics: list[Record]
    classes: tuple[str, ...]
    accuracy: Accuracy | None = None
    """In the run's own norm, which is that of its radii and margins, and on its own data."""
    others: list[Accuracy] = field(default_factory=list)
    """All other evaluations, e.g. of a part of the test set or in another norm: its own file, then the newest first."""
    margins: Columns | None = None
    searched: str = ""
    """Name of the checkpoint that ``margins`` are of, where their record says so."""
    dynamics: Columns | None = None
    shares: Shares | None = None
    pictures: Pictures | None = None
    """Of the examples in ``dynamics``; without those, of some of ``margins``."""
    monitor: Columns | None = None
    best: str = ""
    """Name of the best checkpoint at present; "" where the folder has none, like a copy without them."""
    data_digest: str = ""
    """Of the test part of its own data, where a record says so."""
    damaged: list[str] = field(default_factory=list)
    """What is not shown, and why, in sentences."""
    colour: str = "blue"
    """By name; the style sheet says what it looks like."""

    @property
    def trained(self) -> bool:
        """It was trained by this package; otherwise all that is known of it was measured."""
        return "method.name" in self.config

    def command(self, verb: str) -> str:
        """Return a command that measures its network; what it writes is found on the next page."""
        folder = shlex.quote(str(self.folder))
        if self.trained:
            return f"dyart {verb} {folder}"
        get = self.config.get
        named = {"model": get("model.name", "NAME"), "weights": get("model.weights"), "data": get("data.name", "DATA")}
        if "model.name" not in self.config and "model.weights" in self.config:  # a file that says what it is of
            verb, named = f"{verb} {shlex.quote(str(get('model.weights')))}", {"data": get("data.name")}
        named |= {option: get(f"model.{option}") for option in ("model-args", "mean", "std")}
        if self.norm != "linf":
            named |= {"norm": self.norm, "radii": get("eval.radii", "RADII") if verb.startswith("evaluate") else None}
        options = [f"--{option} {shlex.quote(str(value))}" for option, value in named.items() if value is not None]
        out = folder
        if verb.startswith("margins"):  # those in another norm stay
            taken = self.margins is None and (self.folder / MARGINS).is_file()
            out = shlex.quote(str(self.folder / (f"margins-{self.norm}.csv" if taken else MARGINS)))
        return " ".join(["dyart", verb, *options, "--out", out])

    @property
    def radius(self) -> Radius:
        """The radius that the run is judged by while it trains."""
        return Radius(self.config.get("eval.radius", "8/255"))

    @property
    def has_radius(self) -> bool:
        """Somebody named that radius, or the training had it."""
        return self.trained or "eval.radius" in self.config

    @property
    def norm(self) -> str:
        """The norm of its radii and margins."""
        return str(self.config.get("eval.norm", "linf"))

    @property
    def epochs(self) -> list[Record]:
        """The records of whole epochs."""
        return [record for record in self.metrics if record.get("kind") == "epoch"]


def read_runs(places: Sequence[Path]) -> list[Run]:
    """Return the runs in some folders, named so that they can be told apart.

    Raises:
        RunError: there are none, one is named twice, or a folder is no run and has no measurements.
    """
    folders = [_folder(place) for place in places]
    if not folders:
        raise RunError("name at least one run's folder")
    twice = {str(folder) for folder in folders if folders.count(folder) > 1}
    if twice:
        raise RunError(f"named twice: {', '.join(sorted(twice))}")
    runs = [_read(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    colours = slots([str(run.config.get("method.name", "")) for run in runs])
    return [replace(run, colour=colour) for run, colour in zip(runs, colours, strict=True)]


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of every path, with as many parts before it as make all of them differ."""
    for parts in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _folder(place: Path) -> Path:
    folder = place.resolve()
    if any((folder / mark).is_file() for mark in MARKS) and not (folder / MANIFEST).is_file():
        return folder
    # A checkpoint is named as RUN/checkpoints/epoch-0004, and has a copy of the configuration.
    if (folder.parent.parent / CONFIG).is_file():
        return folder.parent.parent
    if not place.exists():
        raise RunError(f"{place} does not exist: look for a misspelt name")
    raise RunError(f"{place} is no run, and nothing was measured there: it has no {', '.join(MARKS)}")


def _read(folder: Path, name: str) -> Run:
    trained = (folder / CONFIG).is_file()
    parts = sorted(folder.glob(f"evaluation-*/{EVALUATION}"), key=lambda file: file.stat().st_mtime)
    evaluations = [file.relative_to(folder).as_posix() for file in reversed(parts)]
    # Not resolved: a page about a network or method of the user's own needs no more than their names.
    config = flat(read(folder / CONFIG)) if trained else {}
    others = _of_others(folder, evaluations, str(config.get("model.name", "")) if trained else None)
    damaged = list(others.values())

    def part(file: str, reader: Callable[[Path], T]) -> T | None:
        if not file or not (folder / file).is_file() or _record_of(file) in others:
            return None
        try:
            return reader(folder / file)
        except UNREADABLE as error:
            damaged.append(f"{file} cannot be read: {type(error).__name__}: {error}")
            return None

    environment = part(ENVIRONMENT, files.read_json) or {}
    if not trained:
        config, environment = _measured(part)
    beside = [part(file, files.read_accuracy) for file in evaluations]
    whole = part(EVALUATION, files.read_accuracy)
    norm = str(config.get("eval.norm", "linf"))
    data = str(config.get("data.name", ""))
    known = [one for one in (whole, *beside) if one is not None]
    digest = _data_digest(folder, data, others)
    own = (one for one in known if one.norm == norm and same_data(one.data, data, (one.data_digest, digest)))
    accuracy = next(own, None)
    best = _best(folder)
    margins, drawn, searched = _searched(folder, norm, (data, digest), best, part)
    dynamics = part("dynamics.csv", files.read_columns)
    if margins is None and (whole is None or whole is accuracy):
        margins = part(EXAMPLES, files.read_margins)
        searched = whole.checkpoint if whole and margins is not None else ""
    return Run(
        name=name,
        folder=folder,
        config=config,
        environment=environment,
        metrics=part("metrics.jsonl", files.read_records) or [],
        classes=class_names(data, config.get("data.root")),
        accuracy=accuracy,
        others=[one for one in known if one is not accuracy],
        margins=margins,
        searched=searched,
        dynamics=dynamics,
        shares=part(DYNAMICS, files.read_shares),
        pictures=part(drawn if dynamics is None else "dynamics.npz", files.read_pictures),
        monitor=part(MONITOR, files.read_monitor),
        best=best,
        data_digest=digest,
        damaged=damaged,
    )


def _of_others(folder: Path, beside: Sequence[str], model: str | None) -> dict[str, str]:
    """Return the files of records that are not of the folder's own network and data, with words on it.

    In a run's folder these are records of networks of no run; elsewhere, of another network or other data than the
    first. An evaluation of other data is no such file: it is told beside the folder's own.

    Args:
        folder: of a run, or of measurements.
        beside: evaluations in folders of their own.
        model: name of the run's network; None: it is no run.
    """
    margins = [Path(MARGINS).with_suffix(".json").name, *sorted(path.name for path in folder.glob("margins-*.json"))]
    records = {name: read_object(folder / name) for name in (EVALUATION, margins[0], DYNAMICS, *beside, *margins[1:])}
    known = {name: subject_of(record) for name, record in records.items() if record}
    first = next(iter(known), "") if model is None else CONFIG
    if model is None:
        words = {
            name: other_network(one, known[first]) or ("" if name in beside else other_data(one, known[first]))
            for name, one in known.items()
        }
    else:
        evaluated = records[EVALUATION] or {}
        weights = "" if no_run(evaluated, model, "") else subject_of(evaluated).weights
        words = {name: no_run(record, model, weights) for name, record in records.items() if record}
    place = "measure it into a folder of its own, with --out"
    return {
        name: f"{name} is not of what {first} is of ({why}), and is left out: {place}"
        for name, why in words.items()
        if why
    }


def _data_digest(folder: Path, data: str, others: Collection[str]) -> str:
    """Return the digest that a record of the folder's has of data of this very name; "" where none has one.

    Args:
        folder: of a run, or of measurements.
        data: name of the set.
        others: names of records of something else.
    """
    names = (name for name in (EVALUATION, Path(MARGINS).with_suffix(".json").name, DYNAMICS) if name not in others)
    records = (read_object(folder / name) or {} for name in names)
    return next((str(one["data_digest"]) for one in records if one.get("data") == data and one.get("data_digest")), "")


def _record_of(file: str) -> str:
    """Return the name of the record that a file belongs to."""
    if file == EXAMPLES:
        return EVALUATION
    ending = next((ending for ending in (PICTURED, ".csv", ".npz") if file.endswith(ending)), None)
    return file if ending is None else f"{file.removesuffix(ending)}.json"


def _measured(part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the records of measurements say of their network, like a configuration; and the versions."""
    evaluation = part(EVALUATION, files.read_json) or {}
    margins = part(Path(MARGINS).with_suffix(".json").name, files.read_json) or {}
    searched = part_of(margins, "settings")
    moved = part(DYNAMICS, files.read_json) or {}
    named = part_of(moved, "named")
    records = (evaluation, searched, named)
    radii = list(part_of(evaluation, "robust") or part_of(part_of(margins, "summary"), "robust"))
    config = {
        "model.name": evaluation.get("model") or searched.get("model") or named.get("model"),
        "model.weights": evaluation.get("weights")
        or searched.get("weights")
        or searched.get("run_or_checkpoint")
        or named.get("weights")
        or moved.get("checkpoint"),  # of a run, whose record was put elsewhere
        **{f"model.{name.replace('_', '-')}": typed(name, records) for name in ("model_args", "mean", "std")},
        "data.name": evaluation.get("data") or margins.get("data") or moved.get("data"),
        "eval.norm": evaluation.get("norm") or searched.get("norm") or moved.get("norm"),
        "eval.radius": "8/255" if "8/255" in radii else radii[len(radii) // 2] if radii else moved.get("radius_text"),
        "eval.radii": ",".join(radii) or None,
        "eval.attack": evaluation.get("attack"),
    }
    versions = evaluation.get("versions") or margins.get("versions") or {}
    return {key: value for key, value in config.items() if value is not None}, {"versions": versions}


def _searched(folder: Path, norm: str, data: tuple[str, str], best: str, part: Part) -> tuple[Columns | None, str, str]:
    """Return a search's distances to the exact boundary in one norm, the name of the file with its pictures, and whose.

    Of the run's best weights on its own data: ``margins.csv`` first, which without settings is taken for what it should
    be; then those that were measured beside it, which have settings (a second opinion has none, and is not what is
    looked for). Where all are of what was best earlier: the first of them.
    """
    older: list[tuple[Columns, str, str]] = []
    beside = sorted(folder.glob("margins-*.csv"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (folder / MARGINS, *(path for path in beside if path.with_suffix(".json").is_file())):
        record = part(path.with_suffix(".json").name, files.read_json) or {}
        settings = part_of(record, "settings")
        fits = settings.get("norm", norm) == norm and settings.get("boundary", "exact") == "exact"
        digests = (str(record.get("data_digest") or ""), data[1])
        fits = fits and same_data(str(record.get("data") or ""), data[0], digests) and _of_best(settings, best)
        columns: Columns | None = part(path.name, files.read_columns) if fits else None
        if columns is None:
            continue
        found = columns, path.with_suffix(PICTURED).name, files.checkpoint_name(record)
        if not best or found[-1] in ("", best):
            return found
        older.append(found)
    return older[0] if older else (None, "", "")


def _of_best(settings: Mapping[str, Any], best: str) -> bool:
    """Return whether a search was asked for a run's best weights: of the run itself, or of the checkpoint with them."""
    place = Path(str(settings.get("run_or_checkpoint") or ""))
    return place.parent.name != "checkpoints" or best in ("", place.name)


def _best(folder: Path) -> str:
    try:
        return checkpoint_of(folder).name
    except (CheckpointError, RunError):  # a copy of the folder may be without them
        return ""


def class_names(data: str, root: str | None = None) -> tuple[str, ...]:
    """Return the names of a data set's classes; none if they are only known from files that are not here."""
    if data == "fashion-mini":
        return FASHION
    if data in REGISTRY and REGISTRY[data].classes:
        return REGISTRY[data].classes
    try:
        return tuple(load(data, Path(root) if root else None).classes)
    except (DataError, OSError, ValueError):
        return ()
