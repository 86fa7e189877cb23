"""The networks that ``dyart dynamics`` measures: those of runs, and those that were trained elsewhere."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dyart.attacks.radius import Radius
from dyart.boundary.model import logits_of, training_mode, unchanged
from dyart.boundary.norms import Norm
from dyart.cli.networks import is_file_of_weights, named_model, named_network, refuse_without_model
from dyart.cli.places import dynamics_folder
from dyart.data.loader import Batch
from dyart.dynamics.settings import usual_radius
from dyart.dynamics.source import Source, SplitName, open_source, source_elsewhere
from dyart.engine.fabric import make_fabric
from dyart.engine.stored import RunError

NORM: Norm = "linf"
RADIUS = Radius("8/255")
BATCH_SIZE = 128
# What a run says itself, and what a network has to be named by.
OF_RUNS = ("data", "norm", "batch_size")
NAMES = ("model_args", "mean", "std")


def open_sources(options: argparse.Namespace) -> list[Source]:
    """Return what is named: runs and their checkpoints, files of weights that say which network they are of, --model.

    Raises:
        RunError: nothing is named, something is missing, or options do not belong to what is named.
    """
    places: list[Path | None] = options.runs or [None]
    if options.model is not None and len(places) > 1:
        raise RunError("--model names one network: name one file of weights with it, or measure them one by one")
    named = [argparse.Namespace(**vars(options), run_or_checkpoint=place) for place in places]
    for one in named:  # of all, before one of them is opened
        _refuse(one)
    return [_elsewhere(one) if _is_elsewhere(one) else _of_run(one) for one in named]


def name_apart(sources: Sequence[Source]) -> dict[str, Source]:
    """Return networks by short names: those of their folders or files, with more of their paths where needed.

    Raises:
        ValueError: one is named twice.
    """
    schemes: list[Callable[[Source], str]] = [
        _short,
        lambda source: f"{_short(source)}, {_file(source).name}",
        lambda source: f"{_place(source).absolute().parent.name}-{_short(source)}, {_file(source).name}",
        lambda source: f"{'-'.join(_place(source).absolute().parent.parts[1:])}-{_short(source)}, {_file(source).name}",
    ]
    for scheme in schemes:
        found = {scheme(source): source for source in sources}
        if len(found) == len(sources):
            return found
    raise ValueError("the same network is named twice: give every run, checkpoint or file of weights once")


def split_of(source: Source, wanted: SplitName | None) -> SplitName:
    """Return the part of the data to measure on: as wanted, else training examples, as far as there are any.

    Raises:
        RunError: the data have no training part, and that is wanted.
    """
    if len(source.data.train):
        return wanted or "train"
    if wanted == "train":
        raise RunError(f"{source.data.name} has no training part: leave --split train out, and its test part is taken")
    if wanted is None:
        print(f"{source.data.name} has no training part: its test examples are measured", file=sys.stderr)
    return "test"


def check_step(source: Source, batch: Batch) -> None:
    """Raise unless a step can be taken on a network that was trained elsewhere: so far it has run in eval mode alone.

    Raises:
        RunError: it has nothing to move, or fails in training mode.
    """
    model, name = source.model, source.config.model.name
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RunError(f"{name} has no parameter to train, so that no step moves its boundary: let some need gradients")
    # In this order: statistics of BatchNorm layers that are in eval mode would not be kept.
    with torch.no_grad(), training_mode(model), unchanged(model, source.device):
        try:
            logits_of(model(batch.inputs))
        except Exception as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise RunError(
                f"{name} fails in training mode, in which a step is taken, on a batch of {len(batch)}: {first}"
            ) from error


def _is_elsewhere(options: argparse.Namespace) -> bool:
    return options.model is not None or is_file_of_weights(options.run_or_checkpoint)


def _refuse(options: argparse.Namespace) -> None:
    """Raise where options do not belong to a network."""
    if options.model is None:
        refuse_without_model(options)
    if not _is_elsewhere(options):
        lost = [f"--{name.replace('_', '-')}" for name in OF_RUNS if getattr(options, name) is not None]
        if lost and options.run_or_checkpoint.exists():
            raise RunError(
                f"{', '.join(lost)}: a run is measured as it was trained. dyart export {options.run_or_checkpoint} "
                "writes its weights to a file, which can be measured in another way"
            )
    elif options.averaged or options.update == "optimizer":
        which = "--averaged" if options.averaged else "--update optimizer"
        raise RunError(f"{which} belongs to a run, which keeps averaged weights and its optimizer: leave it out")


def _of_run(options: argparse.Namespace) -> Source:
    return open_source(options.run_or_checkpoint, make_fabric(options.device).device, options.averaged)


def _elsewhere(options: argparse.Namespace) -> Source:
    model, data, device, _ = named_network(options, test_alone=False)
    norm = options.norm or NORM
    file = options.weights or options.run_or_checkpoint
    return source_elsewhere(
        model,
        data,
        device,
        folder=dynamics_folder(options),
        weights=file,
        named=_named(options, file),
        norm=norm,
        radius=options.radius or _radius(data.name, norm),
        batch_size=options.batch_size or BATCH_SIZE,
    )


def _named(options: argparse.Namespace, file: Path | None) -> dict[str, Any]:
    """Return what a network is named by, as JSON has it."""
    values = {"model": named_model(options), "weights": file, **{name: getattr(options, name) for name in NAMES}}
    given = {name: value for name, value in values.items() if value is not None}
    plain: dict[str, Any] = json.loads(json.dumps(given, default=str))
    return plain


def _radius(data: str, norm: Norm) -> Radius:
    """Return the radius that the recipes for a data set have, else the usual one."""
    known = usual_radius(data, norm)
    if known is None and norm != NORM:
        raise ValueError(f"--norm {norm} needs --radius: the usual one is of {NORM}")
    return known or RADIUS


def _short(source: Source) -> str:
    return source.folder.name if source.trained else source.folder.name.removeprefix("dynamics-")


def _file(source: Source) -> Path:
    return source.checkpoint or source.folder


def _place(source: Source) -> Path:
    """Return the run's folder, or the file of the weights."""
    return source.folder if source.trained else _file(source)
