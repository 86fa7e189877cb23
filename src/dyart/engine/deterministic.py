"""The same bits in every run on one machine, also on a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# cuBLAS sums in an order of its own unless its workspace has a fixed size; it looks once, when it is first used.
WORKSPACE, SIZE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Let torch use deterministic algorithms alone, and put its switches back afterwards; ``on`` false: do nothing.

    An operation without such an algorithm raises an error that names it. The environment variable for cuBLAS stays.
    """
    if not on:
        yield
        return
    os.environ.setdefault(WORKSPACE, SIZE)
    cudnn = torch.backends.cudnn
    before, benchmark = torch.are_deterministic_algorithms_enabled(), cudnn.benchmark
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        cudnn.benchmark = benchmark
