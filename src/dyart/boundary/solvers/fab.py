"""The classic FAB search (Croce and Hein, 2020), with the paper's soft variant: the yardstick for the fast one.

Every iteration linearises the boundary against each rival class (K - 1 backward passes; one for the soft boundary),
takes the closest hyperplane, moves to a mixture of the projections of the point and of the input, and spends another
forward pass to test the new point. The mixture is capped at ``BIAS`` per example.
"""

import torch
from torch import Tensor

from dyart.boundary.norms import norm as norm_of
from dyart.boundary.norms import positive
from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick

BIAS = 0.1
OVERSHOOT = 1.05
PULL_BACK = 0.9


def fab_search(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    warm: bool = False,
) -> Best:
    """Search from ``start`` and return the closest point across the boundary.

    Cost: per step 2 forward and K - 1 backward passes (1 for the soft boundary), and one gradient
    evaluation at the end, at the points found.

    Args:
        problem: the batch.
        start: ``[N, D]``, inside the box.
        steps: iterations.
        target: not used; every rival is looked at.
        tick: called after every step.
        known: not used; the pieces against the other rivals are needed too.
        warm: not used.
    """
    origin, x, best = problem.origin, start, problem.nothing()
    for step in range(steps):
        value, gradient, least = problem.nearest_piece(x)
        if step == 0:
            # The smallest margin against a rival is the value: a start across the boundary counts.
            distance = torch.where(least < 0, problem.distance(x), torch.inf)
            best = best.closer(best._replace(distance=distance, points=x, value=least))
        from_x = problem.project(x, gradient, value)
        from_origin = problem.project(origin, gradient, value + (gradient * (origin - x)).sum(dim=1))
        near, far = norm_of(from_x, problem.norm), norm_of(from_origin, problem.norm)
        bias = (near / positive(near + far)).clamp(max=BIAS)[:, None]
        moved = (1 - bias) * (x + OVERSHOOT * from_x) + bias * (origin + OVERSHOOT * from_origin)
        usable = moved.isfinite().all(dim=1)
        x = problem.into_box(torch.where(usable[:, None], moved, origin))
        value = problem.value(x)
        across = value < 0
        distance = torch.where(across, problem.distance(x), torch.inf)
        best = best.closer(best._replace(distance=distance, points=x, value=value))
        x = torch.where(across[:, None], problem.into_box(origin + PULL_BACK * (x - origin)), x)
        tick()
    return problem.renew(best)
