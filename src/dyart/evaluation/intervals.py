"""How far a share of a sample may be from the share of the population it was drawn from."""

import math

# Of the standard normal distribution: 95 %.
QUANTILE = 1.959963984540054


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion; (0, 1) without trials.

    It stays inside [0, 1] and says something also where all or none succeed, unlike the normal approximation. It is
    about the draw of the examples, not about the strength of an attack or the seed of a training.

    Raises:
        ValueError: there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie in 0..{trials} (the trials), got {successes}")
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, QUANTILE**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = QUANTILE / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    # At the ends the formula is exact but for rounding.
    low = 0.0 if successes == 0 else max(middle - half, 0.0)
    high = 1.0 if successes == trials else min(middle + half, 1.0)
    return low, high
