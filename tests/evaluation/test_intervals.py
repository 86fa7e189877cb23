"""Wilson's interval of a share."""

import math

import pytest

from dyart.evaluation.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    # By hand: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with z = 1.96.
    [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (29, 100, 0.2101, 0.3854)],
)
def test_values_worked_out_by_hand(successes, count, low, high):
    assert wilson(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_of_many_examples_it_is_the_usual_plus_minus():
    low, high = wilson(30_000, 100_000)
    reach = 1.96 * math.sqrt(0.3 * 0.7 / 100_000)
    assert (low, high) == pytest.approx((0.3 - reach, 0.3 + reach), abs=1e-5)


def test_it_covers_the_truth_as_often_as_it_says():
    share, count = 0.15, 40
    ways = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
    covered = sum(ways[k] for k in range(count + 1) if wilson(k, count)[0] <= share <= wilson(k, count)[1])
    assert 0.93 < covered < 0.99


def test_of_nothing_nothing_is_known():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "count"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes, count):
    with pytest.raises(ValueError, match="successes must"):
        wilson(successes, count)
