"""Draws are a function of (key, index) alone, and look random along every coordinate."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dyart.data import draws

MASK = 2**64 - 1
STREAM = draws.key(3, "test", 7)
INDEX = torch.arange(40_000)


# The same numbers, in Python's integers


def split_mix(state: int) -> int:
    """SplitMix64's output function (Steele, Lea and Flood 2014)."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def counted(state: int, counter: int) -> int:
    return split_mix(state + (counter + 1) * 0x9E3779B97F4A7C15)


def reference_key(seed: int, purpose: str, *moment: int) -> int:
    state = seed & MASK
    for part in [*purpose.encode(), 256, *moment]:
        state = counted(state, part)
    return state if state < 2**63 else state - 2**64


def test_the_generator_is_split_mix():
    # The published first outputs for the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [counted(1234567, i) for i in range(4)] == published
    high = torch.tensor([value >> 40 for value in published]).float() / 2**24
    assert torch.equal(draws.uniform(1234567, torch.arange(4)), high)


@pytest.mark.parametrize(
    "parts",
    [(0, "order", 0), (1, "crop-y", 199), (-5, "ä", 2, 3), (2**63, "", 0), (2**70 + 9, "step", 10**12), (7, "x", -1)],
)
def test_keys_are_those_of_plain_integers(parts):
    assert draws.key(*parts) == reference_key(*parts)
    assert -(2**63) <= draws.key(*parts) < 2**63


@pytest.mark.parametrize("stream", [0, -1, 2**63 - 1, -(2**63), STREAM])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_draws_are_those_of_plain_integers(stream, shape):
    index = torch.tensor([0, 5, 123_456_789, 2**40])
    bits = [counted(stream, int(i)) for i in index]
    if shape:
        bits = [counted(row, place) for row in bits for place in range(math.prod(shape))]
    wanted = torch.tensor([b >> 40 for b in bits], dtype=torch.float64).reshape(4, *shape) / 2**24
    got = draws.uniform(stream, index, shape)
    assert got.dtype == torch.float32
    assert torch.equal(got.double(), wanted)
    count = 10**9 + 7
    exact = [b * count >> 64 for b in bits]
    assert draws.integers(stream, index, count, shape).flatten().tolist() == exact
    normal = stats.norm.ppf((wanted.numpy() * 2**24 + 0.5) / 2**24)
    np.testing.assert_allclose(draws.normal(stream, index, shape).numpy(), normal, rtol=1e-6, atol=1e-9)


KINDS = {
    "uniform": lambda stream, index: draws.uniform(stream, index, (3,)),
    "normal": lambda stream, index: draws.normal(stream, index, (3,)),
    "integers": lambda stream, index: draws.integers(stream, index, 50, (3,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_draws_the_same_in_any_batch_and_order(kind):
    draw = KINDS[kind]
    index = torch.arange(1000)
    all_at_once = draw(STREAM, index)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draw(STREAM, order), all_at_once[order])
    assert torch.equal(torch.cat([draw(STREAM, part) for part in index.split(7)]), all_at_once)
    assert torch.equal(draw(STREAM, torch.tensor([5, 5, 5])), all_at_once[[5, 5, 5]])
    assert torch.equal(draw(torch.tensor(STREAM), index), all_at_once)
    assert draw(STREAM, index[:0]).shape == (0, 3)


def test_a_longer_shape_begins_with_the_shorter_one():
    long, short = draws.uniform(STREAM, INDEX[:10], (8, 4)), draws.uniform(STREAM, INDEX[:10], (5,))
    assert torch.equal(long.flatten(1)[:, :5], short)


def test_the_global_generator_is_neither_used_nor_changed():
    state = torch.random.get_rng_state()
    first = [draw(STREAM, INDEX[:9]) for draw in KINDS.values()] + [draws.permutation(STREAM, 9)]
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        second = [draw(STREAM, INDEX[:9]) for draw in KINDS.values()] + [draws.permutation(STREAM, 9)]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# Keys


def test_purpose_and_moments_do_not_run_into_each_other():
    assert draws.key(0, "ab") != draws.key(0, "a", ord("b"))
    assert draws.key(0, "ab", 1) != draws.key(0, "a", ord("b"), 1)
    assert draws.key(0, "a") != draws.key(0, "a", 256)
    assert draws.key(0, "", 97) != draws.key(0, "a")


def test_no_two_of_many_keys_are_the_same():
    purposes = ("", "a", "b", "ab", "ba", "aa", "crop-x", "crop-y", "step")
    moments = [(), *((m,) for m in (*range(-2, 300), 10**6)), *itertools.product(range(95, 100), range(3))]
    keys = [draws.key(seed, purpose, *m) for seed in range(-1, 4) for purpose in purposes for m in moments]
    assert len(set(keys)) == len(keys)


# They look random. Bounds are about five standard deviations; nothing here is drawn anew from run to run.


def correlation(one, other):
    return np.corrcoef(one.flatten().double(), other.flatten().double())[0, 1]


PLANES = {
    "uniform over examples": lambda: draws.uniform(STREAM, INDEX),
    "uniform over places": lambda: draws.uniform(STREAM, INDEX[:10], (4000,)).flatten(),
    "uniform over keys": lambda: torch.cat([draws.uniform(draws.key(0, "k", m), INDEX[:8]) for m in range(5000)]),
    "uniform over small raw keys": lambda: torch.cat([draws.uniform(raw, INDEX[:8]) for raw in range(5000)]),
}


@pytest.mark.parametrize("plane", PLANES)
def test_uniform_draws_are_uniform(plane):
    values = PLANES[plane]().double()
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 1 / 2) < 5 / math.sqrt(12 * len(values))
    assert abs(values.var() - 1 / 12) < 5 / math.sqrt(180 * len(values))
    assert stats.chisquare(np.histogram(values, 64, (0, 1))[0]).pvalue > 1e-5
    ones = torch.stack([(values * 2**24).long() >> bit & 1 for bit in range(24)]).double().mean(dim=1)
    assert (ones - 0.5).abs().max() < 5 * 0.5 / math.sqrt(len(values)), "some bit is not balanced"
    neighbours = np.histogram2d(values[:-1:2], values[1::2], 16, ((0, 1), (0, 1)))[0]
    assert stats.chisquare(neighbours.flatten()).pvalue > 1e-5


def test_neighbours_have_nothing_to_do_with_each_other():
    values = draws.uniform(STREAM, torch.arange(200), (200,))
    most = 5 / math.sqrt(values.numel())
    assert abs(correlation(values[1:], values[:-1])) < most, "index"
    assert abs(correlation(values[:, 1:], values[:, :-1])) < most, "place"
    assert abs(correlation(values[1:, 1:], values[:-1, :-1])) < most, "both"
    assert abs(correlation(values, values.T)) < most, "index for place"
    for other in (STREAM + 1, STREAM ^ 1, draws.key(3, "test", 8), draws.key(4, "test", 7)):
        assert abs(correlation(values, draws.uniform(other, torch.arange(200), (200,)))) < most, "key"
    bare = draws.uniform(STREAM, torch.arange(200))
    assert abs(correlation(bare, values[:, 0])) < 5 / math.sqrt(200)


def test_normal_draws_are_normal():
    values = draws.normal(STREAM, INDEX[:400], (100,))
    flat = values.flatten().double().numpy()
    root = math.sqrt(len(flat))
    moments = [(flat**power).mean() for power in (1, 2, 3, 4)]
    for got, wanted, spread in zip(moments, (0, 1, 0, 3), (1, math.sqrt(2), math.sqrt(15), math.sqrt(96)), strict=True):
        assert abs(got - wanted) < 5 * spread / root
    assert stats.kstest(flat, "norm").pvalue > 1e-4
    assert values.dtype == torch.float32
    assert values.isfinite().all()


def stream_that_gives(bits: int) -> int:
    """Return the key with which example 0 gets these 64 bits: the generator, backwards."""
    z = bits ^ (bits >> 31) ^ (bits >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    z = z ^ (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    z = z ^ (z >> 30) ^ (z >> 60)
    stream = (z - 0x9E3779B97F4A7C15) & MASK
    assert counted(stream, 0) == bits
    return stream if stream < 2**63 else stream - 2**64


def test_the_extreme_draws_stay_in_range():
    lowest, highest = stream_that_gives(0), stream_that_gives(MASK)
    first = torch.zeros(1, dtype=torch.int64)
    assert draws.uniform(lowest, first) == 0
    assert 1 - 2**-23 < draws.uniform(highest, first) < 1
    low, high = draws.normal(lowest, first), draws.normal(highest, first)
    assert low == -high
    assert 5 < high < 6
    for count in (1, 2, 3, 10**6, 2**31, 10**9 + 7):
        assert draws.integers(lowest, first, count) == 0
        assert draws.integers(highest, first, count) == count - 1


@pytest.mark.parametrize("count", [1, 2, 3, 9, 32])
def test_integers_take_every_value_equally_often(count):
    values = draws.integers(STREAM, INDEX, count)
    assert values.dtype == torch.int64
    seen = torch.bincount(values, minlength=count)
    assert len(seen) == count
    assert count == 1 or stats.chisquare(seen.numpy()).pvalue > 1e-5


def test_integers_reach_every_example_of_a_pool_beyond_the_24_bits_of_a_float():
    # 16 values per step of a 24-bit draw: all remainders must occur, and equally often.
    count = 2**28
    values = draws.integers(STREAM, INDEX, count)
    assert values.max() < count
    assert values.min() >= 0
    assert stats.chisquare(torch.bincount(values % 16, minlength=16).numpy()).pvalue > 1e-5
    # A million examples, each equally often: 2^24 is no multiple of it.
    values = draws.integers(STREAM, torch.arange(400_000), 3 * 2**22)
    assert stats.chisquare(torch.bincount(values % 3, minlength=3).numpy()).pvalue > 1e-5


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_permutations_are_permutations(count):
    order = draws.permutation(STREAM, count)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(count))


def test_permutations_differ_by_key_and_are_uniform():
    assert not torch.equal(draws.permutation(STREAM, 1000), draws.permutation(STREAM ^ 1, 1000))
    assert torch.equal(draws.permutation(STREAM, 1000), draws.permutation(STREAM, 1000))
    orders = [tuple(draws.permutation(draws.key(0, "order", epoch), 4).tolist()) for epoch in range(6000)]
    assert len(set(orders)) == 24
    assert stats.chisquare([orders.count(order) for order in set(orders)]).pvalue > 1e-5
