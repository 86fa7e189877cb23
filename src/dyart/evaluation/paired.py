"""Differences between two sets of runs on the same examples: paired, so that what the examples share cancels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dyart.evaluation.intervals import QUANTILE


@dataclass(frozen=True)
class Difference:
    """A mean difference of accuracies, with a 95 % interval over the examples."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it in points, e.g. ``+1.2 [+0.4, +2.0]``."""
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def paired_difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Difference:
    """Return how much more often the second runs' flags hold than the first's.

    Flags ``[N]``, one array per run (seed); each example's value is its mean over the runs. The interval is over
    examples and says nothing of how much other seeds would differ. It is that of Agresti and Min (2005): as if two more
    examples were there, half of one in each of the four cases, so that it does not shrink to nothing where runs agree.

    Raises:
        ValueError: there are none, or their lengths differ.
    """
    if not first or not second or len({len(flags) for flags in [*first, *second]}) != 1:
        raise ValueError("paired differences need runs on the same examples, at least one on each side")
    gain = np.mean(second, axis=0) - np.mean(first, axis=0)
    count, total, squares = len(gain) + 2, float(gain.sum()), float((gain**2).sum()) + 1
    middle = total / count
    reach = QUANTILE * math.sqrt((squares / count - middle**2) / count)
    return Difference(float(gain.mean()), max(middle - reach, -1.0), min(middle + reach, 1.0))
