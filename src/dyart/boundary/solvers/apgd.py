"""Auto-PGD (Croce and Hein, 2020) with a search for the radius: a second opinion, by another way than projections.

Every example has a ball of its own. Auto-PGD goes down the margin function inside it: gradient steps with momentum
that are halved at checkpoints when progress stalls, each time from the best point of the run. When a point across
the boundary is met, the ball shrinks to below it and the run begins anew; when a run ends without one, the ball
grows to the middle of what is left between the largest failure and the smallest success.
"""

from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.norms import Norm, dual_norm, positive, rows_of
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.problem import Best, Evaluation, Problem, Tick, no_tick
from dyart.boundary.projections import into_ball

NORMS: tuple[Norm, ...] = ("linf", "l2")
MOMENTUM = 0.75
# Share of the steps between two checkpoints that must go down, or the step is halved.
PROGRESS = 0.75
# The first radius, in linearised distances, and the factor by which a radius grows until a crossing is known.
FIRST, GROWTH = 1.5, 1.5
# A radius below a crossing, as a share of where the boundary seems to be on the way to it; and the most of it.
SHRINK, LARGEST = 0.95, 0.995
# First step of a run, in radii: from the input, and beside a place known to be good.
FAR, NEAR = 2.0, 0.25


class Run(NamedTuple):
    """Auto-PGD inside one ball, per example; every field ``[N]`` or ``[N, D]``."""

    age: Tensor
    """Steps taken in this run."""
    step: Tensor
    lowest: Tensor
    """The smallest value met, where, and the gradient there."""
    point: Tensor
    gradient: Tensor
    last: Tensor
    """Value at the step before."""
    falls: Tensor
    """Steps since the checkpoint that went down."""
    halved: Tensor
    """The step was halved at the last checkpoint."""
    mark: Tensor
    """The smallest value at the last checkpoint."""


def apgd_search(
    problem: Problem,
    start: Tensor,
    steps: int,
    target: Tensor | None = None,
    tick: Tick = no_tick,
    known: Evaluation | None = None,
    warm: bool = False,
) -> Best:
    """Search from ``start`` and return the closest point across the boundary; for ``"linf"`` and ``"l2"``.

    Cost: ``steps`` forward and backward passes in all. No host synchronisation.

    Args:
        problem: the batch.
        start: ``[N, D]``, inside the box.
        steps: gradient evaluations.
        target: aim at this class until another one is crossed to, ``[N]``.
        tick: called after every step.
        known: the evaluation at ``start``, if it is known already: it is not counted as a step.
        warm: ``start`` is nearly right: take small steps.
    """
    check_norm(problem.norm)
    length = max(6, steps // 8)
    is_checkpoint, interval = _checkpoints(length, problem.origin)
    x, before, best = start, start, problem.nothing()
    aim = torch.ones_like(problem.labels, dtype=torch.bool)
    inner, outer = torch.zeros_like(best.distance), best.distance
    radius, run = inner, _new_run(problem.origin, inner)
    for step in range(steps + (known is not None)):
        if step == 0 and known is not None:
            now = known
        else:
            now = problem.evaluate(x, target, aim)
            tick()
        aim, across = now.aimed, now.value < 0
        best = best.closer(problem.candidate(x, now))
        if step == 0:
            radius = _first_radius(problem, x, now)
            run = _new_run(x, (NEAR if warm else FAR) * radius)
        run = _record(run, x, now)
        x, before, gradient, run = _checkpoint(run, x, before, now.gradient, is_checkpoint, interval)
        ended = ~across & (run.age >= length)
        outer = torch.where(across, torch.minimum(outer, problem.distance(x)), outer)
        inner = torch.where(ended, radius, inner)
        inner = torch.where(inner < outer, inner, outer / 2)
        radius = torch.where(across, _below(problem, x, now, inner, outer), radius)
        radius = torch.where(ended, torch.where(outer.isfinite(), (inner + outer) / 2, GROWTH * radius), radius)
        new = across | ended
        x = torch.where(ended[:, None], run.point, x)
        before = torch.where(new[:, None], x, before)
        gradient = torch.where(ended[:, None], run.gradient, gradient)
        run = Run(*rows_of(new, _new_run(x, NEAR * radius), run))
        x, before = _move(problem, x, before, gradient, run.step, radius), x
    return best


def check_norm(norm: str) -> None:
    """Raise for a norm that the search does not know."""
    if norm not in NORMS:
        raise ValueError(
            f"solver='apgd' knows the norms {', '.join(map(repr, NORMS))}, got {norm!r}: use solver='fast' or 'fab'"
        )


def _move(problem: Problem, x: Tensor, before: Tensor, gradient: Tensor, step: Tensor, radius: Tensor) -> Tensor:
    """Return the next point: a gradient step with momentum, inside ball and box."""

    def inside(z: Tensor) -> Tensor:
        return problem.into_box(problem.origin + into_ball(z - problem.origin, radius, problem.norm))

    if problem.norm == "linf":
        direction = gradient.sign()
    else:
        slope = norm_of(gradient, "l2")[:, None]
        direction = gradient / positive(slope)
    direction = torch.where(gradient.isfinite().all(dim=1, keepdim=True), direction, 0.0)
    aimed = inside(x - step[:, None] * direction)
    return inside(x + MOMENTUM * (aimed - x) + (1 - MOMENTUM) * (x - before))


def _first_radius(problem: Problem, x: Tensor, now: Evaluation) -> Tensor:
    """Return a radius that probably holds a crossing: a little beyond the linearised boundary."""
    slope = dual_norm(now.gradient, problem.norm)
    usable = (slope > 0) & slope.isfinite()
    ahead = torch.where(usable, now.followed.clamp(min=0) / torch.where(usable, slope, 1.0), 1.0)
    return FIRST * (problem.distance(x) + ahead)


def _below(problem: Problem, x: Tensor, now: Evaluation, inner: Tensor, outer: Tensor) -> Tensor:
    """Return the radius to try after a crossing at ``x``."""
    fall = -(now.gradient * (x - problem.origin)).sum(dim=1)
    # Where the boundary lies on the way from the input, linearised at the point; at most half way back.
    share = torch.where(fall > 0, 1 + now.value / positive(fall), 1.0).clamp(0.5, 1.0)
    wished = torch.maximum(SHRINK * share * problem.distance(x), (inner + outer) / 2)
    return torch.minimum(wished, LARGEST * outer)


def _new_run(x: Tensor, step: Tensor) -> Run:
    none = torch.full_like(step, torch.inf)
    zero = torch.zeros_like(step)
    return Run(zero, step, none, x, torch.zeros_like(x), none, zero, torch.ones_like(step, dtype=torch.bool), none)


def _record(run: Run, x: Tensor, now: Evaluation) -> Run:
    """Return the run with one more evaluated point."""
    lower = now.followed < run.lowest
    return run._replace(
        age=run.age + 1,
        lowest=torch.where(lower, now.followed, run.lowest),
        point=torch.where(lower[:, None], x, run.point),
        gradient=torch.where(lower[:, None], now.gradient, run.gradient),
        last=now.followed,
        falls=run.falls + (now.followed < run.last),
    )


def _checkpoint(
    run: Run, x: Tensor, before: Tensor, gradient: Tensor, is_checkpoint: Tensor, interval: Tensor
) -> tuple[Tensor, Tensor, Tensor, Run]:
    """At a checkpoint without enough progress: halve the step and go back to the best point of the run."""
    age = run.age.long().clamp(max=len(interval) - 1)
    due = is_checkpoint[age]
    stuck = (run.falls < PROGRESS * interval[age]) | (~run.halved & (run.lowest >= run.mark))
    halve = due & stuck
    x, before, gradient = (
        torch.where(halve[:, None], kept, old)
        for kept, old in ((run.point, x), (run.point, before), (run.gradient, gradient))
    )
    run = run._replace(
        step=torch.where(halve, run.step / 2, run.step),
        falls=torch.where(due, 0.0, run.falls),
        halved=torch.where(due, halve, run.halved),
        mark=torch.where(due, run.lowest, run.mark),
    )
    return x, before, gradient, run


def _checkpoints(length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return, by age in a run, whether it is a checkpoint and how many steps lie behind since the one before."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    ages = sorted({ceil(share * length) for share in shares[1:]})
    due = torch.zeros(length + 2, dtype=torch.bool, device=like.device)
    interval = like.new_ones(length + 2)
    for last, age in zip([0, *ages], ages, strict=False):
        if age <= length:
            due[age], interval[age] = True, age - last
    return due, interval
