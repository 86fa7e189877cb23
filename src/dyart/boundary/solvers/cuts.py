"""Several linearisations of the margin function at once, for steps with p = 1.

On the way across, a network's margin falls less than any one linearisation says: it is convex there, and kinked. Each
linearisation is then a cut, below the function everywhere, and a point that is across the boundary is beyond the
hyperplanes of all of them. The shortest step beyond all is one beyond a mixture of them, whose shares a small concave
problem, the dual one, has as its solution: no pass of the model is spent on it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.norms import positive
from dyart.boundary.problem import Problem

# How many cuts are kept, the latest ones.
MOST = 8
# Steps of the dual problem, and of the small quadratic problem that each of them solves.
ROUNDS, INNER = 12, 30
# The quadratic problem is damped: by so much of the largest curvature at first, and by a factor less or more after
# every step, according to whether that one was a gain.
DAMPING, EASING, LEAST = 0.1, 5.0, 1e-6


class Cuts(NamedTuple):
    """Affine functions of the displacement from the input, M for every example."""

    offsets: Tensor
    """``[N, M]``: at the input."""
    normals: Tensor
    """``[N, M, D]``."""

    def at(self, way: Tensor) -> Tensor:
        """Return their values at displacements ``[N, D]``, ``[N, M]``."""
        return self.offsets + _times(self.normals, way)


def first_cut(way: Tensor, value: Tensor, gradient: Tensor) -> Cuts:
    """Return the linearisation at the displacement ``way``, where the function has this value and gradient."""
    return Cuts((value - (gradient * way).sum(dim=1))[:, None], gradient[:, None])


def with_cut(cuts: Cuts, way: Tensor, value: Tensor, gradient: Tensor, same: Tensor) -> Cuts:
    """Return the latest cuts and, as the last of them, the linearisation at the displacement ``way``.

    Where the function is not the ``same`` as before, ``[N]``, it takes the place of all.
    """
    latest = first_cut(way, value, gradient)
    # Where the function is not convex, a cut may be above it: it is lowered to what has been seen.
    lowered = cuts.offsets - (cuts.at(way) - value[:, None]).clamp(min=0)
    offsets = torch.where(same[:, None], lowered, latest.offsets)
    normals = torch.where(same[:, None, None], cuts.normals, latest.normals)
    usable = (offsets + normals.sum(dim=2)).isfinite()  # a gradient that overflowed is no cut
    offsets, normals = torch.where(usable, offsets, -1.0), torch.where(usable[:, :, None], normals, 0.0)
    old = Cuts(offsets, normals)
    return Cuts(*(torch.cat(pair, dim=1)[:, -MOST:] for pair in zip(old, latest, strict=True)))


def mixed(problem: Problem, cuts: Cuts, way: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mixture of the cuts that a shrinking step from ``way`` has to get beyond: offset and normal.

    A step beyond its hyperplane (``shrink_onto_hyperplane``) is beyond those of all cuts, as far as the box allows.
    """
    shares = _shares(problem, cuts, way, threshold)
    whole = shares.sum(dim=1, keepdim=True)
    latest = torch.zeros_like(shares)
    latest[:, -1] = 1
    shares = torch.where(whole > 0, shares / positive(whole), latest)
    return (shares * cuts.offsets).sum(dim=1), torch.bmm(shares[:, None], cuts.normals)[:, 0]


def _shares(problem: Problem, cuts: Cuts, way: Tensor, threshold: Tensor) -> Tensor:
    """Return the multipliers of the cuts, ``[N, M]``, in min ||z||_1 + ||z - way||^2 / (2 threshold) beyond all cuts.

    Damped Newton steps of the dual problem, which is concave and piecewise quadratic: multipliers give the point z,
    its excess over the cuts is their gradient, and the products of the cuts in its free coordinates are the curvature.
    """
    steepest = positive(cuts.normals.abs().amax(dim=(1, 2)))
    offsets, normals = cuts.offsets / steepest[:, None], cuts.normals / steepest[:, None, None]
    cut = threshold[:, None]
    low, high = problem.low, problem.high
    bounds = None if low is None or high is None else (low - problem.origin, high - problem.origin)

    def look(shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the point, its excess over the cuts, and the dual problem's value."""
        z = way - cut * torch.bmm(shares[:, None], normals)[:, 0]
        z = z - torch.maximum(torch.minimum(z, cut), -cut)
        z = z if bounds is None else torch.maximum(torch.minimum(z, bounds[1]), bounds[0])
        excess = offsets + _times(normals, z)
        height = z.abs().sum(dim=1) + ((z - way) ** 2).sum(dim=1) / (2 * threshold) + (shares * excess).sum(dim=1)
        return z, excess, height

    def curvature(z: Tensor) -> Tensor:
        free = z != 0
        if bounds is not None:
            free = free & (z > bounds[0]) & (z < bounds[1])
        rows = normals * free[:, None]
        return cut[:, :, None] * torch.bmm(rows, rows.transpose(1, 2))

    shares = torch.zeros_like(offsets)
    z, excess, height = look(shares)
    largest = threshold * positive(torch.bmm(normals, normals.transpose(1, 2)).diagonal(dim1=1, dim2=2).sum(dim=1))
    damping = DAMPING * largest
    for _ in range(ROUNDS):
        bend = curvature(z)
        bend = bend + damping[:, None, None] * _unit(bend)
        there = shares + _rise(excess, bend, shares)
        seen = look(there)
        gain = seen[2] >= height
        shares = torch.where(gain[:, None], there, shares)
        z, excess = (torch.where(gain[:, None], new, old) for new, old in zip(seen[:2], (z, excess), strict=True))
        height = torch.where(gain, seen[2], height)
        damping = torch.maximum(torch.where(gain, damping / EASING, damping * EASING), LEAST * largest)
    return shares


def _rise(slope: Tensor, bend: Tensor, shares: Tensor) -> Tensor:
    """Return the step s, ``[N, M]``, with slope.s - s.bend.s / 2 nearly greatest that keeps shares + s at least 0.

    Accelerated projected steps, as few kernels each as can be: there are many.
    """
    pace = 1 / bend.abs().sum(dim=2, keepdim=True).amax(dim=1, keepdim=True)
    push, keep, least = pace * slope[:, :, None], _unit(bend) - pace * bend, -shares[:, :, None]
    step = ahead = torch.zeros_like(push)
    for number in range(INNER):
        before, step = step, torch.maximum(torch.baddbmm(push, keep, ahead), least)
        ahead = torch.lerp(before, step, 1 + number / (number + 3))
    return step[:, :, 0]


def _unit(square: Tensor) -> Tensor:
    return torch.eye(square.shape[-1], dtype=square.dtype, device=square.device)


def _times(rows: Tensor, vector: Tensor) -> Tensor:
    return torch.bmm(rows, vector[:, :, None])[:, :, 0]
