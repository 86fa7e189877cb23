"""The shares of several processes are the batches of one: images, labels, mixing and placement alike."""

import numpy as np
import pytest
import torch

from dyart.data.augment import Augment
from dyart.data.auxiliary import Auxiliary
from dyart.data.loader import Batch, Loader
from dyart.data.ranks import Shard, Team, shard_of
from dyart.data.sets import Split

BATCH, EPOCH = 12, 2
RANDOM = np.random.default_rng(0)


def split(count: int) -> Split:
    return Split(RANDOM.integers(0, 256, (count, 1, 6, 6), dtype=np.uint8), np.arange(count) % 3)


REAL, POOL = split(40), split(17)
PLAIN = {"augment": Augment(crop=1, flip=True, cutout=2)}
MIXED = {"augment": Augment(crop=1, flip=True, cutmix=0.8), "smoothing": 0.1}
EXTRA = {"auxiliary": Auxiliary(POOL, 0.4)}


def batches(rank: int, count: int, parts: int, **settings) -> list[Batch]:
    loader = Loader(REAL, np.arange(40), BATCH, 7, classes=3, team=Team(rank, count), parts=parts, **settings)
    return list(loader.epoch(EPOCH, start=1))


def joined(shares: list[Batch], name: str, parts: int) -> torch.Tensor:
    """Put one field of all processes' batches together, part by part."""
    chunks = [getattr(share, name).chunk(parts) for share in shares]
    return torch.cat([chunk[part] for part in range(parts) for chunk in chunks])


@pytest.mark.parametrize("settings", [PLAIN, MIXED, {**PLAIN, **EXTRA}, {**MIXED, **EXTRA}, {"residency": "stream"}])
@pytest.mark.parametrize(("count", "parts"), [(2, 1), (3, 1), (5, 1), (12, 1), (2, 3), (4, 3)])
def test_shares_put_together_are_the_whole_batch(count, parts, settings):
    whole = batches(0, 1, parts, **settings)
    shares = zip(*(batches(rank, count, parts, **settings) for rank in range(count)), strict=True)
    for batch, pieces in zip(whole, shares, strict=True):
        assert batch.shard is None
        assert [piece.shard for piece in pieces] == [shard_of(BATCH // parts, rank, count) for rank in range(count)]
        for name in ("inputs", "labels", "index", "targets", "placement"):
            if getattr(batch, name) is not None:
                assert torch.equal(joined(list(pieces), name, parts), getattr(batch, name)), name
        assert all(piece.key == batch.key for piece in pieces)


@pytest.mark.parametrize("total", [1, 7, 12, 1024])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_shards_cover_all_rows_once_and_evenly(total, count):
    shards = [shard_of(total, rank, count) for rank in range(count)]
    assert [row for shard in shards for row in range(total)[shard.rows]] == list(range(total))
    assert max(shard.count for shard in shards) - min(shard.count for shard in shards) <= 1
    assert sum(shard.share for shard in shards) == pytest.approx(1)


def test_one_process_has_no_shard():
    assert shard_of(10, 0, 1) is None
    assert Shard(2, 3, 10).rows == slice(2, 5)


def test_a_process_without_an_example_is_refused():
    with pytest.raises(ValueError, match="4 processes share every 3 examples"):
        batches(0, 4, 4)
