"""``dyart margins``: how far every test example is from the decision boundary, and whether two solvers agree."""

import argparse
import sys
from pathlib import Path

import torch

from dyart.boundary.points import BoundaryPoints
from dyart.boundary.search import closest_boundary_points
from dyart.cli.networks import named_network, test_examples
from dyart.evaluation.agreement import compare
from dyart.evaluation.curve import accuracy_from_margins

SHOWN = 5


def margins_command(options: argparse.Namespace) -> None:
    """Search, print a summary, write the CSV; with ``--cross-check``, search again and print where the two differ."""
    if options.radii and options.boundary != "exact":
        raise ValueError("--radii asks for robust accuracy, which needs --boundary exact")
    if options.count is not None and options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}")
    model, data, device, folder = named_network(options)
    inputs, labels = test_examples(data, options.count, device)

    def search(solver: str) -> BoundaryPoints:
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
            progress=sys.stderr.isatty(),
        )

    found = search(options.solver)
    path = options.out or (folder or Path()) / "margins.csv"
    found.to_csv(path)
    _print(found, options)
    print(f"one line per example: {path}")
    if options.cross_check:
        other = search(options.cross_check)
        report = compare(found, other, options.solver, options.cross_check)
        print(report)
        path = path.with_name(f"{path.stem}-{options.cross_check}.csv")
        other.to_csv(path)
        print(f"the second opinion: {path}")


def _print(found: BoundaryPoints, options: argparse.Namespace) -> None:
    print(found)
    print(f"accuracy: {100 * found.correct.float().mean():.1f} %")
    margins = found.margin[found.found]
    if len(margins):
        shares = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], device=margins.device, dtype=margins.dtype)
        quantiles = ", ".join(
            f"{share:.0%} {value:.4g}"
            for share, value in zip(
                shares.tolist(), margins.quantile(shares, interpolation="lower").tolist(), strict=True
            )
        )
        print(f"quantiles of the margin: {quantiles}")
        nearest = torch.where(found.found, found.margin, torch.inf).argsort()[: min(SHOWN, len(margins))]
        print("the most vulnerable:")
        for row in nearest.tolist():
            print(f"  {found.explain(row)}")
    if options.radii:
        curve = accuracy_from_margins(found, options.radii)
        words = ", ".join(f"{radius} {100 * value:.1f} %" for radius, value in curve.items())
        print(f"accuracy by margins (an upper bound of the robust accuracy): {words}")
