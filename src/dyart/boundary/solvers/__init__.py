"""Boundary searches, by name: ``solver(problem, start, steps, target=None, tick=...)`` returns the closest points."""

from typing import Protocol

from torch import Tensor

from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.solvers.apgd import apgd_search
from dyart.boundary.solvers.fab import fab_search
from dyart.boundary.solvers.fast import fast_search


class Solver(Protocol):
    """A boundary search on a whole batch."""

    def __call__(
        self,
        problem: Problem,
        start: Tensor,
        steps: int,
        target: Tensor | None = None,
        tick: Tick = no_tick,
        known: Evaluation | None = None,
        warm: bool = False,
    ) -> Best:
        """Search from ``start``, aiming at the class ``target`` if given, and return the closest points.

        ``known`` is the evaluation at ``start``, where it costs nothing any more; ``warm`` says that ``start`` is
        nearly right.
        """
        ...


SOLVERS: dict[str, Solver] = {"fast": fast_search, "fab": fab_search, "apgd": apgd_search}
AIMING = ("fast", "apgd")
"""Solvers that need to be told which rival to aim at; the others look at all of them."""
