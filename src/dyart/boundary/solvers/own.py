"""Boundary searches of a user's own: called with what they take, and no point counts that was not verified here."""

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor

from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.solvers import AIMING, SOLVERS, Search, Solver
from dyart.boundary.validation import version_of

OPTIONAL = ("target", "tick", "known", "warm")


def name_of(solver: str | Solver) -> str:
    """Return what a solver is called in results: a function's own name, or that of an object's class."""
    if isinstance(solver, str):
        return solver
    inner = getattr(solver, "func", solver)  # of a functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")  # of a <lambda>; names of files have it


def check_solver(solver: object) -> None:
    """Raise unless ``solver`` is a name of ours or a function that can be called as one."""
    if isinstance(solver, str) and solver in SOLVERS:
        return
    if isinstance(solver, str) or not callable(solver):
        raise ValueError(
            f"solver must be one of {', '.join(map(repr, SOLVERS))}, or a function (problem, start, steps), on the "
            f"command line package.module:function; got {solver!r}"
        )
    name = name_of(solver)
    try:
        inspect.signature(solver).bind(None, None, None, **dict.fromkeys(_taken(solver)))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"solver must be a function (problem, start, steps) that may also take {', '.join(OPTIONAL)}; "
            f"{name} is not: {error}"
        ) from None
    if name in SOLVERS:
        raise ValueError(f"solver must have a name of its own in results, and {name!r} is one of ours: rename it")


def searching(solver: str | Solver) -> tuple[Search, bool]:
    """Return a solver as searches call it, and whether it is to be told which rival to aim at."""
    if isinstance(solver, str):
        return SOLVERS[solver], solver in AIMING
    return _verified(solver), "target" in _taken(solver)


def warn_of_lost(solver: Solver, lost: Tensor, stacklevel: int) -> None:
    """Warn of points that were returned as found and are not."""
    rows = lost.nonzero()[:, 0]
    if len(rows):
        warnings.warn(
            f"solver {name_of(solver)}: the points of {len(rows)} of {len(lost)} examples, the first of example "
            f"{int(rows[0])}, were not across the boundary when evaluated again inside the bounds, and do not count. "
            "Return points that problem.evaluate has found across, after problem.into_box: problem.candidate marks "
            "those that are not",
            stacklevel=stacklevel + 1,
        )


def _taken(solver: Solver) -> list[str]:
    """Return which of the optional arguments a solver takes."""
    parameters = inspect.signature(solver).parameters
    return [name for name in OPTIONAL if name in parameters]


def _verified(solver: Solver) -> Search:
    """Return a solver that is called with what it takes, and whose points are evaluated anew.

    Cost: one forward and one backward pass besides the solver's own.
    """
    name, taken = name_of(solver), _taken(solver)

    def search(
        problem: Problem,
        start: Tensor,
        steps: int,
        target: Tensor | None = None,
        tick: Tick = no_tick,
        known: Evaluation | None = None,
        warm: bool = False,
    ) -> Best:
        every: dict[str, Any] = {"target": target, "tick": tick, "known": known, "warm": warm}
        before = version_of(problem.origin), version_of(start)
        best = solver(problem, start, steps, **{word: every[word] for word in taken})
        if (version_of(problem.origin), version_of(start)) != before:
            raise ValueError(
                f"solver {name} changes the inputs or its start in place, and the same are needed again: write "
                "x = x + step, or begin with x = start.clone()"
            )
        _check(name, problem, best)
        for _ in range(0 if "tick" in taken else steps):
            tick()
        points = best.points.detach().to(problem.origin.dtype)
        usable = best.found & points.isfinite().all(dim=1)
        # In place of points that are no numbers the inputs, which are not across: they are lost.
        x = problem.into_box(torch.where(usable[:, None], points, problem.origin))
        distance = torch.where(best.found, problem.distance(x), torch.inf)
        return problem.renew(problem.nothing()._replace(distance=distance, points=x))

    return search


def _check(name: str, problem: Problem, best: object) -> None:
    """Raise unless a solver has returned a result of the problem's size."""
    if not isinstance(best, Best):
        raise TypeError(
            f"solver {name} must return a dyart.boundary.solvers.Best, it returned {type(best).__name__}: begin with "
            "problem.nothing(), and keep best.closer(problem.candidate(x, problem.evaluate(x)))"
        )
    wanted = {"points": problem.origin.shape, "distance": problem.labels.shape}
    for field, shape in wanted.items():
        if (got := getattr(best, field).shape) != shape:
            raise ValueError(f"solver {name} must return {field} of shape {tuple(shape)}, it returned {tuple(got)}")
