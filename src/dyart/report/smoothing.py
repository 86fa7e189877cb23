"""Running means of noisy curves: the same ones in figures and on the page."""

import numpy as np

MOST = 9


def window_of(count: int, most: int = MOST) -> int:
    """Return how many neighbouring values of ``count`` are averaged: at most a fifth of them."""
    return min(most, max(count // 5, 1))


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Return centred means: of every value with half a window of neighbours on each side, fewer at the ends."""
    if window < 1:
        raise ValueError(f"the window of smoothing must be at least 1, got {window}")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    low, high = np.maximum(place - window // 2, 0), np.minimum(place + window // 2 + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))
