"""``dyart report``: one page about one or several runs, or measured networks."""

import argparse
from pathlib import Path

from dyart.cli.parsers import Commands, file_path

HELP = """\
examples:
  dyart report runs/mine                           runs/mine/report.html
  dyart report runs/demo/at runs/demo/dyart        runs/demo/report.html: both, compared
  dyart report runs/compare                        all runs of a comparison, compared
  dyart report runs/* --out page.html --title "Fashion-MNIST, three methods"
  dyart report measured                            a network that was not trained here, after
                                                   dyart evaluate --model NAME ... --out measured
                                                   dyart margins --model NAME ... --out measured/margins.csv
                                                   dyart dynamics --model NAME ... --out measured

The page shows what a run's folder holds. Each of these adds to it:
  dyart evaluate RUN       robust accuracy against radius, with intervals
  dyart margins RUN        the distribution of margins
  dyart dynamics RUN       margins and speeds with pictures, the most vulnerable examples
  dyart train ... --monitor.every 50     margins through the training
"""


def add_report(commands: Commands) -> None:
    """Add ``dyart report``."""
    report = commands.add_parser(
        "report",
        help="one HTML page about runs or measured networks, that opens offline",
        description="Write one self-contained HTML page: what was trained and how, curves, robust accuracy, margins, "
        "speeds, the most vulnerable examples, settings; several runs are compared.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folders of runs or of measurements, or one that has them in it",
    )
    report.add_argument(
        "--out",
        type=file_path,
        help="HTML file (default: report.html in the run's folder, or in the one above all runs)",
    )
    report.add_argument("--title", help="of the page (default: the names of the runs)")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from dyart.cli.places import make_folder
    from dyart.cli.runs import runs_among, runs_in
    from dyart.report.page import write_page
    from dyart.report.page.run import MARKS
    from dyart.report.page.write import NAME

    if options.out is not None and options.out.is_dir():
        raise ValueError(f"--out {options.out} is a folder: name the HTML file, e.g. {options.out / NAME}")
    if options.out is not None:
        make_folder(options.out.parent)
    path = write_page(runs_in(runs_among(options.runs, MARKS), MARKS), options.out, options.title)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB, opens offline)")
