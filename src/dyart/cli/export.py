"""``dyart export``: a run's network for people who do not have this package."""

import argparse
from pathlib import Path

from dyart.cli.parsers import Commands


def add_export(commands: Commands) -> None:
    """Add ``dyart export``."""
    parser = commands.add_parser(
        "export",
        help="a run's network with weights, for use without this package",
        description="Write weights (.safetensors, .pt), network.py, which builds networks of this package from torch "
        "alone, robustbench.json with what a submission to RobustBench asks for, and a README card.",
    )
    parser.add_argument(
        "run_or_checkpoint", type=Path, metavar="RUN_OR_CHECKPOINT", help="the best epoch of a run counts"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="(default: export in the run's folder)")
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> None:
    import json

    from dyart.evaluation.export import RECORD, export

    folder = export(options.run_or_checkpoint, options.out)
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print("the network that network.py defines gives the run's logits bit for bit")
    print(f"for RobustBench, to be filled in: {', '.join(record['unknown']) or 'nothing'}")
    for note in record["notes"]:
        print(f"  {note}")
