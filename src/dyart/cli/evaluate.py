"""``dyart evaluate``: how many test examples resist attacks, at many radii in one pass."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dyart.boundary.model import Model
from dyart.boundary.norms import Norm
from dyart.cli.networks import named_model, named_network, recorded_accuracy, sample
from dyart.cli.places import check_free, evaluation_folder, make_folder
from dyart.data import DataSet
from dyart.data.ranks import team_here
from dyart.engine.stored import checkpoint_of, read_config
from dyart.evaluation.evaluate import RADII, evaluate
from dyart.evaluation.examples import Examples, data_digest, model_digest
from dyart.evaluation.records import EXAMPLES, FILE
from dyart.evaluation.settings import named_radii

WITHOUT_SEARCH = ("clean", "pgd")


def evaluate_command(options: argparse.Namespace) -> None:
    """Evaluate what is named, print a table, and write the records; goes on with what was begun in the folder."""
    _refuse_unused(options)
    model, data, device, run = named_network(options)
    rows = sample(len(data.test), options.count, options.seed)
    radii, norm = _measured(options, run)
    facts = _facts(options, data, run)
    digests = {"network": model_digest(model), "set": _digest(data, model, rows)}
    facts["asked"] = _asked(options, data, len(rows), radii, norm) | digests
    checkpoint = facts.get("checkpoint", "best")
    named, part = None if checkpoint == "best" else checkpoint, len(rows) < len(data.test)
    if options.out and not options.fresh:
        check_free(options.out, facts["asked"])
    place = (options.out, "") if options.out else evaluation_folder(run, named, facts["asked"], options, part)
    folder, stays = place
    if folder.is_dir():  # a new one is made when the preflight has found nothing
        make_folder(folder)
    result = evaluate(
        model,
        data.test.images,
        data.test.labels,
        radii,
        options.attack,
        norm,
        strict=options.strict,
        batch_size=options.batch_size,
        seed=options.seed,
        device=device,
        index=rows,
        rows=data.test_rows,
        files=data.test_files,
        folder=folder,
        fresh=options.fresh,
        preflight=not options.no_preflight,
        expected_accuracy=recorded_accuracy(options.run_or_checkpoint if run else None, data),
        steps=options.steps,
        restarts=options.restarts,
        precision=options.precision,
        compile=options.compile,
        progress=sys.stderr.isatty(),
        facts=facts,
        team=team_here(),
    )
    print(result)
    if stays:
        print(stays)
    if result.taken:
        print("it was finished before, and nothing was attacked again (--fresh would)")
    if result.replaced:
        print("replaced: the finished evaluation that was there, with another attack or of other outputs")
    print(f"{folder / FILE}; one line per example: {folder / EXAMPLES}")


def _refuse_unused(options: argparse.Namespace) -> None:
    """Refuse steps and restarts where there is no search that they are of: PGD's steps are as many as it says."""
    unused = [f"--{name}" for name in ("steps", "restarts") if getattr(options, name) is not None]
    if unused and options.attack in WITHOUT_SEARCH:
        raise ValueError(
            f"{' and '.join(unused)}: of the boundary search, which --attack {options.attack} does without; leave it "
            "out, or choose --attack margins, apgd or autoattack"
        )


def _measured(options: argparse.Namespace, run: Path | None) -> tuple[list[float], Norm]:
    """Return radii and norm: as given, else those of the run, else the usual ones."""
    settings = None if run is None else read_config(run, method=False).eval
    norm: Norm = options.norm or (settings.norm if settings else "linf")
    if options.radii:
        return options.radii, norm
    if settings is not None and norm == settings.norm:
        return list(settings.radii), norm
    if norm != "linf":
        if options.attack == "clean":
            return [], norm
        raise ValueError(f"--norm {norm} needs --radii: the usual ones are of linf")
    return list(RADII), norm


def _asked(options: argparse.Namespace, data: DataSet, examples: int, radii: list[float], norm: str) -> dict[str, Any]:
    """Return what the command asks for, as plain values: two that ask for the same have one record."""
    return {
        "data": data.name,
        "examples": examples,
        "attack": options.attack,
        "radii": [str(radius) for radius in named_radii(radii)],
        "norm": norm,
        "strict": options.strict,
        "seed": options.seed,
        "steps": options.steps,
        "restarts": options.restarts,
        "precision": options.precision,
    }


def _digest(data: DataSet, model: Model, rows: npt.ArrayLike) -> str:
    """Return a fingerprint of the examples: a file of data may be another under the same name."""
    return Examples(data.test.images, data.test.labels, "cpu", model, rows).digest()


def _facts(options: argparse.Namespace, data: DataSet, run: Path | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"data": data.name, "data_digest": data_digest(data)}
    facts |= {"drawn_from": len(data.test), "notes": list(data.notes)}
    if run is None:
        file = options.weights or options.run_or_checkpoint
        more = {name: getattr(options, name) for name in ("model_args", "mean", "std")}
        facts |= {name: value for name, value in more.items() if value is not None}
        return facts | {"model": named_model(options), "weights": None if file is None else str(file)}
    checkpoint = checkpoint_of(options.run_or_checkpoint)
    which = "best" if checkpoint == checkpoint_of(run) else checkpoint.name
    # By name, too: a training that goes on may have another best one.
    return facts | {"checkpoint": which, "checkpoint_name": checkpoint.resolve().name}
