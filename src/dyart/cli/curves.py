"""``dyart curves``: accuracies and the share of negative speed through whole trainings, as a figure."""

import argparse
from pathlib import Path

from dyart.engine.run import read_config
from dyart.report.curves import NEGATIVE, Curves, read_run, write_curves
from dyart.report.style import method_name


def curves_command(options: argparse.Namespace) -> None:
    """Draw the curves of all runs side by side and say where the figure is."""
    trainings: dict[str, Curves] = {}
    for folder in options.runs:
        name = method_name(read_config(folder).method["name"])
        trainings[name if name not in trainings else f"{name}, {folder.name}"] = read_run(folder)
    if not any(NEGATIVE in curves for curves in trainings.values()):
        print("no run here was watched (monitor.jsonl): the figure has no negative shares")
    written = write_curves({"": trainings}, options.out or Path(options.runs[0]) / "curves", options.smoothing)
    print(f"figure: {next(path for path in written if path.suffix == '.png')} (and .pdf, .svg)")
