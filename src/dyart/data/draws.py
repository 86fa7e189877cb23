"""Random numbers as a function of (key, example), the same on every device, in any order, in any batch.

A key stands for a seed, a purpose and a moment (epoch or step); an example is its index in the data set. Resuming,
shuffling, sharding over processes and moving to another device change nothing about what an example draws.

The generator is SplitMix64's output function applied to a counter, folded once per coordinate.
"""

import math

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_END = 256  # no byte: it ends the purpose, so that ("ab") and ("a", 98) are two streams
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(seed: int, purpose: str, *moment: int) -> int:
    """Return the key of a stream of draws: a signed 64-bit integer.

    Args:
        seed: of the run.
        purpose: what is drawn, so that crops and attacks of one seed have nothing to do with each other.
        moment: epoch, step or whatever else tells the draws apart.
    """
    state = seed & _MASK
    for part in (*purpose.encode(), _END, *moment):
        state = _scramble(state + (part + 1) * _GOLDEN)
    return _signed(state)


def uniform(stream: int | Tensor, index: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Return float32 draws in [0, 1): one per example of ``index`` ``[N]``, or ``[N, *shape]``.

    ``stream`` is a key; as a tensor (0-dimensional, int64) it may change without recompiling a compiled function.
    """
    return (_bits(stream, index, shape) >> 40 & 0xFFFFFF).float() * 2.0**-24


def normal(stream: int | Tensor, index: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Return float32 draws of the standard normal distribution, ``[N, *shape]``."""
    centred = ((_bits(stream, index, shape) >> 40 & 0xFFFFFF).double() + 0.5) * 2.0**-23 - 1.0
    return (torch.erfinv(centred) * math.sqrt(2.0)).float()


def integers(stream: int | Tensor, index: Tensor, count: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Return int64 draws from 0 to ``count - 1``, ``[N, *shape]``."""
    # 53 bits: with the 24 of a float32 most examples of a large pool would be drawn unevenly, or never.
    share = (_bits(stream, index, shape) >> 11 & (1 << 53) - 1).double() * 2.0**-53
    return (share * count).long()


def permutation(stream: int, count: int) -> Tensor:
    """Return a permutation of 0 to ``count - 1`` on the CPU."""
    return torch.argsort(_bits(stream, torch.arange(count), ()))


def _bits(stream: int | Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    state = _scrambled(stream + (index + 1) * _signed(_GOLDEN))
    if not shape:
        return state
    positions = torch.arange(1, math.prod(shape) + 1, device=index.device) * _signed(_GOLDEN)
    return _scrambled(state[:, None] + positions).reshape(len(index), *shape)


def _scrambled(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _signed(_FIRST)
    state = (state ^ _shifted(state, 27)) * _signed(_SECOND)
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, by: int) -> Tensor:
    """Return a shift to the right that brings in zeros; torch's brings in the sign."""
    return (state >> by) & (_MASK >> by)


def _scramble(state: int) -> int:
    state &= _MASK
    state = ((state ^ (state >> 30)) * _FIRST) & _MASK
    state = ((state ^ (state >> 27)) * _SECOND) & _MASK
    return state ^ (state >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
