"""``dyart curves``: accuracies and the share of negative speed through whole trainings, as a figure."""

import argparse
import os
from pathlib import Path

from dyart.cli.places import make_folder
from dyart.cli.runs import runs_in
from dyart.engine.stored import read_config
from dyart.report.curves import BATCHES, NEGATIVE, Curves, read_published, read_run, read_watched, write_curves
from dyart.report.page.run import short_names
from dyart.report.style import foreign, method_name


def curves_command(options: argparse.Namespace) -> None:
    """Draw the curves of all runs side by side, published ones below them, and say where the figure is."""
    if options.smoothing < 1:
        raise ValueError(f"--smoothing must be at least 1, got {options.smoothing}")
    figure = options.out or _above(options.runs) / "curves"
    if strange := foreign(figure):
        raise ValueError(f"{strange} was not drawn by dyart, and would be replaced: choose another file with --out")
    places = runs_in(options.runs)
    methods = [_method(place) for place in places]
    ours = dict(zip(_titles(places, methods), map(_curves, places), strict=True))
    for place, (name, curves) in zip(places, ours.items(), strict=True):
        if place.is_dir() and (lacking := _lacking(curves)):
            print(f"{name} has no {'; no '.join(lacking)}")
    rows: dict[str, dict[str, Curves]] = {"": ours}
    if options.paper:
        published = read_published(options.paper, methods)
        rows = {"ours": ours, "the paper's": {name: published[name] for name in methods}}
    make_folder(figure.parent)
    written = write_curves(rows, figure, options.smoothing)
    print(f"figure: {next(path for path in written if path.suffix == '.png')} (and .pdf, .svg)")


def _above(places: list[Path]) -> Path:
    """Return the folder for a figure: what is named, or of several the closest folder above all of them."""
    folders = [place if place.is_dir() else place.parent for place in places]
    if len(folders) == 1:
        return folders[0]
    above, here = Path(os.path.commonpath([folder.resolve() for folder in folders])), Path.cwd()
    return above.relative_to(here) if above.is_relative_to(here) else above


def _method(place: Path) -> str:
    """Return what a run was trained by; of a monitor's file alone, the name of its folder."""
    if place.is_file():
        return place.resolve().parent.name
    return method_name(read_config(place, method=False).method["name"])


def _curves(place: Path) -> Curves:
    return read_watched(place) if place.is_file() else read_run(place)


def _lacking(curves: Curves) -> list[str]:
    """Return what the figure cannot show of a run, each with what would have a training measure it."""
    lacking = []
    if not {"train_clean", "train_robust"} <= set(curves):
        instead = "; means of batches are drawn instead" if BATCHES.keys() & curves.keys() else ""
        lacking.append(f"accuracies on training images (eval.train_examples{instead})")
    if NEGATIVE not in curves:
        lacking.append("negative shares (monitor.every)")
    return lacking


def _titles(folders: list[Path], methods: list[str]) -> list[str]:
    """Return the method of every run, with the folder's name where runs share a method."""
    names = short_names([folder.resolve() for folder in folders])
    if len(set(names)) < len(names):
        raise ValueError("the same run is named twice: give every run once")
    alone = [methods.count(method) == 1 for method in methods]
    return [m if single else f"{m}, {name}" for m, name, single in zip(methods, names, alone, strict=True)]
