"""Ctrl-C and SIGTERM (a scheduler's, before it kills) as a wish to stop."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(stop: Callable[[str], None], speak: bool = True) -> Iterator[None]:
    """Call ``stop`` with the reason at the first Ctrl-C or SIGTERM; a second one ends the process at once."""

    def handle(number: int, _: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        name = signal.Signals(number).name
        stop(f"stopped by {name}")
        if not speak:  # of several processes, one does
            return
        # Not print: the signal may have come in the middle of one, which cannot be entered twice.
        with suppress(OSError):
            os.write(2, f"\n{name}: saving after this step; once more to stop at once, without saving\n".encode())

    try:
        before = {number: signal.signal(number, handle) for number in SIGNALS}
    except ValueError:  # not in the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
