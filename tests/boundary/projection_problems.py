"""Random problems of projection onto a hyperplane in a box."""

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from dyart.boundary.projections import project_onto_hyperplane

INF = math.inf


class Problem(NamedTuple):
    """A batch of hyperplanes and boxes; the last two are None without a box."""

    origin: Tensor
    gradient: Tensor
    offset: Tensor
    lower: Tensor | None
    upper: Tensor | None

    def project(self, p, rounds=None):
        return project_onto_hyperplane(*self[:3], p, self.lower, self.upper, rounds)

    def value(self, displacement):
        """Return the affine function after the displacement, [N]."""
        return self.offset + (self.gradient * displacement).sum(dim=1)

    def farthest(self):
        """Return the displacement that moves every coordinate to its bound, towards the plane."""
        direction = -self.offset.sign()[:, None] * self.gradient.sign()
        down, up = self.lower - self.origin, self.upper - self.origin
        return torch.where(direction < 0, down, torch.where(direction > 0, up, 0.0))

    def without_idle_bounds(self):
        """Return the same problem with infinite bounds wherever they do not stop a way towards the plane."""
        direction = -self.offset.sign()[:, None] * self.gradient.sign()
        lower, upper = self.lower.expand_as(self.origin), self.upper.expand_as(self.origin)
        return self._replace(
            lower=torch.where(direction < 0, lower, -INF), upper=torch.where(direction > 0, upper, INF)
        )

    def to(self, dtype):
        return Problem(*(x if x is None else x.to(dtype) for x in self))

    def scaled(self, factors):
        """Return the same hyperplanes, their functions multiplied by one factor for each row or for all."""
        factors = torch.tensor(factors, dtype=self.gradient.dtype)
        return self._replace(gradient=self.gradient * factors[:, None], offset=self.offset * factors)


# A third of the finite rooms are zero: origins at a bound, and boxes of no width, are common.
finite_rooms = st.one_of(st.just(0.0), st.floats(1e-3, 2), st.floats(0.1, 1))
rooms = st.one_of(finite_rooms, st.just(INF))
slopes = st.one_of(st.just(0.0), st.floats(1e-2, 3), st.floats(-3, -1e-2), st.floats(0.5, 1), st.floats(-1, -0.5))
positions = st.floats(-1, 1)
signs = st.sampled_from([-1.0, 1.0])


def assemble(columns, sign, share):
    """Make a float64 problem of one row; the offset is a share of what the box can make up for."""
    origin, gradient, room_below, room_above = torch.tensor(columns, dtype=torch.float64).T[:, None]
    problem = Problem(origin, gradient, torch.tensor([sign]).double(), origin - room_below, origin + room_above)
    reach = (gradient * problem.farthest()).abs().sum().item()
    reach = reach if 0 < reach < INF else 4.0  # nothing can move, or the plane is in reach at any offset
    return problem._replace(offset=torch.tensor([sign * share * reach], dtype=torch.float64))


def problems_of(shares, *kinds_of_room):
    columns = [st.lists(st.tuples(positions, slopes, room, room), min_size=1, max_size=12) for room in kinds_of_room]
    return st.builds(assemble, st.one_of(columns), signs, shares)


near_shares = st.one_of(st.floats(0.01, 0.95), st.floats(0.5, 0.95), st.just(1.0))
far_shares = st.floats(1.05, 3)
problems = problems_of(st.one_of(st.just(0.0), near_shares, far_shares), finite_rooms, rooms)


def image_problem(rows=8, size=3072, share=0.3, seed=0):
    """Pixels of which half are 0, gaussian gradients, offsets of both signs at a share of the box's reach."""
    generator = torch.Generator().manual_seed(seed)
    origin = torch.rand(rows, size, generator=generator, dtype=torch.float64)
    origin[torch.rand(rows, size, generator=generator) < 0.5] = 0
    gradient = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(rows)[:rows]
    problem = Problem(origin, gradient, sign, torch.zeros(()).double(), torch.ones(()).double())
    reach = (gradient * problem.farthest()).abs().sum(dim=1)
    return problem._replace(offset=sign * share * reach)
