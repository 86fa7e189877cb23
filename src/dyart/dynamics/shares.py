"""The share of examples that the boundary moves towards, by margin; and whether two methods differ in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dyart.evaluation.intervals import wilson


@dataclass(frozen=True)
class Share:
    """How many of some examples have a negative speed."""

    negative: int
    count: int

    @property
    def value(self) -> float:
        """The share; nan of no examples."""
        return self.negative / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, over independent examples."""
        return wilson(self.negative, self.count)


@dataclass(frozen=True)
class Paired:
    """Two methods on the same examples: where one has a negative speed and the other has not."""

    count: int
    only_first: int
    only_second: int
    batches_first: int
    """Batches in which the first has more negative speeds than the second."""
    batches_second: int

    @property
    def difference(self) -> float:
        """How much larger the second's share is than the first's."""
        return (self.only_second - self.only_first) / self.count if self.count else math.nan

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test: that examples disagree so unevenly if the methods are alike."""
        return sign_test(self.only_first, self.only_second)

    @property
    def p_value_by_batch(self) -> float:
        """Of the sign test over batches. Examples of a batch share one update, so this is the careful one."""
        return sign_test(self.batches_first, self.batches_second)


def share(speed: Tensor, rows: Tensor) -> Share:
    """Return the share of negative speeds among the rows of a mask."""
    return Share(int((speed[rows] < 0).sum()), int(rows.sum()))


def margin_edges(radius: float, largest: float = 2.0) -> list[float]:
    """Return the edges of margin intervals, the paper's: half a radius each, up to twice the radius, then the rest."""
    return [radius * half / 2 for half in range(round(2 * largest) + 1)] + [math.inf]


def between(margin: Tensor, low: float, high: float) -> Tensor:
    """Return the mask of the half-open interval from ``low`` to below ``high``."""
    return (margin >= low) & (margin < high)


def shares(margin: Tensor, speed: Tensor, rows: Tensor, edges: Sequence[float]) -> list[Share]:
    """Return the share of every interval of margins, among the rows of a mask."""
    pairs = pairwise(edges)
    return [share(speed, rows & between(margin, low, high)) for low, high in pairs]


def paired(first: Tensor, second: Tensor, rows: Tensor, batch: Tensor) -> Paired:
    """Compare the signs of two methods' speeds on the rows of a mask; ``batch`` numbers the batch of every example."""
    one, two = (first < 0) & rows, (second < 0) & rows
    size = int(batch.max()) + 1 if len(batch) else 0
    more = torch.bincount(batch[one], minlength=size) - torch.bincount(batch[two], minlength=size)
    return Paired(
        count=int(rows.sum()),
        only_first=int((one & ~two).sum()),
        only_second=int((two & ~one).sum()),
        batches_first=int((more > 0).sum()),
        batches_second=int((more < 0).sum()),
    )


def sign_test(first: int, second: int) -> float:
    """Return the two-sided p-value of so many wins on either side if both are equally likely: exact, ties left out."""
    count, ways, tail = first + second, 1, 0
    for wins in range(min(first, second) + 1):
        tail += ways  # the number of ways to draw so many wins
        ways = ways * (count - wins) // (wins + 1)
    return float(min(1.0, 2 * tail / 2**count))
