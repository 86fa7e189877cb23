"""Which class a search aims at, and where it begins."""

import torch
from torch import Tensor

from dyart.boundary.margins import rivals_by_logit
from dyart.boundary.norms import dual_norm
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Problem


def nearest_rivals(problem: Problem, logits: Tensor, most: int) -> Tensor:
    """Return the classes to aim at, nearest first, ``[N, M]``: the ``most`` likeliest, by linearised distance.

    Cost: one forward and M backward passes, M = min(most, K - 1); none for M = 1.
    """
    rivals = rivals_by_logit(logits, problem.labels)[:, :most]
    if rivals.shape[1] == 1:
        return rivals
    values, gradients = problem.linearise(problem.origin, rivals)
    slopes = dual_norm(gradients.flatten(0, 1), problem.norm).reshape(values.shape)
    distance = values.abs() / slopes.clamp(min=torch.finfo(slopes.dtype).tiny)
    return rivals.gather(1, distance.argsort(dim=0).T)


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
