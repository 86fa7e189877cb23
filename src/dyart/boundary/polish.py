"""The final secant polish: slide every found point back along a path to its input, onto the boundary."""

from collections.abc import Callable

import torch
from torch import Tensor

from dyart.boundary.norms import Norm, positive
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.optimality import free_coordinates
from dyart.boundary.problem import Best, Problem

MAX_PASSES = 40
# Factors on the way to the hyperplane when settling. For p = 1 points along a whole edge are nearly as close as the
# closest one: the second says which.
OVERSHOOTS: dict[Norm, tuple[float, ...]] = {"linf": (1.001, 1.001), "l2": (1.001, 1.001), "l1": (1.001, 1.00001)}


def polish(problem: Problem, best: Best, input_value: Tensor, tol: float) -> Best:
    """Return points with -tol <= value < 0, where such a point lies on the path from the input to the found one.

    First the points settle: the input's projection onto the boundary as linearised at the point takes its place if
    it is across and closer. Then every point slides back along a path that shrinks the ball around the input:
    coordinates pinned at a bound stay there until the ball lets go of them, so that a first-order optimal point
    stays one.

    Cost: two gradient evaluations, forward passes until the slowest example is there, at most 40, and one gradient
    evaluation at the end.

    Args:
        problem: the batch.
        best: what the search found.
        input_value: oriented value at the inputs, ``[N]``, positive.
        tol: largest value left over.
    """
    for overshoot in OVERSHOOTS[problem.norm]:
        best = _settle(problem, best, overshoot)
    displacement = best.points - problem.origin
    reach, found = _reach(problem, best, displacement), best.found

    def point(share: Tensor) -> Tensor:
        shrunk = torch.minimum(displacement.abs(), share[:, None] * reach)
        return problem.into_box(problem.origin + displacement.sign() * shrunk)

    def value(share: Tensor) -> Tensor:
        return problem.value(point(share))

    # Where nothing was found, any bracket that is done will do: nothing is taken from it.
    at_zero, at_one = torch.where(found, input_value, 1.0), torch.where(found, best.value, -tol / 2)
    share = _secant(value, at_zero, at_one, tol, MAX_PASSES)
    x = torch.where(found[:, None], point(share), best.points)
    # Kept only if verified: across the boundary, and no farther than before.
    polished = problem.candidate(x, problem.evaluate(x))
    return polished.where(found & (polished.distance <= best.distance), best)


def _settle(problem: Problem, best: Best, overshoot: float) -> Best:
    """Return the input's projection onto the boundary as linearised at the point, where that is a better point."""
    offset = best.value - (best.gradient * (best.points - problem.origin)).sum(dim=1)
    offset = torch.where(best.found, overshoot * offset, 0.0)
    step = problem.project(problem.origin, best.gradient, offset)
    usable = step.isfinite().all(dim=1, keepdim=True)
    x = problem.into_box(problem.origin + torch.where(usable, step, 0.0))
    now = problem.evaluate(x)
    distance = torch.where(best.found & (now.value < 0), problem.distance(x), torch.inf)
    return best.closer(Best(distance, x, now.value, now.gradient, now.rival))


def _secant(function: Callable[[Tensor], Tensor], at_zero: Tensor, at_one: Tensor, tol: float, passes: int) -> Tensor:
    """Return the smallest argument in (0, 1] met with -tol <= function < 0, by a bracketed secant (Illinois).

    Every row starts with a positive value at 0 and a negative one at 1. All rows run together; those done stand still.
    """
    inner, outer, height = torch.zeros_like(at_zero), torch.ones_like(at_one), at_one
    # Heights above the goal -tol/2. An end that stays twice in a row counts half, or the secant would creep.
    above, below, last = at_zero + tol / 2, at_one + tol / 2, torch.zeros_like(at_zero)
    for _ in range(passes):
        unfinished = height < -tol
        if not bool(unfinished.any()):
            break
        share = outer - below * (outer - inner) / (below - above)
        # Rounding can put the secant outside its bracket; the middle is always inside.
        share = torch.where((share > inner) & (share < outer), share, (inner + outer) / 2)
        met = function(share)
        across, within = unfinished & (met < 0), unfinished & ~(met < 0)
        above = torch.where(within, met + tol / 2, torch.where(across & (last < 0), above / 2, above))
        below = torch.where(across, met + tol / 2, torch.where(within & (last > 0), below / 2, below))
        inner, outer = torch.where(within, share, inner), torch.where(across, share, outer)
        height = torch.where(across, met, height)
        last = within.to(last) - across.to(last)
    return outer


def _reach(problem: Problem, best: Best, displacement: Tensor) -> Tensor:
    """Return how far each coordinate would go at the full ball if the box did not stop it, ``[N, D]``."""
    if problem.norm == "linf":
        return best.distance[:, None].expand_as(displacement)
    moved = displacement.abs()
    ones = torch.ones_like(best.value)
    free = free_coordinates(displacement, best.points, best.gradient, ones, problem.low, problem.high)
    if problem.norm == "l1":
        # The steepest coordinates are the pinned ones: they went first, and come back last.
        return torch.where(free, moved, 1000 * moved)
    steepness = norm_of(best.gradient * free, "l2")
    pace = norm_of(displacement * free, "l2") / positive(steepness)
    return torch.where(free, moved, torch.maximum(moved, pace[:, None] * best.gradient.abs()))
