"""Auxiliary images: any file that fits is mapped, never read whole; labels are the file's, or a classifier's."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dyart.data.auxiliary import Auxiliary, open_auxiliary, pseudo_label
from dyart.data.loader import Loader
from dyart.data.sets import Split

SHAPE, CLASSES, COUNT = (3, 4, 6), 5, 23
IMAGES = np.random.RandomState(0).randint(0, 256, (COUNT, *SHAPE), dtype=np.uint8)
LABELS = np.arange(COUNT) % CLASSES


def files(folder, images=IMAGES, labels=LABELS):
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    return folder / "images.npy", folder / "labels.npy"


def opened(folder, images=IMAGES, labels=LABELS, fraction=0.7):
    return open_auxiliary(*files(folder, images, labels), fraction, SHAPE, CLASSES)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, ">i8"])
@pytest.mark.parametrize(
    "stored", [IMAGES, IMAGES.transpose(0, 2, 3, 1).copy(), np.asfortranarray(IMAGES)], ids=["NCHW", "NHWC", "columns"]
)
def test_any_layout_gives_the_same_images(tmp_path, stored, dtype):
    pool = opened(tmp_path, stored, LABELS.astype(dtype))
    assert isinstance(pool.split.images, np.memmap)
    assert np.array_equal(pool.split.images, IMAGES)
    train = Split(IMAGES[:10], LABELS[:10])
    for batch in Loader(train, np.arange(10), 10, 0, auxiliary=pool).epoch(0):
        extra = batch.index >= 10
        rows = (batch.index[extra] - 10).numpy()
        assert len(rows) == 7
        assert np.array_equal((batch.inputs[extra] * 255).round().numpy(), IMAGES[rows])
        assert np.array_equal(batch.labels[extra].numpy(), LABELS[rows])
        assert batch.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": IMAGES.astype(np.float32)}, r"images.npy holds float32 \(3, 4, 6\) per image; uint8 \(3, 4, 6\)"),
        ({"images": IMAGES.astype(np.int8)}, "holds int8"),
        ({"images": IMAGES[:, :1]}, r"uint8 \(1, 4, 6\) per image; uint8 \(3, 4, 6\) is needed"),
        ({"images": IMAGES.transpose(0, 3, 2, 1)}, r"\(6, 4, 3\)"),
        ({"images": IMAGES.reshape(COUNT, -1)}, r"\(72,\)"),
        ({"images": IMAGES[0, 0, 0]}, r"\(\) per image"),
        ({"images": IMAGES[:9]}, r"labels.npy holds int64 \(23,\); 9 integer labels are needed"),
        ({"labels": LABELS[:, None]}, r"\(23, 1\); 23 integer"),
        ({"labels": LABELS.astype(float)}, "holds float64"),
        ({"labels": LABELS == 0}, "holds bool"),
        ({"labels": LABELS + 1}, "labels from 1 to 5; there are 5 classes"),
        ({"labels": LABELS - 1}, "labels from -1 to 3; there are 5 classes"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "the auxiliary set is empty"),
        ({"fraction": 0.0}, "between 0 and 1, got 0.0"),
        ({"fraction": 1.0}, "between 0 and 1, got 1.0"),
        ({"fraction": float("nan")}, "between 0 and 1, got nan"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, **changes)


@pytest.mark.parametrize("name", ["images", "labels"])
def test_files_that_are_no_arrays_are_refused(tmp_path, name):
    paths = dict(zip(("images", "labels"), files(tmp_path), strict=True))
    for content in (b"", b"a text", paths[name].read_bytes()[:40]):
        paths[name].write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.npy is no \.npy array .*numpy\.save"):
            open_auxiliary(*paths.values(), 0.7, SHAPE, CLASSES)
    np.savez(tmp_path / "archive.npz", IMAGES)
    os.replace(tmp_path / "archive.npz", paths[name])
    with pytest.raises(ValueError, match=r"is no \.npy array"):
        open_auxiliary(*paths.values(), 0.7, SHAPE, CLASSES)
    paths[name].unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(paths[name])) + r".*numpy\.save"):
        open_auxiliary(*paths.values(), 0.7, SHAPE, CLASSES)


def test_a_truncated_file_is_refused(tmp_path):
    images, labels = files(tmp_path)
    images.write_bytes(images.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"images\.npy is no \.npy array"):
        open_auxiliary(images, labels, 0.7, SHAPE, CLASSES)


@pytest.mark.parametrize(("batch_size", "count"), [(1024, 716), (512, 358), (256, 179), (1, 0)])
def test_the_count_of_a_batch(batch_size, count):
    assert Auxiliary(Split(IMAGES, LABELS), 0.7).count(batch_size) == count


# Large files


def resident_bytes():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_large_file_is_not_read_whole(tmp_path):
    shape = (3, 32, 32)
    count = 2**31 // (3 * 32 * 32) + 1
    mapped = np.lib.format.open_memmap(tmp_path / "images.npy", mode="w+", dtype=np.uint8, shape=(count, *shape))
    mapped[count - 1] = 200
    del mapped
    path = tmp_path / "images.npy"
    assert path.stat().st_size > 2**31
    assert path.stat().st_blocks * 512 < 2**24, "a sparse file, or the test takes two gigabytes of disk"
    np.save(tmp_path / "labels.npy", np.ones(count, dtype=np.uint8))
    before = resident_bytes()
    pool = open_auxiliary(path, tmp_path / "labels.npy", 0.5, shape, 2)
    train = Split(np.full((256, *shape), 255, np.uint8), np.zeros(256, np.int64))
    batches = [
        batch for epoch in range(4) for batch in Loader(train, np.arange(256), 64, 0, auxiliary=pool).epoch(epoch)
    ]
    assert len(batches) == 16
    for batch in batches:
        extra = batch.index >= 256
        assert int(extra.sum()) == 32
        assert torch.equal(batch.labels, extra.long())
    assert pool.split.images[count - 1].min() == 200
    assert resident_bytes() - before < 2**28


# Labels by a classifier


class Brightest(nn.Module):
    """Class = the channel with the largest sum, on condition that the module is in eval mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=False)
        self.sizes = []

    def forward(self, x):
        assert x.dtype == torch.float32
        assert 0 <= x.min() <= x.max() <= 1
        assert not torch.is_grad_enabled()
        self.sizes.append(len(x))
        return self.norm(x).sum(dim=(2, 3))


@pytest.mark.parametrize("stored", [IMAGES, IMAGES.transpose(0, 2, 3, 1).copy()], ids=["NCHW", "NHWC"])
def test_pseudo_labels_are_what_the_classifier_says(tmp_path, stored):
    images, _ = files(tmp_path, stored)
    model = Brightest().train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    path = pseudo_label(model, images, tmp_path / "new" / "pseudo.npy", SHAPE, batch_size=10)
    assert path == tmp_path / "new" / "pseudo.npy"
    assert np.array_equal(np.load(path), IMAGES.astype(np.int64).sum(axis=(2, 3)).argmax(axis=1))
    assert model.sizes == [10, 10, 3]
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert open_auxiliary(images, path, 0.5, SHAPE, 3).split.labels.dtype == np.int64
    assert [file.name for file in path.parent.iterdir()] == ["pseudo.npy"]


def test_an_object_with_logits_labels_too(tmp_path):
    class Output:
        def __init__(self, logits):
            self.logits = logits

    images, labels = files(tmp_path)
    pseudo_label(lambda x: Output(x.sum(dim=(2, 3))), images, labels, SHAPE)
    assert np.array_equal(np.load(labels), IMAGES.astype(np.int64).sum(axis=(2, 3)).argmax(axis=1)), "and replaces"


def test_a_crash_in_the_middle_leaves_no_file(tmp_path):
    images, _ = files(tmp_path)
    calls = []

    def fails(x):
        calls.append(len(x))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return x.sum(dim=(2, 3))

    with pytest.raises(KeyboardInterrupt):
        pseudo_label(fails, images, tmp_path / "pseudo.npy", SHAPE, batch_size=5)
    assert not list(tmp_path.glob("pseudo*"))


def test_a_crash_while_writing_leaves_the_old_labels(tmp_path, monkeypatch):
    images, labels = files(tmp_path)

    def full(file, array):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space"):
        pseudo_label(lambda x: x.sum(dim=(2, 3)), images, labels, SHAPE)
    assert np.array_equal(np.load(labels), LABELS)


def test_a_pool_that_does_not_fit_cannot_be_labelled(tmp_path):
    images, labels = files(tmp_path, IMAGES.reshape(COUNT, -1))
    with pytest.raises(ValueError, match=r"\(72,\)"):
        pseudo_label(lambda x: x, images, labels, SHAPE)
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy"):
        pseudo_label(lambda x: x, tmp_path / "nothing.npy", labels, SHAPE)
