"""Shares of negative speed by margin, and paired comparisons, against values worked out by hand."""

import math

import pytest
import torch

from dyart.dynamics.shares import Paired, margin_edges, paired, share, shares, sign_test

MARGIN = torch.tensor([0.01, 0.04, 0.05, 0.09, 0.10, 0.19, 0.30, math.nan])
SPEED = torch.tensor([-1.0, 2.0, -3.0, -1.0, 1.0, -0.5, 0.0, math.nan])
EVERY = torch.tensor([True] * 7 + [False])


def test_edges_are_half_a_radius_apart_and_end_open():
    assert margin_edges(0.1) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, math.inf])
    assert margin_edges(8 / 255)[1] == 4 / 255  # the paper's first interval


def test_shares_of_intervals_that_contain_their_lower_edge():
    found = shares(MARGIN, SPEED, EVERY, margin_edges(0.1))
    assert [(part.negative, part.count) for part in found] == [(1, 2), (2, 2), (0, 1), (1, 1), (0, 1)]
    assert found[0].value == 0.5
    assert found[0].interval == pytest.approx((0.0945, 0.9055), abs=1e-4)


def test_a_speed_of_zero_is_not_negative():
    assert share(SPEED, MARGIN > 0.25).negative == 0


def test_rows_left_out_do_not_count():
    part = share(SPEED, EVERY & (MARGIN < 0.1) & (torch.arange(8) > 0))
    assert (part.negative, part.count) == (2, 3)


def test_of_no_examples_there_is_no_share():
    part = share(SPEED, MARGIN > 1)
    assert math.isnan(part.value)
    assert part.interval == (0.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [(1, 6, 2 * (1 + 7) / 2**7), (0, 5, 2 / 2**5), (5, 5, 1.0), (0, 0, 1.0), (10, 2, 2 * (1 + 12 + 66) / 2**12)],
)
def test_exact_p_values(first, second, p):
    assert sign_test(first, second) == pytest.approx(p)
    assert sign_test(second, first) == pytest.approx(p)


def test_p_values_agree_with_scipy_for_many_examples():
    from scipy.stats import binomtest

    assert sign_test(1300, 1450) == pytest.approx(binomtest(1300, 2750).pvalue, rel=1e-6)
    assert sign_test(200, 2000) < 1e-200


def test_examples_and_batches_are_paired():
    first = torch.tensor([-1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    second = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
    rows = torch.tensor([True, True, True, True, True, False])
    found = paired(first, second, rows, torch.tensor([0, 0, 0, 1, 1, 1]))
    # Batch 0: two negative under either; batch 1: one under the first, none under the second.
    assert found == Paired(count=5, only_first=2, only_second=1, batches_first=1, batches_second=0)
    assert found.difference == pytest.approx(-0.2)
    assert found.p_value == 1.0
    assert found.p_value_by_batch == 1.0


def test_pairing_nothing_is_no_error():
    found = paired(SPEED, SPEED, torch.zeros(8, dtype=torch.bool), torch.zeros(8, dtype=torch.long))
    assert math.isnan(found.difference)
    assert found.p_value == 1.0
