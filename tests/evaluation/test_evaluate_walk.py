"""The order of attacks and radii: what is decided, what is inferred, and what is tried, with attacks made up here."""

import numpy as np
import pytest

from dyart.evaluation.walk import Walk

LIMITS = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0])


def fight(breaks, known, up, unstable=()):
    """Walk with attacks that find a point at ``breaks[attack][example]`` wherever that is within the radius.

    Returns the walk and a list of all that was tried: (attack, level, example, exact).
    """
    breaks = np.asarray(breaks, dtype=float)
    walk = Walk(LIMITS, np.ones(breaks.shape[1], dtype=bool), np.asarray(known, dtype=float), len(breaks), up)
    tried = []
    for _ in range(1000):
        jobs = walk.jobs()
        if not jobs:
            return walk, tried
        assert len({job.stage for job in jobs}) == 1
        for job in jobs:
            tried += [(job.stage, int(k), int(row), job.exact) for row, k in zip(job.rows, job.levels, strict=True)]
            distance = breaks[job.stage][job.rows]
            distance = np.where(distance <= LIMITS[job.levels], distance, np.inf)
            again = np.isin(job.rows, unstable) & ~np.isfinite(distance) & (not job.exact)
            walk.settle(job, distance, again)
    raise AssertionError("the walk does not end")


def test_down_attacks_once_below_the_known_point_when_nothing_is_found():
    _, tried = fight([[np.inf] * 4, [np.inf] * 4], [0.5, 1.5, 3.5, np.inf], up=False)
    assert sorted(tried) == [(s, level, row, False) for s in (0, 1) for level, row in ((0, 1), (2, 2), (4, 3))]


def test_down_goes_on_below_a_new_point_and_begins_with_the_first_attack():
    walk, tried = fight([[np.inf], [1.5]], [np.inf], up=False)
    assert tried == [(0, 4, 0, False), (1, 4, 0, False), (0, 0, 0, False), (1, 0, 0, False)]
    assert walk.resisted.tolist() == [0]
    assert walk.closest.tolist() == [1.5]


def test_down_ends_where_everything_is_broken():
    walk, tried = fight([[0.5]], [np.inf], up=False)
    assert tried == [(0, 4, 0, False)]
    assert walk.resisted.tolist() == [-1]


def test_up_tries_every_radius_until_one_breaks():
    walk, tried = fight([[np.inf], [3.0]], [np.inf], up=True)
    assert tried == [(s, level, 0, False) for level in (0, 1, 2) for s in (0, 1)]
    assert walk.resisted.tolist() == [1]


def test_up_stops_where_a_known_point_lies():
    _, tried = fight([[np.inf]], [2.5], up=True)
    assert tried == [(0, 0, 0, False), (0, 1, 0, False)]


def test_a_point_exactly_at_the_limit_counts():
    assert fight([[np.inf]], [3.0], up=False)[1] == [(0, 1, 0, False)]


@pytest.mark.parametrize("up", [False, True])
def test_what_did_not_hold_on_the_model_is_tried_once_more_on_it(up):
    _, tried = fight([[np.inf, np.inf]], [1.5, 1.5], up, unstable=[1])
    assert tried == [(0, 0, 0, False), (0, 0, 1, False), (0, 0, 1, True)]


@pytest.mark.parametrize("up", [False, True])
def test_both_ways_agree_with_attacks_that_depend_on_the_radius_alone(up):
    generator = np.random.default_rng(0)
    breaks = generator.uniform(0, 7, (3, 200))
    known = generator.uniform(0, 9, 200)
    walk, tried = fight(breaks, known, up)
    truth = np.minimum(breaks.min(axis=0), known)
    assert np.array_equal(walk.closest[:, None] <= LIMITS, truth[:, None] <= LIMITS)
    assert len(tried) == len(set(tried)), "nothing is tried twice"
    full = {(level, row) for stage, level, row, _ in tried if stage == 2}
    for row, level in zip(*np.nonzero(truth[:, None] > LIMITS), strict=True):
        highest = level == (truth[row] > LIMITS).sum() - 1
        assert ((level, row) in full) or (not up and not highest), "resisting is tried in full, or inferred from above"


def test_examples_that_are_wrong_are_left_alone():
    walk = Walk(LIMITS, np.asarray([False, True]), np.full(2, np.inf), 1, up=False)
    assert [job.rows.tolist() for job in walk.jobs()] == [[1]]


def test_no_attacks_are_no_jobs():
    assert Walk(LIMITS, np.ones(2, dtype=bool), np.full(2, np.inf), 0, up=False).jobs() == []
