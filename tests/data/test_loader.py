"""Batches: every index once per epoch, the same resident or streamed, from any step on, auxiliary examples mixed in."""

import gc
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from dyart.data import load
from dyart.data import loader as loading
from dyart.data.augment import Augment
from dyart.data.auxiliary import Auxiliary
from dyart.data.loader import Loader, to_unit
from dyart.data.sets import Split

COUNT, CLASSES = 103, 5


def split(count=COUNT, shape=(3, 6, 6), seed=0):
    random = np.random.RandomState(seed)
    return Split(random.randint(0, 256, (count, *shape), dtype=np.uint8), np.arange(count, dtype=np.int64) % CLASSES)


TRAIN, POOL = split(), split(40, seed=1)
ALL = np.arange(COUNT)
CHANGES = Augment(crop=1, flip=True, cutout=2, cutmix=0.5)


def mapped(tmp_path, source=TRAIN, mode="r"):
    np.save(tmp_path / "images.npy", source.images)
    return Split(np.load(tmp_path / "images.npy", mmap_mode=mode), source.labels)


def loader(source=TRAIN, indices=ALL, batch_size=10, seed=0, **options):
    return Loader(source, indices, batch_size, seed, **({"classes": CLASSES} | options))


def assert_same(one, other):
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        for name in ("inputs", "labels", "index", "key", "targets"):
            a, b = getattr(left, name), getattr(right, name)
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b), name


# An epoch


@pytest.mark.parametrize("batch_size", [1, 10, 51, 103])
def test_an_epoch_holds_distinct_examples_and_drops_the_rest(batch_size):
    batches = list(loader(batch_size=batch_size).epoch(0))
    assert len(batches) == len(loader(batch_size=batch_size)) == COUNT // batch_size
    assert all(len(batch) == batch_size for batch in batches)
    index = torch.cat([batch.index for batch in batches])
    assert len(index.unique()) == len(index) == COUNT // batch_size * batch_size


def test_over_the_epochs_no_example_is_left_out():
    index = torch.cat([batch.index for epoch in range(8) for batch in loader(batch_size=25).epoch(epoch)])
    assert sorted(index.unique().tolist()) == list(range(COUNT))


def test_a_batch_is_the_examples_that_it_names():
    for batch in loader().epoch(3):
        rows = batch.index.numpy()
        assert np.array_equal(batch.labels.numpy(), TRAIN.labels[rows])
        assert np.array_equal(batch.inputs.numpy(), TRAIN.images[rows].astype(np.float32) / np.float32(255))
        assert (batch.inputs.dtype, batch.labels.dtype, batch.index.dtype) == (torch.float32, torch.int64, torch.int64)
        assert batch.key.dtype == torch.int64
        assert batch.key.shape == ()
        assert batch.targets is None


def test_order_keys_and_augmentation_are_a_function_of_seed_and_epoch():
    augment = replace(CHANGES, cutmix=0.0)
    assert_same(list(loader(augment=augment).epoch(2)), list(loader(augment=augment).epoch(2)))
    first, second = list(loader(augment=augment).epoch(0)), list(loader(augment=augment).epoch(1))
    other = list(loader(augment=augment, seed=1).epoch(0))
    for others in (second, other):
        assert not torch.equal(first[0].index, others[0].index)
    keys = [int(batch.key) for batch in first + second + other]
    assert len(set(keys)) == len(keys)
    images = [{int(i): x for b in e for i, x in zip(b.index, b.inputs, strict=True)} for e in (first, second)]
    both = images[0].keys() & images[1].keys()
    assert sum(torch.equal(images[0][i], images[1][i]) for i in both) < len(both) / 2


@pytest.mark.parametrize("residency", ["device", "stream"])
@pytest.mark.parametrize("start", [0, 1, 7, 10])
def test_an_epoch_goes_on_from_any_step(start, residency):
    options = {"augment": CHANGES, "auxiliary": Auxiliary(POOL, 0.3), "residency": residency}
    whole = list(loader(**options).epoch(4))
    assert_same(list(loader(**options).epoch(4, start)), whole[start:])


@pytest.mark.parametrize("auxiliary", [None, Auxiliary(POOL, 0.3)])
def test_resident_streamed_and_mapped_batches_are_the_same(tmp_path, auxiliary):
    options = {"augment": CHANGES, "auxiliary": auxiliary}
    resident = list(loader(residency="device", **options).epoch(1))
    for source, residency in ((TRAIN, "stream"), (mapped(tmp_path), "device"), (mapped(tmp_path), "auto")):
        assert_same(list(loader(source, residency=residency, **options).epoch(1)), resident)


@pytest.mark.parametrize("bound", ["HOST_BYTES", "LARGEST_SHARE"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_what_is_small_stays_in_memory_and_what_is_large_streams(tmp_path, monkeypatch, place, bound):
    source = mapped(tmp_path) if place == "disk" else TRAIN

    def streams() -> bool:
        before = threading.active_count()
        epoch = loader(source).epoch(0)
        next(epoch)
        more = threading.active_count() > before
        epoch.close()
        return more

    assert not streams()
    monkeypatch.setattr(loading, bound, {"HOST_BYTES": TRAIN.images.nbytes - 1, "LARGEST_SHARE": 1e-9}[bound])
    assert streams()


def test_where_the_memory_is_not_known_the_bound_decides(monkeypatch):
    def unknown(_):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", unknown)
    assert isinstance(loader().source, loading._Resident)
    monkeypatch.setattr(loading, "HOST_BYTES", TRAIN.images.nbytes - 1)
    assert isinstance(loader().source, loading._Streamed)


def test_vectors_pass_as_they_are():
    vectors = Split(np.random.RandomState(0).rand(30, 2).astype(np.float32), np.arange(30) % 2)
    for batch in loader(vectors, np.arange(30), augment=replace(CHANGES, cutmix=0.5), classes=2).epoch(0):
        assert np.array_equal(batch.inputs.numpy(), vectors.images[batch.index.numpy()])
        assert torch.equal(batch.targets, torch.nn.functional.one_hot(batch.labels, 2).float())


def test_images_become_floats_from_zero_to_one():
    assert to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    assert to_unit(torch.tensor([0.3])).tolist() == pytest.approx([0.3])


def test_the_hold_out_never_appears():
    data = load("fashion-mini")
    training = Loader(data.train, data.fit, 500, 0)
    index = torch.cat([batch.index for epoch in range(3) for batch in training.epoch(epoch)])
    assert not set(index.tolist()) & set(data.holdout.tolist())
    assert set(index.tolist()) <= set(data.fit.tolist())


def test_the_data_are_not_written_to():
    before = TRAIN.images.copy(), TRAIN.labels.copy()
    for residency in ("device", "stream"):
        for batch in loader(augment=CHANGES, residency=residency).epoch(0):
            batch.inputs.zero_()
            batch.labels.zero_()
    assert np.array_equal(TRAIN.images, before[0])
    assert np.array_equal(TRAIN.labels, before[1])


def test_the_global_generators_are_left_alone():
    state, numbers = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    list(loader(augment=CHANGES, auxiliary=Auxiliary(POOL, 0.3)).epoch(0))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numbers)


# Mixed labels


def test_targets_are_the_shares_of_the_two_labels():
    # Every image shows its own label, so that a pixel says whose it is.
    labels = np.arange(200) % CLASSES
    shown = Split(np.broadcast_to(labels[:, None, None, None], (200, 1, 8, 8)).astype(np.uint8), labels)
    seen = 0
    for batch in loader(shown, np.arange(200), 50, augment=Augment(cutmix=0.7)).epoch(0):
        pixels = (batch.inputs * 255).round().long().flatten(1)
        wanted = torch.nn.functional.one_hot(pixels, CLASSES).float().mean(dim=1)
        torch.testing.assert_close(batch.targets, wanted)
        torch.testing.assert_close(batch.targets.sum(dim=1), torch.ones(50))
        best = batch.targets.gather(1, batch.labels[:, None])[:, 0]
        torch.testing.assert_close(best, batch.targets.max(dim=1).values)
        own = torch.from_numpy(labels)[batch.index]
        assert torch.equal(batch.labels[best == 1], own[best == 1])
        seen += int(((best < 1) & (batch.labels != own)).sum())
    assert seen > 5, "some images are mostly their partner's"


# Auxiliary examples


@pytest.mark.parametrize(("batch_size", "extra"), [(1024, 716), (512, 358), (10, 7), (1, 0)])
def test_the_share_of_auxiliary_examples(batch_size, extra):
    real = split(1500, (1, 2, 2))
    mixing = loader(real, np.arange(1500), batch_size, auxiliary=Auxiliary(split(40, (1, 2, 2), 1), 0.7))
    assert len(mixing) == 1500 // batch_size
    for batch in mixing.epoch(0, max(len(mixing) - 3, 0)):
        assert len(batch) == batch_size
        assert int((batch.index >= 1500).sum()) == extra


def test_auxiliary_examples_come_after_all_others_and_keep_their_own_images_and_labels():
    both = Split(np.concatenate([TRAIN.images, POOL.images]), np.concatenate([TRAIN.labels, POOL.labels]))
    for batch in loader(auxiliary=Auxiliary(POOL, 0.5)).epoch(0):
        rows = batch.index.numpy()
        assert rows.max() < COUNT + len(POOL)
        assert np.array_equal(batch.labels.numpy(), both.labels[rows])
        assert np.array_equal(batch.inputs.numpy(), both.images[rows].astype(np.float32) / np.float32(255))


def test_auxiliary_examples_are_drawn_with_replacement_by_step_and_shuffled_in():
    mixing = loader(batch_size=20, auxiliary=Auxiliary(POOL, 0.5))
    batches = [batch for epoch in range(40) for batch in mixing.epoch(epoch)]
    extra = torch.cat([batch.index[batch.index >= COUNT] for batch in batches]) - COUNT
    counts = torch.bincount(extra, minlength=len(POOL))
    assert counts.min() > 0
    assert counts.max() < 2 * counts.float().mean()
    repeated = sum(len(b.index[b.index >= COUNT].unique()) < 10 for b in batches)
    assert repeated > len(batches) / 2, "ten of forty: two are the same in most batches"
    first_half = torch.stack([(batch.index[:10] >= COUNT).sum() for batch in batches]).float()
    assert abs(first_half.mean() - 5) < 0.5
    assert first_half.std() > 0.5
    real = torch.cat([batch.index[batch.index < COUNT] for batch in mixing.epoch(0)])
    assert len(real) == len(real.unique()) == 5 * 10


def test_auxiliary_examples_come_after_the_hold_out_too():
    fit = ALL[20:80]
    for batch in loader(indices=fit, auxiliary=Auxiliary(POOL, 0.5)).epoch(0):
        extra = batch.index >= COUNT
        assert int(extra.sum()) == 5
        assert set(batch.index[~extra].tolist()) <= set(fit.tolist())


def test_the_pool_may_be_larger_than_the_set_and_one_image_is_enough():
    single = Auxiliary(split(1, seed=2), 0.5)
    for batch in loader(auxiliary=single).epoch(0):
        assert (batch.index == COUNT).sum() == 5


def test_auxiliary_examples_of_another_kind_are_refused():
    for other in (split(10, (3, 5, 6)), Split(np.zeros((9, 3, 6, 6), np.float32), np.zeros(9, np.int64))):
        with pytest.raises(ValueError, match=r"auxiliary images are .* \(3, \d, 6\).* uint8 \(3, 6, 6\)"):
            loader(auxiliary=Auxiliary(other, 0.5))


# Streaming


def threads_end(before, seconds=5.0):
    end = time.monotonic() + seconds
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    return threading.active_count() <= before


def test_an_epoch_left_midway_leaves_no_threads():
    before = threading.active_count()
    epoch = loader(residency="stream", auxiliary=Auxiliary(POOL, 0.5)).epoch(0)
    next(epoch)
    next(epoch)
    assert threading.active_count() > before
    epoch.close()
    assert threads_end(before)
    for _ in loader(residency="stream").epoch(0):
        break
    gc.collect()
    assert threads_end(before)


class Slow(np.ndarray):
    """Images that count how often they are read, and take their time."""

    reads = 0

    def __getitem__(self, rows):
        Slow.reads += 1
        time.sleep(0.02)
        return np.asarray(super().__getitem__(rows))


def test_reading_runs_ahead_by_a_few_batches_and_no_more():
    Slow.reads = 0
    slow = Split(TRAIN.images.view(Slow), TRAIN.labels)
    epoch = loader(slow, batch_size=1, residency="stream").epoch(0)
    next(epoch)
    time.sleep(0.3)
    assert 2 <= Slow.reads <= 6
    next(epoch)
    epoch.close()
    reads = Slow.reads
    time.sleep(0.1)
    assert Slow.reads == reads <= 7, "nothing is read once the epoch is left"


class Broken(np.ndarray):
    def __getitem__(self, rows):
        raise OSError("the disk is gone")


def test_an_error_of_a_reader_reaches_the_caller():
    before = threading.active_count()
    broken = Split(TRAIN.images.view(Broken), TRAIN.labels)
    with pytest.raises(OSError, match="the disk is gone"):
        list(loader(broken, residency="stream").epoch(0))
    gc.collect()
    assert threads_end(before)


# Settings


@pytest.mark.parametrize("batch_size", [0, 104, -1])
def test_a_batch_size_that_cannot_be_says_what_to_set(batch_size):
    with pytest.raises(ValueError, match=rf"batch size is {batch_size}.*103 training.*train.batch_size of at most 103"):
        loader(batch_size=batch_size)


def test_cutmix_without_the_number_of_classes_is_refused():
    with pytest.raises(ValueError, match="number of classes"):
        loader(augment=Augment(cutmix=0.5), classes=0)


@pytest.mark.parametrize("augment", [Augment(crop=6), Augment(cutout=8)], ids=["crop", "cutout"])
def test_changes_that_leave_nothing_of_an_image_are_refused(augment):
    name = "crop" if augment.crop else "cutout"
    with pytest.raises(ValueError, match=rf"data.{name} is \d pixels, and images are 3x6x6.*the padding"):
        loader(augment=augment)
    vectors = Split(np.zeros((COUNT, 5), np.float32), TRAIN.labels)
    assert next(loader(vectors, augment=augment).epoch(0)).inputs.shape == (10, 5)


def test_an_unknown_residency_is_refused():
    with pytest.raises(ValueError, match="residency must be one of 'auto', 'device', 'stream'; got 'gpu'"):
        loader(residency="gpu")


# On a GPU


def test_what_goes_to_a_gpu_goes_from_page_locked_memory_without_waiting():
    class Sent:
        """A tensor as seen by whoever sends it: there need be no GPU."""

        def __init__(self, pinned=False):
            self.pinned = pinned

        def pin_memory(self):
            return Sent(pinned=True)

        def to(self, device, non_blocking=False):
            return self.pinned, torch.device(device).type, non_blocking

    assert loading._sent(Sent(), torch.device("cuda")) == (True, "cuda", True)
    assert loading._sent(Sent(), torch.device("cpu"))[:2] == (False, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("residency", ["device", "stream"])
def test_no_step_waits_for_the_gpu(residency):
    batches = loader(auxiliary=Auxiliary(POOL, 0.3), residency=residency, device="cuda").epoch(0)
    next(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(batches)) == COUNT // 10 - 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
