"""Examples that leave a search before its end, so that its passes are over fewer and fewer of them.

Rows of a batch do not depend on each other: the model is in eval mode (BatchNorm with its running statistics), and a
search draws nothing at random. So the points of the examples that stay are the ones of the whole batch's search, up to
the rounding of other batch sizes.

Shapes depend on values here: it needs host synchronisation, and can be neither compiled nor captured. With static
shapes an example could only be masked, which saves nothing: its passes would be computed all the same.
"""

from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Evaluation, Problem

State = TypeVar("State")

# Surely beyond: the boundary, as linearised at the current point, is so many times as far away as counts.
FAR = 2.0
# Settled: across the boundary, with a value of at most RESIDUAL there (the paper's condition (a)), and as linearised
# there the boundary is nowhere closer by more than this share of the distance.
SETTLED, RESIDUAL = 0.02, 0.1


class Retiring:
    """Who is left of a batch, and what was found for those who have left.

    An example leaves when it turns out to be outside its class (it has no margin), surely beyond ``limit``, or settled.

    Args:
        problem: of the whole batch.
        limit: margins from here on are of no interest.
        outside: examples known to be outside their class, ``[N]``; None: those that the first evaluation, at the
            inputs, shows to be.
    """

    def __init__(self, problem: Problem, limit: float, outside: Tensor | None = None) -> None:
        """Begin with all examples."""
        self.problem, self.limit, self.outside = problem, limit, outside
        self.found, self.rows = problem.nothing(), torch.arange(len(problem.origin), device=problem.origin.device)

    def __call__(self, x: Tensor, now: Evaluation, best: Best, state: State) -> tuple[Problem, State]:
        """Let examples leave after their evaluation at ``x``, and return problem and state of the others.

        Args:
            x: where the rows that are left were evaluated.
            now: the evaluation.
            best: the best points so far, this one included.
            state: of the search: its tensors have a row per example.
        """
        leaving = self._done(x, now, best)
        if not bool(leaving.any()):
            return self.problem, state
        self.found = self.found.insert(self.rows, best)
        stay = (~leaving).nonzero()[:, 0]
        rest = self.problem.part(stay, self.problem.outside)
        rest.forward, rest.backward = self.problem.forward, self.problem.backward
        self.problem, self.rows = rest, self.rows[stay]
        return rest, tree_map_only(Tensor, lambda tensor: tensor[stay], state)

    def all(self, best: Best) -> Best:
        """Return the result of the whole batch, with the best points of those who stayed to the end."""
        return self.found.insert(self.rows, best)

    def _done(self, x: Tensor, now: Evaluation, best: Best) -> Tensor:
        """Return which rows need no more steps."""
        problem, across = self.problem, now.value < 0
        distance = problem.distance(x)
        offset = now.followed + (now.gradient * (problem.origin - x)).sum(dim=1)
        nearest = norm_of(problem.project(problem.origin, now.gradient, offset), problem.norm)
        outside = (distance == 0) & (now.value <= 0) if self.outside is None else self.outside[self.rows]
        beyond = (nearest > FAR * self.limit) & (best.distance > self.limit)
        on_boundary = across & (now.value >= -RESIDUAL) & (distance <= best.distance)
        return outside | beyond | (on_boundary & (nearest >= (1 - SETTLED) * distance))
