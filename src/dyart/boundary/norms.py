"""p-norms of batches of inputs of any shape, and their duals; and small helpers on rows."""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2", "l1"]

NORMS: tuple[Norm, ...] = ("linf", "l2", "l1")
DUAL: dict[Norm, Norm] = {"linf": "l1", "l2": "l2", "l1": "linf"}
_ORDER: dict[Norm, float] = {"linf": math.inf, "l2": 2.0, "l1": 1.0}


def flat(x: Tensor) -> Tensor:
    """Return ``x`` as ``[N, D]``, one row per example; a vector ``[N]`` becomes ``[N, 1]``."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def per_row(value: Tensor, like: Tensor) -> Tensor:
    """Return one value per example in a shape that broadcasts against ``like``, ``[N, 1, ...]``."""
    return value.reshape(-1, *[1] * (like.ndim - 1))


def rows_of(keep: Tensor, one: Iterable[Tensor], other: Iterable[Tensor]) -> list[Tensor]:
    """Return each tensor of ``one`` with the rows where ``keep`` holds, ``[N]``, and its other rows from ``other``."""
    return [torch.where(per_row(keep, a), a, b) for a, b in zip(one, other, strict=True)]


def positive(x: Tensor) -> Tensor:
    """Return ``x`` where it is positive, and 1 elsewhere: to divide by."""
    return torch.where(x > 0, x, 1.0)


def norm(x: Tensor, p: Norm) -> Tensor:
    """Return the p-norm of every example of ``x``, ``[N]``."""
    largest = flat(x).abs().amax(dim=1)  # 10 times as fast on a CPU as vector_norm
    if p == "linf":
        return largest
    # Scaled by the largest entry: squares of tiny or huge ones would leave the range of float32.
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(flat(x) / scale[:, None], ord=_ORDER[p], dim=1)
    return scale * scaled


def dual_norm(x: Tensor, p: Norm) -> Tensor:
    """Return the q-norm, 1/p + 1/q = 1, of every example of ``x``, ``[N]``."""
    return norm(x, DUAL[p])
