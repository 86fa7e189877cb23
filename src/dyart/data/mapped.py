"""Arrays in .npy files, mapped into memory: a set larger than memory is read as it is used."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Of all memory. A private map counts as memory that may be needed, and the system refuses more of it than there is.
LARGEST_PRIVATE = 0.25


def open_npy(path: Path) -> npt.NDArray[Any]:
    """Map a .npy file of plain values; one of Python objects, which could run code, is refused.

    Writing to the array does not change the file: a small one is private, a large one read-only.

    Raises:
        ValueError, EOFError, OSError: it is damaged, or not there.
    """
    # Mode "c": private; and torch takes the array without a warning about read-only memory.
    mode = "c" if path.stat().st_size <= LARGEST_PRIVATE * host_memory() else "r"
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type, unused-ignore]
    return mapped


def host_memory() -> float:
    """Return the bytes of the host's memory; without limit where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
