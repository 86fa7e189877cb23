"""Work on many examples that goes on, in smaller pieces, where a device's memory runs out."""

import logging
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Rows = TypeVar("Rows", Tensor, npt.NDArray[np.int64])
Result = TypeVar("Result")

log = logging.getLogger("dyart")
# Of pieces inside pieces the outermost are halved: they know what is still to come.
_inside: ContextVar[bool] = ContextVar("inside", default=False)


class Pieces:
    """Calls a function piece by piece; where memory runs out, pieces are halved from there on, and a line says so.

    What the function returns for a row must not depend on the rows beside it.

    Args:
        what: the work, for that line.
    """

    def __init__(self, what: str) -> None:
        """Begin with pieces as large as they are given."""
        self.what = what
        self.size: int | None = None

    def __call__(self, work: Callable[[Rows], Result], rows: Rows) -> list[Result]:
        """Return the results for all rows, in their order: one, as long as there is memory enough.

        Raises:
            torch.OutOfMemoryError: (or what else says so) for a single row.
        """
        if _inside.get():
            return [work(rows)]
        results: list[Result] = []
        waiting = deque(_split(rows, self.size))
        failed = 0
        while waiting:
            token = _inside.set(True)
            try:
                results.append(work(waiting[0]))
            except (RuntimeError, MemoryError) as error:
                failed = max(failed, len(waiting[0]))
                if not ran_out(error) or failed == 1 or len(waiting[0]) == 1:
                    raise
            else:
                waiting.popleft()
                if failed:
                    log.warning("%s: out of memory with %d examples, going on with %d", self.what, failed, self.size)
                    failed = 0
                continue
            finally:
                _inside.reset(token)
            # Here, and not above: while an error is handled, its frames hold on to the memory.
            self.size = (len(waiting[0]) + 1) // 2
            waiting = deque(piece for left in waiting for piece in _split(left, self.size))
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return results


def ran_out(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = ("DefaultCPUAllocator", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _split(rows: Rows, size: int | None) -> list[Rows]:
    if size is None or len(rows) <= size:
        return [rows]
    return [rows[start : start + size] for start in range(0, len(rows), size)]
