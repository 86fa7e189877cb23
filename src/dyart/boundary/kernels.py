"""Tensor work between two passes of a network, compiled: on a GPU it is many small kernels otherwise."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors as compiled for static shapes; one compilation serves every caller."""
    return torch.compile(function, dynamic=False, fullgraph=True)
