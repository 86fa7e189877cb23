"""``dyart dynamics``: how one step of several methods would move the boundary of a trained network."""

import argparse
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from dyart.attacks.radii import check_unit
from dyart.attacks.radius import Radius
from dyart.cli.dynamics_networks import check_step, name_apart, open_sources, split_of
from dyart.cli.look import look_at, say_guessing
from dyart.cli.places import free_folder, make_folder
from dyart.data.loader import Batch
from dyart.dynamics import files
from dyart.dynamics.settings import REACH, Chosen, parse_overrides, plain
from dyart.dynamics.shares import margin_edges
from dyart.dynamics.source import Source, batches_of, methods_of, optimizer_of, rows_of
from dyart.dynamics.step import Dynamics, measure
from dyart.dynamics.table import table
from dyart.engine.files import read_object
from dyart.engine.stored import checkpoint_of
from dyart.evaluation.examples import data_digest, model_digest
from dyart.report.bars import write_bars
from dyart.report.page.words import listed
from dyart.report.scatter import Cloud, clouds_of, write_scatter
from dyart.report.style import FORMATS, radius_words

SCATTER, BARS = "dynamics-scatter", "dynamics-bars"
SEVERAL = Path("runs/dynamics")
# The paper's two.
USUAL = ("at", "dyart")
LEAST_STEPS = 2  # of a search
# Settings whose names do not say what they are.
WORDS = {
    "data": "data set",
    "weights": "kind of weights",
    "data_digest": "content of the data",
    "named": "name or options of the network",
    "digest": "content of the weights",
    "search_steps": "number of search steps",
    "batches": "number of batches",
    "batch_size": "batch size",
    "radius_text": "radius",
    "against": "method to compare with",
    "methods": "choice of methods or of their settings",
}


class Aim(NamedTuple):
    """What to measure, the same on every network."""

    names: list[str]
    against: str
    radius: float


class Plan(NamedTuple):
    """What to measure on one network."""

    source: Source
    methods: dict[str, Chosen]
    batches: list[Batch]
    optimizer: Optimizer | None
    """None: theta' = -grad L."""
    settings: dict[str, Any]


def dynamics_command(options: argparse.Namespace) -> None:
    """Measure every network, print its table, write its files, and draw the figures of all."""
    if options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}")
    if options.steps < LEAST_STEPS:
        raise ValueError(f"--steps must be at least {LEAST_STEPS}, got {options.steps}")
    sources = name_apart(open_sources(options))
    names, against = _methods(list(sources.values()), options)
    aim = Aim(names, against, _radius(list(sources.values()), options))
    plans = {name: _plan(source, aim, options) for name, source in sources.items()}
    out, folders = _folders(plans, options.out)
    _refuse_foreign(out, folders.values(), named=options.out is not None)
    for folder in (out, *folders.values()):
        make_folder(folder)  # now, not after minutes of measuring
    panels: dict[str, dict[str, Cloud]] = {}
    guess: list[bool] = []
    for name, plan in plans.items():
        title, measured = name if len(plans) > 1 else "", _measure(plan, folders[name], aim, options)
        panels[title] = clouds_of(measured)
        few = plan.batches[0]
        guess.append(say_guessing(plan.source.model, measured.found, few.inputs.device, len(few), title))
    if not any(len(cloud.margin) for row in panels.values() for cloud in row.values()):
        for path in _figures(out):  # of an earlier measurement, whose records are gone
            path.unlink(missing_ok=True)
        why = "" if all(guess) else ". Are its predictions right, and do more --steps find closer points?"
        print(f"no example counts: no figures{why}")
    else:
        unit = "/255" if "/255" in str(aim.radius) else ""
        drawn = write_scatter(panels, aim.radius, out / SCATTER, options.update)
        drawn += write_bars(panels, margin_edges(aim.radius), out / BARS, unit, options.update)
        print(f"figures: {', '.join(str(path) for path in drawn if path.suffix == '.png')} (and .pdf, .svg)")


def _plan(source: Source, aim: Aim, options: argparse.Namespace) -> Plan:
    """Return what is measured on a network; what cannot be shows here, before any network is."""
    split = split_of(source, options.split)
    overrides = parse_overrides(options.rest, aim.names)
    for name, given in overrides.items():
        for key in REACH.keys() & given.keys():
            check_unit(f"--{name}.{key}", Radius(given[key]), source.norm, (0.0, 1.0))
    methods = methods_of(source, aim.names, overrides, split, options.radius)
    batches = batches_of(source, options.count, split, options.seed)
    optimizer, words = optimizer_of(source) if options.update == "optimizer" else (None, "-grad L")
    if not source.trained:
        inputs, labels = (torch.cat(parts) for parts in zip(*((b.inputs, b.labels) for b in batches), strict=True))
        look_at(source.model, inputs, labels, source.norm)
        check_step(source, batches[0])
    settings: dict[str, Any] = {
        "data": source.data.name,
        "network": source.config.model.name,
        "split": split,
        **_weights(source),
        "update": options.update,
        "step": words,
        "norm": source.norm,
        "search_steps": options.steps,
        "batches": len(batches),
        "batch_size": len(batches[0]),
        "seed": options.seed,
        "radius_text": radius_words(aim.radius),
        "against": aim.against,
        "methods": {
            name: {"settings": plain(one.settings), "settings_from": one.origin, "clip": one.clip}
            for name, one in methods.items()
        },
    }
    return Plan(source, methods, batches, optimizer, settings)


def _weights(source: Source) -> dict[str, Any]:
    """Return which weights are measured on which data; of a network trained elsewhere, also what names it."""
    known: dict[str, Any] = {"data_digest": data_digest(source.data)}
    if source.trained:
        return known | {"checkpoint": str(source.checkpoint), "weights": "averaged" if source.averaged else "raw"}
    known |= {"checkpoint": None, "named": dict(source.named)}
    if source.checkpoint is None:
        return known | {"weights": "as made"}
    return known | {"weights": "of a file", "digest": model_digest(source.model)}


def _folders(plans: Mapping[str, Plan], out: Path | None) -> tuple[Path, dict[str, Path]]:
    """Return the folder of the figures, and by network that of its records.

    Without ``out``, each network's records go into its own folder, where a report looks for them, unless several are of
    one run.
    """
    if out is not None:
        return out, {name: out / name if len(plans) > 1 else out for name in plans}
    own = {name: _own_folder(plan) for name, plan in plans.items()}
    if len(own) == 1:
        return next(iter(own.values())), own
    return SEVERAL, own if len(set(own.values())) == len(own) else {name: SEVERAL / name for name in plans}


def _figures(out: Path) -> list[Path]:
    return [out / f"{name}{suffix}" for name in (SCATTER, BARS) for suffix in FORMATS]


def _refuse_foreign(out: Path, folders: Collection[Path], named: bool) -> None:
    """Raise where something would be replaced that is not of an earlier measurement.

    Of figures alone nothing says whose they are: in a folder that was ``named``, records of theirs lie near them.
    """
    strange = next(filter(None, map(files.foreign, folders)), None)
    if strange is None and named and not [*out.glob(files.JSON), *out.glob(f"*/{files.JSON}")]:
        strange = next(filter(Path.is_file, _figures(out)), None)
    if strange is not None:
        raise ValueError(f"{strange} is not of dyart dynamics, and would be replaced: choose another folder with --out")


def _own_folder(plan: Plan) -> Path:
    """Return a run's folder, or one in it if that has more examples; of another network, one of no other settings."""
    source, settings = plan.source, plan.settings
    if source.trained:
        path, images = source.folder / files.JSON, _images(settings)
        stored = files.examples(path)
        if stored <= images or _is_of_earlier_best(path, source):
            return source.folder
        print(f"{path} is of {stored} examples, and stays as it is (--out {source.folder} would replace it)")
        return source.folder / f"dynamics-{settings['split']}-{images}"
    second = f"{source.folder.name}-{source.norm}-{settings['split']}"
    folder, stays = free_folder(source.folder, second, lambda place: bool(_changed(place / files.JSON, settings)))
    if stays:
        print(stays)
    return folder


def _is_of_earlier_best(path: Path, source: Source) -> bool:
    """Say whether a run's record is of another checkpoint than its best one, which is measured now."""
    best = checkpoint_of(source.folder).name
    recorded = (read_object(path) or {}).get("checkpoint")
    measures_best = source.checkpoint is not None and source.checkpoint.name == best
    return measures_best and recorded is not None and Path(str(recorded)).name != best


def _measure(plan: Plan, folder: Path, aim: Aim, options: argparse.Namespace) -> Dynamics:
    source, methods, settings = plan.source, plan.methods, plan.settings
    _announce(settings, options.count, aim.radius)
    if changed := _changed(folder / files.JSON, settings):
        keeps = "" if options.out else " (--out keeps it)"
        other = listed(list(dict.fromkeys(WORDS.get(name, name) for name in changed)))
        print(f"{folder / files.JSON} was measured with another {other}, and will be replaced{keeps}")
    measured = measure(
        source.model,
        plan.batches,
        {name: chosen.method for name, chosen in methods.items()},
        norm=source.norm,
        steps=options.steps,
        optimizer=plan.optimizer,
        clip_norms={name: chosen.clip for name, chosen in methods.items()},
        progress=sys.stderr.isatty(),
    )
    measured = replace(measured, index=rows_of(source.data, settings["split"], measured.index))
    edges = margin_edges(aim.radius)
    print(table(files.write(measured, folder, settings, aim.radius, edges, aim.against)))
    print(f"one line per example with a point: {folder / files.CSV}; summary: {folder / files.JSON}\n")
    return measured


def _changed(path: Path, settings: dict[str, Any]) -> list[str]:
    """Return the settings in which an earlier record differs from a new one; none where there is no record."""
    stored = read_object(path)
    if stored is None:
        return []
    methods = stored.get("methods", {})
    same = methods.keys() == settings["methods"].keys() and all(
        entry.items() <= methods[name].items() for name, entry in settings["methods"].items()
    )
    # A record from before data had digests does not say that it is of others.
    stored.setdefault("data_digest", settings["data_digest"])
    changed = [name for name, value in settings.items() if name != "methods" and stored.get(name) != value]
    return changed + ["methods"] * (not same)


def _methods(sources: list[Source], options: argparse.Namespace) -> tuple[list[str], str]:
    """Return the methods to measure, the same on every network, and the one that others are compared with."""
    names = list(options.methods or USUAL)
    if options.methods is None:
        own = [source.config.method["name"] for source in sources if source.trained]
        names += [name for name in own if name != "natural"]
    against = options.against or ("at" if "at" in names else names[0])
    return list(dict.fromkeys([*names, against] if against in names else [against, *names])), against


def _radius(sources: list[Source], options: argparse.Namespace) -> float:
    given: float | None = options.radius
    if given is not None:
        for source in sources:
            check_unit("--radius", given, source.norm, (0.0, 1.0))
        return given
    radii = {source.config.eval.radius for source in sources}
    if len(radii) > 1:
        what = "runs" if all(source.trained for source in sources) else "networks"
        raise ValueError(
            f"the {what} have different radii, {', '.join(map(radius_words, radii))}: choose one by --radius"
        )
    return radii.pop()


def _images(settings: dict[str, Any]) -> int:
    return int(settings["batches"] * settings["batch_size"])


def _weights_in_words(settings: dict[str, Any]) -> str:
    if settings["checkpoint"] is not None:
        return f"{settings['weights']} weights of {settings['checkpoint']}"
    file = settings["named"].get("weights")
    return "the weights it is made with" if file is None else f"weights of {file}"


def _announce(settings: dict[str, Any], count: int, radius: float) -> None:
    images, batches = _images(settings), settings["batches"]
    noun = "batch" if batches == 1 else "batches"
    parts = f"in {batches} {noun}" if images <= count else f"({batches} whole {noun}; --count {count})"
    print(
        f"{settings['network']} on {settings['data']}, {_weights_in_words(settings)}\n"
        f"{images} {settings['split']} examples {parts}, {settings['norm']} margins; theta' = {settings['step']}"
    )
    if images < count:
        print(f"--count {count} is more than there are: all whole batches of the {settings['split']} set are taken")
    for name, entry in settings["methods"].items():
        values = " ".join(f"{key}={value}" for key, value in entry["settings"].items())
        clip = f", gradient clipped to {entry['clip']}" if settings["update"] == "optimizer" and entry["clip"] else ""
        print(f"  {name}, as in {entry['settings_from']}: {values}{clip}")
    radii = {name: entry["settings"].get("radius") for name, entry in settings["methods"].items()}
    others = {name: own for name, own in radii.items() if own and not math.isclose(Radius(own), radius, rel_tol=1e-3)}
    if others:
        words = ", ".join(f"{name} attacks within {own}" for name, own in others.items())
        print(
            f"note: examples count as vulnerable below {radius_words(radius)}, {words}: --radius changes the one, "
            f"--{next(iter(others))}.radius the other"
        )
