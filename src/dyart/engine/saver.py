"""Checkpoints are written while the training goes on: hashing and syncing are too long for it to wait."""

import threading
from collections.abc import Callable
from types import TracebackType


class Saver:
    """Does pieces of work one after the other in a thread; the end of its ``with`` block waits for the last.

    An error in a piece is raised in the caller's thread, at its next call of any method.
    """

    def __init__(self) -> None:
        """Nothing to do yet."""
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Wait for the piece before, and begin this one."""
        self.wait()

        def do() -> None:
            try:
                work()
            except Exception as error:
                self.error = error

        # A daemon: a process that is told to stop at once does not wait for it. What is written is whole, or not there.
        self.thread = threading.Thread(target=do, name="dyart-checkpoint", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Return when all is done."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.look()

    def look(self) -> None:
        """Raise the error of a piece that failed, if one did. Does not wait."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def __enter__(self) -> "Saver":
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait, unless the process is to stop at once; of two errors the first counts."""
        if kind is None:
            self.wait()
        elif self.thread is not None and issubclass(kind, Exception):
            self.thread.join()
            self.thread = None
