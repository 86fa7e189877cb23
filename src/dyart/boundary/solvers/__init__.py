"""Boundary searches: ours by name, and what one of your own gets and returns."""

from typing import Protocol

from torch import Tensor

from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.solvers.apgd import apgd_search
from dyart.boundary.solvers.fab import fab_search
from dyart.boundary.solvers.fast import fast_search

__all__ = ["Best", "Evaluation", "Problem", "Solver"]


class Solver(Protocol):
    """A boundary search of your own: a function ``(problem, start, steps)`` that returns the closest points it met.

    It gets a ``Problem``, N examples as flat rows of D numbers; ``start``, ``[N, D]``, the inputs or other points in
    the box; and ``steps``, how many gradient evaluations a search of ours would make. It returns a ``Best``. Only its
    ``points`` count, and its ``distance``, finite where a point was found: the points are then put into the box and
    evaluated anew, which costs one more gradient evaluation.

    A problem has:

    - ``origin``, the inputs; ``labels``; ``norm``; ``low`` and ``high``, the box, each ``[1, D]``, or None.
    - ``evaluate(x)``: value (negative across the boundary), gradient, and more. One forward and one backward pass.
    - ``value(x)``: one forward pass. ``linearise``, ``nearest_piece``: the boundary against single rivals.
    - ``project(x, gradient, value)``: the shortest step from x onto a hyperplane, inside the box.
    - ``into_box(x)``, as the model will see it; ``distance(x)``, from the inputs, ``[N]``.
    - ``nothing()``, the ``Best`` to begin with; ``candidate(x, now)``, an evaluated point as a ``Best``;
      ``best.closer(other)``, row by row.

    Its methods count the passes for ``cost``, and show the model the inputs' shape and dtype; passes of
    ``problem.model`` called directly are not counted. Change neither the problem nor ``start`` in place. Draw from a
    generator of your own: torch's global one is put back afterwards.

    If the signature has one of these names besides, it is passed as a keyword:

    - ``target``: the class to aim at, ``[N]``, or None. Rivals are compared beforehand then, restarts aim at one after
      the other, and steps are divided among several, as for ``"apgd"``. To aim, call ``evaluate(x, target, aim)``,
      first with an ``aim`` of True everywhere, then with ``now.aimed`` of the evaluation before. Without the name, all
      restarts but the first start at random.
    - ``known``: the ``Evaluation`` at ``start`` where it has been paid for, or None.
    - ``warm``: ``start`` is the caller's own, and nearly right.
    - ``tick``: to be called after every step, for the progress line.
    """

    def __call__(self, problem: Problem, start: Tensor, steps: int, /) -> Best:
        """Search from ``start``."""
        ...


class Search(Protocol):
    """A solver with all that it may take."""

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
        """Search from ``start``, aiming at the class ``target`` if given."""
        ...


SOLVERS: dict[str, Search] = {"fast": fast_search, "fab": fab_search, "apgd": apgd_search}
AIMING = ("fast", "apgd")
"""Solvers that need to be told which rival to aim at; the others look at all of them."""
