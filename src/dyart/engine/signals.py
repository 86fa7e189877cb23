"""Ctrl-C and SIGTERM (a scheduler's, before it kills) as a wish to stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call ``stop`` with the reason at the first Ctrl-C or SIGTERM; a second one ends the process at once."""

    def handle(number: int, _: object) -> None:
        stop(f"stopped by {signal.Signals(number).name}")
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
