"""How the C library hands out the memory of tensors on a CPU."""

import ctypes
import os
import sys

# Parameters of glibc's mallopt, and their values in bytes: freed memory at the end of the heap is given back above the
# first; blocks above the second (its largest value) come from the system and go back there.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT, LARGEST = 1 << 30, 32 << 20
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep up to a GiB of freed memory; return whether it does.

    The next step asks for the same tensors again. Given back, their pages come anew and are cleared at every first
    touch, which is a part of the time that a small network's search takes. For a program, not for a library: it
    concerns everything in the process. Where the user has settings of their own, or another C library, nothing changes.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
