"""``dyart doctor``: whether what this package needs is here and works."""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dyart.cli.colours import paint
from dyart.cli.errors import DONE, FAILED
from dyart.cli.parsers import Commands

OK, NOTE, BROKEN = "ok", "note", "BROKEN"
COLOURS = {OK: "green", NOTE: "yellow", BROKEN: "red"}
SECONDS = 8.0
OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 6)

HELP = """\
"note" is something that is not here and not needed by everybody; "BROKEN" is to be repaired, and makes the exit status
1. The line says how.
"""


class Finding(NamedTuple):
    """One line of the table."""

    what: str
    verdict: str
    words: str


def add_doctor(commands: Commands) -> None:
    """Add ``dyart doctor``."""
    words = "check the installation: versions, GPU, compiler, data, write access"
    doctor = commands.add_parser(
        "doctor",
        help=words,
        description=f"{words.capitalize()}. Takes some seconds.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"limit for the trial of the compiler (default: {SECONDS:.0f})"
    )
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from dyart.cli.doctor_checks import findings

    if not options.seconds > 0:
        raise ValueError(f"--seconds must be positive, got {options.seconds}")
    return report(findings(options.seconds))


def report(found: Iterator[Finding]) -> int:
    """Print findings as they come, and return the exit status that they mean."""
    broken = 0
    for finding in found:
        broken += finding.verdict == BROKEN
        verdict = paint(f"{finding.verdict:<6}", COLOURS[finding.verdict], sys.stdout)
        print(f"{finding.what:<12} {verdict}  {finding.words}", flush=True)
    print("all is well" if not broken else f"{broken} to be repaired")
    return FAILED if broken else DONE


def tried(what: str, check: Callable[[], Finding]) -> Finding:
    """Return what a check finds; a check that fails itself has found something broken."""
    try:
        return check()
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        return Finding(what, BROKEN, f"{type(error).__name__}: {words}")
