"""Which weights a record is of, in words, where the run has better ones by now: a training may go on after it."""

import re
from collections.abc import Callable, Sequence

from dyart.report.page.markup import Markup, element, joined
from dyart.report.page.run import Run


def of_earlier(run: Run, checkpoint: str) -> str:
    """Return that a record is not of a run's best checkpoint; nothing where it is, or where one of them is unknown."""
    if not run.best or checkpoint in ("", run.best):
        return ""
    return f"of {_called(checkpoint)}; the best is {_called(run.best)} now"


def earlier_accuracy(runs: Sequence[Run]) -> Markup:
    """Return such sentences about the accuracies."""
    return _earlier(runs, "accuracy", lambda run: run.accuracy.checkpoint if run.accuracy else "", "evaluate")


def earlier_margins(runs: Sequence[Run]) -> Markup:
    """Return such sentences about the margins."""
    return _earlier(runs, "margins", lambda run: run.searched, "margins")


def earlier_dynamics(runs: Sequence[Run]) -> Markup:
    """Return such sentences about the speeds."""
    return _earlier(runs, "dynamics", lambda run: run.shares.checkpoint if run.shares else "", "dynamics")


def _earlier(runs: Sequence[Run], what: str, checkpoint: Callable[[Run], str], verb: str) -> Markup:
    """Return a sentence for every run whose record is of another checkpoint, with the command that measures the best.

    Args:
        runs: of the page.
        what: the record, in words.
        checkpoint: the name of the one that a run's record is of.
        verb: of the command.
    """
    said = [(run, of_earlier(run, checkpoint(run))) for run in runs]
    return joined(*(
        element("p", element("strong", f"{run.name}: "), f"{what} {words}. To measure that: ",
                element("code", run.command(verb)), class_="missing")
        for run, words in said if words
    ))  # fmt: skip


def _called(checkpoint: str) -> str:
    """Return the name of a checkpoint as a person would say it, e.g. ``epoch 11``."""
    known = re.fullmatch(r"(epoch|step)-0*(\d+)", checkpoint)
    return f"{known[1]} {known[2]}" if known else checkpoint
