"""Where a command's records go where no ``--out`` says so: none is lost to one of something else, or of less."""

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from dyart.attacks.radius import Radius
from dyart.engine.files import read_object
from dyart.evaluation.records import FILE as EVALUATION
from dyart.evaluation.tiers import ATTACKS

# Of a search's settings, what its margins are margins of.
QUESTION = (
    *("run_or_checkpoint", "model", "model_args", "weights", "network", "mean", "std"),
    *("norm", "boundary", "solver"),
)
# The more of these, the closer the points.
EFFORT = ("steps", "restarts")

# How the CSV file of a search begins, and what its JSON has.
HEAD, PARTS = "index,label,rival,correct,inside,", {"settings", "summary"}

Record = dict[str, Any]


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it, and try it: what cannot be written shows before the work, not after it.

    Raises:
        ValueError: nothing can be written there.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Permissions alone do not tell: a folder may be the system's own, or a disk read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write into {folder} ({error.strerror}): choose another folder with --out") from error


def evaluation_folder(
    run: Path | None, checkpoint: str | None, asked: Record, options: argparse.Namespace, part: bool
) -> tuple[Path, str]:
    """Return the folder of an evaluation, and words for the user where it is not the usual one.

    A run's own folder for its best weights on the whole test set; one in it for a checkpoint or a part of the set.
    Without a run, one that is named after the weights or the model. A finished record of
    the same weights there is replaced only by a more thorough attack in the same norm, at these radii and perhaps
    more; any other evaluation goes into a folder beside it.

    Args:
        run: the run's folder.
        checkpoint: the name of a checkpoint that is not the run's best one.
        asked: what is evaluated, and how; a record of the same is replaced (or gone on with).
        options: of the command: what is named, and whether to start ``fresh``.
        part: not all test examples are evaluated.
    """
    words = [] if run else [_label(options)]
    words += [checkpoint] if checkpoint else []
    words += [str(asked["examples"])] if part else []
    base = (run or Path()) / "-".join(["evaluation", *words]) if words else run
    assert base is not None
    if options.fresh:
        return base, ""
    beside = (run or Path()) / "-".join(["evaluation", *words, options.attack])
    for place in _numbered(base, beside):
        stored = read_object(place / EVALUATION)
        if stored is None or same_request(stored.get("asked"), asked) or _makes_room(stored, asked):
            break
        if place == run and _outdone(stored, asked):  # of other weights, too: a run has one best epoch
            break
    stays = f"{base / EVALUATION} is of another evaluation, and stays as it is (--fresh would replace it)"
    return place, "" if place == base else stays


def dynamics_folder(options: argparse.Namespace) -> Path:
    """Return the usual folder for the dynamics of a network that is of no run, named after its weights or the model."""
    return Path(f"dynamics-{_label(options)}")


def free_folder(base: Path, second: str, differs: Callable[[Path], bool]) -> tuple[Path, str]:
    """Return the first folder without a record of other settings, and words where it is not the usual one.

    Args:
        base: the usual one.
        second: name of the next; those after it are numbered.
        differs: says whether a folder's record has other settings.
    """
    place = next(place for place in _numbered(base, base.with_name(second)) if not differs(place))
    return place, "" if place == base else f"{base} is of other settings, and stays as it is (--out would replace it)"


def check_free(folder: Path, asked: Record) -> None:
    """Raise if a folder that was named holds another evaluation, which would be lost.

    One of the same network makes room for a more thorough one, of as many examples and radii at least.

    Args:
        folder: of the records.
        asked: what is evaluated, and how.

    Raises:
        ValueError: it does; the message says what to do.
    """
    stored = read_object(folder / EVALUATION)
    if stored is None or same_request(stored.get("asked"), asked):
        return
    if not _makes_room(stored, asked):
        raise ValueError(
            f"{folder / EVALUATION} is of another evaluation: choose another --out, or --fresh to replace it"
        )


def margins_path(folder: Path, data: str, examples: int, options: argparse.Namespace) -> tuple[Path, str]:
    """Return the CSV file of a search, and words where it is not ``margins.csv``: one of more, or of other, is there.

    A search makes room for one of the same network and data that is at least as long, by the same solver, and that has
    its examples among its own.

    Args:
        folder: for the file.
        data: name of the set.
        examples: their number.
        options: of the command.
    """
    base = folder / "margins.csv"
    words = ""
    for path in _numbered(base, base.with_name(f"margins-{options.norm}-{examples}.csv")):
        why = _stays(path, data, examples, options)
        if not why:
            break
        words = words or f"{why[0]}, and stays as it is{why[1]}"
    return path, words


def _stays(path: Path, data: str, examples: int, options: argparse.Namespace) -> tuple[str, str] | None:
    """Return why a search that no ``--out`` names a file for leaves this one alone, and the way around that."""
    if strange := foreign(path):
        return f"{strange} is not of a search", ""
    if path.is_file() and not _outgrown(path, data, examples, options):
        words = f"{path} is of more or other examples, of a longer search or of something else"
        return words, " (--out would replace it)"
    second = second_stays(path, options.cross_check, examples)
    return (second, "") if second else None


def _outgrown(path: Path, data: str, examples: int, options: argparse.Namespace) -> bool:
    """Say whether a search's file is of the same question, of no other examples, and of no longer search."""
    stored = read_object(path.with_suffix(".json"))
    if stored is None:  # without settings, only its length can be told
        return examples >= _lines(path)
    settings = stored.get("settings", {})
    same = all(settings.get(name) == _plain(getattr(options, name)) for name in QUESTION)
    longer = all(getattr(options, name) >= settings.get(name, 0) for name in EFFORT)
    # Fewer than all are drawn by the seed: the first of the same draw.
    whole = examples >= stored.get("drawn_from", math.inf)
    among = examples >= stored.get("summary", {}).get("examples", 0) and (whole or settings.get("seed") == options.seed)
    return bool(same and longer and among and stored.get("data") == data)


def second_path(path: Path, solver: str) -> Path:
    """Return the CSV file of another solver's opinion, beside that of a search."""
    return path.with_name(f"{path.stem}-{solver}.csv")


def second_stays(path: Path, solver: str | None, examples: int | None = None) -> str:
    """Return why the second opinion on a search may not replace the file in its place, in words; "" where it may.

    Args:
        path: of the search's CSV file.
        solver: of the second opinion; None: there is to be none.
        examples: their number, where a file of more is not to be lost; None: it may be replaced by fewer.
    """
    second = path if solver is None else second_path(path, solver)
    if solver is None or not second.exists():
        return ""
    if not second.is_file():
        return f"{second} is a folder"
    if not _of_search(second):
        return f"{second} is not of a search"
    if set(read_object(second.with_suffix(".json")) or ()) >= PARTS:
        return f"{second} is of a search of its own"
    return f"{second} is of more examples" if examples is not None and _lines(second) > examples else ""


def _of_search(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().startswith(HEAD)


def _lines(path: Path) -> int:
    """Return how many examples a CSV file has."""
    return len(path.read_text(encoding="utf-8").splitlines()) - 1


def foreign(path: Path) -> Path | None:
    """Return the file that a search would replace though no search wrote it: the JSON beside its CSV, or that itself.

    Args:
        path: of the CSV file.
    """
    record = path.with_suffix(".json")
    if record.is_file() and not set(read_object(record) or ()) >= PARTS:
        return record
    return path if path.is_file() and not _of_search(path) else None


def replaced(path: Path) -> str:
    """Return what record of a search a new one will replace, in words; "" where there is none."""
    stored = read_object(path.with_suffix(".json")) if path.is_file() else None
    if not stored or "summary" not in stored:
        return ""
    examples, norm = stored["summary"].get("examples"), stored.get("settings", {}).get("norm")
    return f"{path} is of {examples} examples in {norm}, and will be replaced"


def _label(options: argparse.Namespace) -> str:
    """Return a name for a network outside of a run, as a part of a folder's name."""
    file = options.weights or options.run_or_checkpoint
    name = file.stem if file else options.model
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "network"


def _numbered(first: Path, second: Path) -> Iterator[Path]:
    yield first
    yield second
    for number in count(2):
        name = second.name.removesuffix(".csv")
        yield second.with_name(f"{name}-{number}{second.name.removeprefix(name)}")


def _makes_room(stored: Record, asked: Record) -> bool:
    """Say whether a record of the same network makes room for one of as many examples at least."""
    same = (stored.get("asked") or {}).get("network") == asked["network"]
    return same and asked["examples"] >= stored.get("images", 0) and _outdone(stored, asked)


def _outdone(stored: Record, asked: Record) -> bool:
    """Say whether a run's record makes room for one that answers all that it does.

    For one in the same norm at its radii at least, if it is of a quicker attack, of other weights, or the training's
    own.
    """
    tier, old = stored.get("tier"), stored.get("asked") or {}
    if stored.get("data") != asked["data"] or stored.get("norm", asked["norm"]) != asked["norm"]:
        return False
    if not _sizes(stored.get("robust", ())) <= _sizes(asked["radii"]):
        return False
    if tier not in ATTACKS or old.get("network", asked["network"]) != asked["network"]:
        return True
    return ATTACKS.index(tier) < ATTACKS.index(asked["attack"])  # they are listed from quick to thorough


def same_request(stored: object, asked: Record) -> bool:
    """Say whether two commands ask for the same; radii count as numbers, in any order."""
    if not isinstance(stored, dict):
        return False
    return stored | {"radii": _sizes(stored.get("radii", ()))} == asked | {"radii": _sizes(asked["radii"])}


def _sizes(radii: Iterable[str]) -> set[float]:
    return {float(Radius(radius)) for radius in radii}


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
