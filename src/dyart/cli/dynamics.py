"""``dyart dynamics``: how one step of several methods would move the boundary of a trained network."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dyart.attacks.radii import check_unit
from dyart.attacks.radius import Radius
from dyart.cli.places import make_folder, read_record
from dyart.dynamics import files
from dyart.dynamics.settings import parse_overrides, plain
from dyart.dynamics.shares import margin_edges
from dyart.dynamics.source import Source, batches_of, methods_of, open_source, optimizer_of
from dyart.dynamics.step import Dynamics, measure
from dyart.dynamics.table import table
from dyart.engine.fabric import make_fabric
from dyart.report.bars import write_bars
from dyart.report.scatter import Cloud, clouds_of, write_scatter
from dyart.report.style import radius_words

SCATTER, BARS = "dynamics-scatter", "dynamics-bars"
# The paper's two.
USUAL = ("at", "dyart")


class Plan(NamedTuple):
    """What to measure on a run, and where to write it."""

    names: list[str]
    against: str
    radius: float
    folder: Path


def dynamics_command(options: argparse.Namespace) -> None:
    """Measure every run, print its table, write its files, and draw the figures of all."""
    device, several = make_fabric(options.device).device, len(options.runs) > 1
    sources = _named([open_source(place, device, options.averaged) for place in options.runs])
    names, against = _methods(list(sources.values()), options)
    radius = _radius(list(sources.values()), options)
    out = options.out or (Path("runs/dynamics") if several else next(iter(sources.values())).folder)
    panels: dict[str, dict[str, Cloud]] = {}
    # Each run's records into its own folder, where a report looks for them, unless several are of one run.
    own = options.out is None and len({source.folder for source in sources.values()}) == len(sources)
    folders = {name: source.folder if own else out / name if several else out for name, source in sources.items()}
    plans = {name: Plan(names, against, radius, folder) for name, folder in folders.items()}
    for folder in (out, *folders.values()):
        make_folder(folder)  # now, not after minutes of measuring
    for name, source in sources.items():
        panels[name if several else ""] = clouds_of(_measure(source, plans[name], options))
    if not any(len(cloud.margin) for row in panels.values() for cloud in row.values()):
        print("no example counts: no figures")
    else:
        unit = "/255" if "/255" in str(radius) else ""
        drawn = write_scatter(panels, radius, out / SCATTER, options.update)
        drawn += write_bars(panels, margin_edges(radius), out / BARS, unit, options.update)
        print(f"figures: {', '.join(str(path) for path in drawn if path.suffix == '.png')} (and .pdf, .svg)")


def _measure(source: Source, plan: Plan, options: argparse.Namespace) -> Dynamics:
    methods = methods_of(source, plan.names, parse_overrides(options.rest, plan.names), options.split, options.radius)
    batches = batches_of(source, options.count, options.split, options.seed)
    optimizer, words = optimizer_of(source) if options.update == "optimizer" else (None, "-grad L")
    settings: dict[str, Any] = {
        "data": source.data.name,
        "network": source.config.model.name,
        "split": options.split,
        "checkpoint": str(source.checkpoint),
        "weights": "averaged" if options.averaged else "raw",
        "update": options.update,
        "step": words,
        "norm": source.norm,
        "search_steps": options.steps,
        "batches": len(batches),
        "batch_size": len(batches[0]),
        "seed": options.seed,
        "radius_text": radius_words(plan.radius),
        "against": plan.against,
        "methods": {
            name: {"settings": plain(one.settings), "settings_from": one.origin, "clip": one.clip}
            for name, one in methods.items()
        },
    }
    _announce(settings, options.count, plan.radius)
    if changed := _changed(plan.folder / files.JSON, settings):
        print(f"{plan.folder / files.JSON} has other {', '.join(changed)}, and will be replaced (--out keeps it)")
    measured = measure(
        source.model,
        batches,
        {name: chosen.method for name, chosen in methods.items()},
        norm=source.norm,
        steps=options.steps,
        optimizer=optimizer,
        clip_norms={name: chosen.clip for name, chosen in methods.items()},
        progress=sys.stderr.isatty(),
    )
    edges = margin_edges(plan.radius)
    print(table(files.write(measured, plan.folder, settings, plan.radius, edges, plan.against)))
    print(f"one line per example with a point: {plan.folder / files.CSV}; summary: {plan.folder / files.JSON}\n")
    return measured


def _changed(path: Path, settings: dict[str, Any]) -> list[str]:
    """Return the settings in which an earlier record differs from a new one; none where there is no record."""
    stored = read_record(path)
    if stored is None:
        return []
    methods = stored.get("methods", {})
    same = methods.keys() == settings["methods"].keys() and all(
        entry.items() <= methods[name].items() for name, entry in settings["methods"].items()
    )
    changed = [name for name, value in settings.items() if name != "methods" and stored.get(name) != value]
    return changed + ["methods"] * (not same)


def _named(sources: list[Source]) -> dict[str, Source]:
    """Return runs by the name of their folder, with the checkpoint's and the parent's where that is not enough."""
    schemes: list[Callable[[Source], str]] = [
        lambda source: source.folder.name,
        lambda source: f"{source.folder.name}, {source.checkpoint.name}",
        lambda source: f"{source.folder.absolute().parent.name}-{source.folder.name}, {source.checkpoint.name}",
    ]
    for scheme in schemes:
        named = {scheme(source): source for source in sources}
        if len(named) == len(sources):
            return named
    raise ValueError("the same run is named twice: give every run, or every checkpoint, once")


def _methods(sources: list[Source], options: argparse.Namespace) -> tuple[list[str], str]:
    """Return the methods to measure, the same on every run, and the one that others are compared with."""
    names = list(options.methods or USUAL)
    if options.methods is None:
        own = [source.config.method["name"] for source in sources]
        names += [name for name in own if name != "natural"]
    against = options.against or ("at" if "at" in names else names[0])
    return list(dict.fromkeys([*names, against] if against in names else [against, *names])), against


def _radius(sources: list[Source], options: argparse.Namespace) -> float:
    given: float | None = options.radius
    if given is not None:
        for source in sources:
            check_unit("--radius", given, source.config.method.get("norm", source.config.eval.norm), (0.0, 1.0))
        return given
    radii = {source.config.eval.radius for source in sources}
    if len(radii) > 1:
        raise ValueError(
            f"the runs have different radii, {', '.join(map(radius_words, radii))}: choose one by --radius"
        )
    return radii.pop()


def _announce(settings: dict[str, Any], count: int, radius: float) -> None:
    images = settings["batches"] * settings["batch_size"]
    print(
        f"{settings['network']} on {settings['data']}, {settings['weights']} weights of {settings['checkpoint']}\n"
        f"{images} {settings['split']} examples in {settings['batches']} batches, {settings['norm']} margins; "
        f"theta' = {settings['step']}"
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
