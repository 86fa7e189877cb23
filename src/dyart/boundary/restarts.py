"""Where the second and later searches begin, and which class they aim at."""

import torch
from torch import Tensor

from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Problem


def next_rivals(rivals: Tensor, found_rival: Tensor) -> Tensor:
    """Return the classes to aim at in turn, ``[N, K-2]``: all rivals but the one that the first search found.

    Args:
        rivals: all other classes, likeliest first, ``[N, K-1]``.
        found_rival: ``[N]``; -1 where nothing was found (then the likeliest rival is left out).
    """
    tried = rivals == found_rival[:, None]
    tried[:, 0] |= ~tried.any(dim=1)
    return rivals[~tried].reshape(len(rivals), -1)


def random_start(problem: Problem, best: Best, index: Tensor, seed: int, restart: int) -> Tensor:
    """Return a random point in the box, half as far away as the best point so far, ``[N, D]``.

    Where nothing was found yet, the point lies up to a quarter of the box away (of the input's size without a box).
    The draw is a function of (seed, restart, index) for every example, on any device and in any chunk.
    """
    origin = problem.origin
    draws = [_draw(seed, restart, int(i), origin.shape[1]) for i in index.tolist()]
    noise = torch.stack(draws).to(origin)
    half_way = noise * (best.distance / 2 / norm_of(noise, problem.norm))[:, None]
    far = noise * _extent(problem) / 4
    return problem.into_box(origin + torch.where(best.found[:, None], half_way, far))


def _draw(seed: int, restart: int, index: int, size: int) -> Tensor:
    # One stream per (seed, restart, example): a 64-bit mix keeps neighbouring numbers apart.
    mixed = hash((seed, restart, index)) & (2**63 - 1)
    generator = torch.Generator().manual_seed(mixed)
    return torch.rand(size, generator=generator) * 2 - 1


def _extent(problem: Problem) -> Tensor:
    size = problem.origin.abs().amax(dim=1, keepdim=True).clamp(min=1)
    if problem.low is None or problem.high is None:
        return size
    span = problem.high - problem.low
    return torch.where(span.isfinite(), span, size)
