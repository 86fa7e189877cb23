"""``dyart margins``: how far test examples are from the decision boundary, and whether two solvers agree."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from dyart.attacks.radii import check_radii
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.solvers import SOLVERS, Solver, apgd
from dyart.boundary.solvers.own import check_solver, name_of
from dyart.boundary.validation import check_choice
from dyart.cli.look import look_at, say_guessing
from dyart.cli.networks import named_examples, named_network, recorded_accuracy, sample
from dyart.cli.places import foreign, make_folder, margins_path, replaced, second_path, second_stays
from dyart.data import DataSet
from dyart.data.ranks import team_here
from dyart.data.sets import Indices
from dyart.dynamics.pictures import PICTURED, packed
from dyart.engine.files import write_json, write_whole
from dyart.engine.stored import checkpoint_of, read_config
from dyart.evaluation.agreement import Agreement, compare
from dyart.evaluation.curve import accuracy_from_margins
from dyart.evaluation.examples import data_digest, model_digest
from dyart.evaluation.intervals import wilson
from dyart.evaluation.records import versions
from dyart.models.factory import is_factory, load_named

SHOWN, PICTURES = 5, 24
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
SETTINGS = (
    *("run_or_checkpoint", "model", "model_args", "weights", "network", "mean", "std", "count", "seed", "device"),
    *("norm", "boundary", "steps", "restarts", "solver", "cross_check", "batch_size"),
)


def margins_command(options: argparse.Namespace) -> None:
    """Search, print a summary, write CSV and JSON; with ``--cross-check``, search twice and say where they differ."""
    if options.radii and options.boundary != "exact":
        raise ValueError("--radii asks for robust accuracy, which needs --boundary exact")
    if options.count is not None and options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}")
    solver = _solver(options.solver)
    model, data, device, folder = named_network(options)
    # Now: while a training goes on, another one may be the best by the end of the search.
    checkpoint = checkpoint_of(options.run_or_checkpoint).resolve().name if folder else None
    # A file of weights may be another one under the same name.
    options.network = model_digest(model) if folder is None else None
    options.norm = options.norm or ("linf" if folder is None else read_config(folder, method=False).eval.norm)
    if options.cross_check:
        options.cross_check = _second_solver(options.cross_check, options.solver, options.norm)
    second = _solver(options.cross_check) if options.cross_check else None
    opinion = None if second is None else name_of(second)  # for names of files
    team = team_here()
    examples = len(sample(len(data.test), options.count, options.seed))
    asked = argparse.Namespace(**{**vars(options), "cross_check": opinion})
    place = (options.out, "") if options.out else margins_path(folder or Path(), data.name, examples, asked)
    path, stays = place
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder: name the CSV file in it")
    if path.suffix == ".json":
        raise ValueError(f"--out {path}: name the CSV file, e.g. {path.with_suffix('.csv')}; a JSON goes beside it")
    strange = foreign(path) if options.out else None
    if strange == path:
        raise ValueError(f"--out {path} is no CSV file of margins: choose another name")
    if strange:
        raise ValueError(f"--out {path}: settings go to {strange}, which is something else: choose another name")
    if options.out and (why := second_stays(path, opinion)):
        raise ValueError(f"--cross-check: {why}, and the second opinion would replace it: choose another --out")
    if options.radii:
        check_radii(options.radii, options.norm, math.prod(data.shape))
    make_folder(path.parent)
    if options.out and (before := replaced(path)):
        print(before)
    inputs, labels, rows = named_examples(data, options.count, options.seed, device)
    called, files = data.rows_of(rows), data.files_of(rows)
    classes = None if data.classes == tuple(map(str, range(len(data.classes)))) else data.classes
    expected = recorded_accuracy(options.run_or_checkpoint if folder else None, data)
    look_at(model, inputs, labels, options.norm, expected)

    def search(solver: str | Solver) -> BoundaryPoints:
        return closest_boundary_points(
            model,
            inputs,
            labels,
            norm=options.norm,
            boundary=options.boundary,
            steps=options.steps,
            restarts=options.restarts,
            solver=solver,
            batch_size=options.batch_size,
            seed=options.seed,
            progress=sys.stderr.isatty() and team.count == 1,
            divide=team.do if team.count > 1 else None,
        )

    found = search(solver)
    if team.rank == 0:
        found.to_csv(path, called.tolist(), files, classes)
        _draw(found, torch.as_tensor(called), path.with_suffix(PICTURED))
    summary = _summary(found, options)
    _print(found, called, files, classes, summary)
    if team.rank == 0:
        say_guessing(model, found, device, options.batch_size)
    if stays:
        print(stays)
    print(f"one line per example: {path}; settings and summary: {path.with_suffix('.json')}")
    report = None
    if second is not None:
        other = search(second)
        report = compare(found, other, found.solver, other.solver)
        print(report)
        beside = second_path(path, other.solver)
        if team.rank == 0:
            other.to_csv(beside, called.tolist(), files, classes)
        print(f"the second opinion: {beside}")
    if team.rank == 0:
        write_json(path.with_suffix(".json"), _record(options, checkpoint, data, rows, found, summary, report))


def _draw(found: BoundaryPoints, index: Tensor, path: Path) -> None:
    """Keep pictures of the closest examples for `dyart report`; of vectors there are none, nor may old ones stay."""
    closest = found.margin.nan_to_num(nan=math.inf).argsort(stable=True)
    rows = closest[found.optimal[closest]][:PICTURES]
    if found.inputs.ndim == 4 and len(rows):
        write_whole(path, packed(found, index, rows))
    else:
        path.unlink(missing_ok=True)


def _solver(name: str) -> str | Solver:
    """Return one of our solvers by its name, or the function that ``package.module:function`` names."""
    try:
        found = load_named(name, "boundary search", "package.module:function") if is_factory(name) else name
    except AttributeError as error:
        raise ValueError(str(error)) from error
    check_solver(found)
    return cast("str | Solver", found)


def _second_solver(wanted: str, first: str, norm: Norm) -> str:
    """Return the solver of the second opinion; one that cannot give it is refused here, before any search."""
    if wanted == "auto":
        usual = "apgd" if norm in apgd.NORMS else "fab"
        return "fast" if first == usual or is_factory(first) else usual
    if not is_factory(wanted):
        check_choice("--cross-check", wanted, tuple(SOLVERS))
    if wanted == first:
        raise ValueError(f"--cross-check {wanted} is the solver itself: name another one of {', '.join(SOLVERS)}")
    if wanted == "apgd":
        apgd.check_norm(norm)
    return wanted


def _summary(found: BoundaryPoints, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is known of all examples together, as plain values."""
    margins = found.margin[found.found].double()
    shares = torch.tensor(SHARES, device=margins.device, dtype=margins.dtype)
    quantiles = margins.quantile(shares).tolist() if len(margins) else []
    curve = accuracy_from_margins(found, options.radii) if options.radii else {}
    count = len(found)
    return {
        "examples": count,
        "accuracy": found.correct.double().mean().item(),
        "inside": int(found.inside.sum()),
        "found": int(found.found.sum()),
        "optimal": int(found.optimal.sum()),
        "quantiles": dict(zip(map(str, SHARES), quantiles, strict=False)),
        "robust": {str(radius): value for radius, value in curve.items()},
        "intervals": {str(radius): wilson(round(value * count), count) for radius, value in curve.items()},
    }


def _record(
    options: argparse.Namespace,
    checkpoint: str | None,
    data: DataSet,
    rows: Indices,
    found: BoundaryPoints,
    summary: dict[str, Any],
    report: Agreement | None,
) -> dict[str, Any]:
    """Return what the CSV's numbers depend on, and what they come to."""
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name in SETTINGS
        if (value := getattr(options, name)) is not None
    }
    ratio = None if report is None or math.isnan(report.ratio) else report.ratio  # JSON has no NaN
    agreement = None if report is None else {"agree": report.agree, "both": report.both, "ratio": ratio}
    return ({"checkpoint_name": checkpoint} if checkpoint else {}) | {
        "data": data.name,
        "data_digest": data_digest(data),
        "split": "test",
        "drawn_from": len(data.test),
        "all": len(rows) == len(data.test),
        "notes": list(data.notes),
        "classes": list(data.classes),
        "bounds": [0.0, 1.0],
        "passes": {"forward": found.cost.forward, "backward": found.cost.backward},
        "settings": settings,
        "summary": summary,
        "cross_check": agreement,
        "versions": versions(),
    }


def _print(
    found: BoundaryPoints,
    rows: Indices,
    files: list[str] | None,
    classes: tuple[str, ...] | None,
    summary: dict[str, Any],
) -> None:
    print(found)
    print(f"accuracy: {100 * summary['accuracy']:.1f} %")
    if summary["quantiles"]:
        words = ", ".join(f"{float(share):.0%} {value:.4g}" for share, value in summary["quantiles"].items())
        print(f"quantiles of the margin: {words}")
        nearest = torch.where(found.found, found.margin, torch.inf).argsort()[: min(SHOWN, summary["found"])]
        print("the most vulnerable:")
        for row in nearest.tolist():
            # As the CSV names it: by its place in the test set, or its row in a file without one.
            called = f"example {rows[row]}" + (f" ({files[row]})" if files else "")
            print("  " + found.explain(row, classes).replace(f"example {row},", f"{called},", 1))
    if summary["robust"]:
        words = ", ".join(f"{radius} {100 * value:.1f} %" for radius, value in summary["robust"].items())
        print(f"accuracy by margins (an upper bound of the robust accuracy): {words}")
