"""A progress line for long work, without dependencies."""

import sys
import time
from collections.abc import Callable

Progress = bool | Callable[[int, int], None]


class Counter:
    """Counts ticks towards a total and reports them: to nobody, to a callable, or on one line of stderr."""

    def __init__(self, progress: Progress, total: int, label: str = "closest boundary points") -> None:
        """Start at zero. ``progress``: False, True for stderr, or a callable ``(done, total)``."""
        self.done, self.total, self.label = 0, total, label
        self.report = progress if callable(progress) else self._print if progress else None
        self.started = self.printed = time.monotonic()

    def tick(self) -> None:
        """Count one more. Batches that are divided where memory runs out are more than were counted on."""
        self.done += 1
        if self.report is not None and self.done <= self.total:
            self.report(self.done, self.total)

    def _print(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self.printed < 0.1:
            return
        self.printed = now
        filled = 30 * done // max(total, 1)
        left = (now - self.started) * (total - done) / done
        bar = "#" * filled + "." * (30 - filled)
        end = "\n" if done == total else ""
        print(
            f"\r{self.label} [{bar}] {done}/{total} steps, {left:.0f} s left ",
            end=end,
            file=sys.stderr,
            flush=True,
        )
