"""What a record of a measurement is of, by which two in one folder are told apart: network, weights, data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
OPTIONS = ("model_args", "mean", "std")
# Entries by which the kind of a record shows.
OF_EVALUATION, OF_DYNAMICS = "clean", "methods"


@dataclass(frozen=True)
class Subject:
    """What was measured, as far as a record says it: "" is unknown.

    Attributes:
        model: name of the network.
        options: those that go with its name, as they would be typed; None where they were not given.
        weights: a digest of them.
        data: name of the data set.
        data_digest: of its test part.
    """

    model: str
    options: dict[str, str | None]
    weights: str
    data: str
    data_digest: str


def subject_of(record: Record) -> Subject:
    """Return what a record of an evaluation, of margins or of dynamics is of."""
    asked, settings, named = (part_of(record, name) for name in ("asked", "settings", "named"))
    parts = (record, settings, named)
    # A training's own evaluation has a digest under the word under which dynamics of a run have their network's name.
    digest, name = (record.get("network") if mark in record else None for mark in (OF_EVALUATION, OF_DYNAMICS))
    weights = asked.get("network") or settings.get("network") or record.get("digest") or digest
    model = next((part["model"] for part in parts if part.get("model")), name)
    return Subject(
        model=str(model or ""),
        options={name: typed(name, parts) for name in OPTIONS},
        weights=str(weights or ""),
        data=str(record.get("data") or ""),
        data_digest=str(record.get("data_digest") or ""),
    )


def part_of(record: Record, name: str) -> Record:
    """Return a part of a record, empty where it is missing or damaged."""
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def typed(name: str, records: Sequence[Record]) -> str | None:
    """Return an option that names a network, as it would be typed, from the first record that has it."""
    value = next((record[name] for record in records if record.get(name)), None)
    if isinstance(value, dict):
        return ",".join(f"{key}={one}" for key, one in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else None if value is None else str(value)


def other_network(one: Subject, own: Subject) -> str:
    """Return in what a record's network is another one than ``own``, in words; "" where nothing says so."""
    if one.model and own.model:
        if one.model != own.model:
            return f"the network {one.model} instead of {own.model}"
        for name in OPTIONS:
            if one.options[name] != own.options[name]:
                option, now, before = f"--{name.replace('_', '-')}", one.options[name], own.options[name]
                return f"{option} {now or 'none'} instead of {before or 'none'}"
    return "other weights" if one.weights and own.weights and one.weights != own.weights else ""


def no_run(record: Record, model: str, weights: str) -> str:
    """Return that a record is of a network of no run, in words; "" where it is of a run, or of this one's weights.

    A command names the network in its record only where it is of no run. It may still be this one's: exported.

    Args:
        record: of a measurement.
        model: name of the run's network.
        weights: a digest of the run's; "" is unknown.
    """
    settings, named = part_of(record, "settings"), part_of(record, "named")
    evaluated = record if part_of(record, "asked") else {}  # others may have entries of anybody's
    about = next((part for part in (settings, named, evaluated) if part.get("model") or part.get("network")), None)
    if about is None:
        return ""
    one = subject_of(record)
    if one.model not in ("", model):
        return f"the network {one.model} instead of {model}"
    if weights and one.weights == weights and not any(one.options.values()):
        return ""
    file = about.get("weights") or about.get("run_or_checkpoint")
    return f"the weights {file}" if file else "the weights that it is made with"


def other_data(one: Subject, own: Subject) -> str:
    """Return in what a record's data are others than ``own``, in words; "" where nothing says so."""
    if same_data(one.data, own.data, (one.data_digest, own.data_digest)):
        return ""
    return f"data {one.data} instead of {own.data}" if one.data != own.data else f"other data of the name {one.data}"


def same_data(one: str, other: str, digests: tuple[str, str] = ("", "")) -> bool:
    """Return whether two names, or paths, may be of one data set: by digests, where both are known.

    Otherwise by the last part of a path, as a folder can have been moved; "" is any.
    """
    if all(digests):
        return digests[0] == digests[1]
    return not one or not other or Path(one).name == Path(other).name
