"""Differences between two sets of runs on the same examples: paired, so that what the examples share cancels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Of the standard normal distribution: 95 %.
QUANTILE = 1.96


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
    examples and says nothing of how much other seeds would differ.

    Raises:
        ValueError: there are none, or their lengths differ.
    """
    if not first or not second or len({len(flags) for flags in [*first, *second]}) != 1:
        raise ValueError("paired differences need runs on the same examples, at least one on each side")
    gain = np.mean(second, axis=0) - np.mean(first, axis=0)
    mean = float(gain.mean())
    reach = QUANTILE * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return Difference(mean, mean - reach, mean + reach)
