"""In which order examples meet attacks and radii, so that few attacks decide many radii.

Down, the default: an example is attacked at the largest radius below the closest point known so far. If it resists
there, it is taken to resist at all smaller ones. If it is broken, it goes on at the largest radius below the new point.

Up, the strict way: an example is attacked at the smallest radius; while it resists, at the next. A point that breaks it
breaks it at all larger radii, too. Nothing is inferred.

At one radius the attacks come one after the other, cheap ones first. All examples that wait for the same attack are
taken together, each at its own radius, before any of them goes on: batches stay full.
"""

from typing import NamedTuple

import numpy as np

from dyart.evaluation.verdicts import Flags, Floats, Integers

DONE = -1


class Job(NamedTuple):
    """One attack, on all examples that wait for it, each at its own radius."""

    stage: int
    """Which attack of the battery."""
    exact: bool
    """On the user's own model in plain float32: what the attack found on its view of the model did not hold there."""
    rows: Integers
    levels: Integers
    """Which radius, for every row."""


class Walk:
    """Where every example stands. It knows numbers of attacks and radii, and nothing of models.

    Args:
        limits: the radii with what rounding may add, ascending, ``[R]``.
        correct: the examples to attack, ``[N]``.
        closest: distance of the closest point known of each, ``[N]``; inf: none.
        stages: how many attacks there are.
        up: go up instead of down.
    """

    def __init__(self, limits: Floats, correct: Flags, closest: Floats, stages: int, up: bool) -> None:
        """Put every example at its first radius."""
        self.limits, self.closest, self.stages, self.up = limits, closest.copy(), stages, up
        self.stage = np.zeros(len(correct), dtype=np.int64)
        self.exact = np.zeros(len(correct), dtype=bool)
        self.resisted = np.full(len(correct), DONE, dtype=np.int64)
        """The level at which an example resisted all attacks last, ``[N]``; -1: at none."""
        highest = self._unbroken(closest)
        first = np.minimum(highest, 0) if up else highest
        self.level = np.where(correct & (stages > 0), first, DONE)

    def jobs(self) -> list[Job]:
        """Return what is to be done next: the earliest attack that any example waits for; empty at the end."""
        waiting = self.level != DONE
        if not waiting.any():
            return []
        stage = int(self.stage[waiting].min())
        here = waiting & (self.stage == stage)
        jobs = []
        for exact in (False, True):
            rows = np.flatnonzero(here & (self.exact == exact))
            if len(rows):
                jobs.append(Job(stage, exact, rows, self.level[rows].copy()))
        return jobs

    def settle(self, job: Job, distance: Floats, again: Flags) -> None:
        """Take note of what a job found.

        Args:
            job: the job.
            distance: of the point found for every row; inf: none.
            again: rows to attack once more, on the user's own model.
        """
        rows, levels = job.rows, job.levels
        self.closest[rows] = np.minimum(self.closest[rows], distance)
        broken = distance <= self.limits[levels]
        resists = ~broken & ~again
        self.exact[rows] = again
        self.stage[rows] = np.where(broken, 0, self.stage[rows] + resists)
        through = self.stage[rows] == self.stages
        self.resisted[rows[through]] = levels[through]
        highest = self._unbroken(self.closest[rows])
        if self.up:
            beyond = np.where(highest > levels, levels + 1, DONE)
            level = np.where(broken, DONE, np.where(through, beyond, levels))
        else:
            level = np.where(broken, highest, np.where(through, DONE, levels))
        self.level[rows] = level
        self.stage[rows[through]] = 0

    def _unbroken(self, closest: Floats) -> Integers:
        """Return the largest level that lies below a point at each distance; -1: none."""
        return np.asarray((closest[:, None] > self.limits).sum(axis=1) - 1)
