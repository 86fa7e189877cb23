"""The sets that come with the package: fashion-mini and the toys."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dyart.data import DataError, get, load, mini
from dyart.data.toy import DRAW

# Computed from the arrays that scripts/make_fashion_mini.py drew from the official files.
MINI_SHA256 = {
    "train_images": "d4bf09a988eddb2431fcc0c6057ec84085f2665347338254508a653f4551365e",
    "train_labels": "67ce2f53aa89d55a5ef8c59aec250ce4bc58bff296f93356f8b67c78ab7cd29e",
    "test_images": "9c37619a8fe7002fcd4c1f9d527fc9ded7b0e44221466160782de0b3d6ae76e5",
    "test_labels": "9f44b00d5662201c503e65b8df05e38df6ba62155ab7024f884020485b0d3c08",
}


def test_fashion_mini_has_6000_and_2000_images_of_ten_equal_classes():
    data = load("fashion-mini")
    assert data.train.images.shape == (6000, 1, 28, 28)
    assert data.test.images.shape == (2000, 1, 28, 28)
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert np.bincount(data.train.labels).tolist() == [600] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    assert data.classes[9] == "Ankle boot"
    assert data.shape == (1, 28, 28)


def test_fashion_mini_is_below_4_megabytes():
    assert mini.MINI_FILE.stat().st_size < 4_000_000


def test_fashion_mini_holds_the_very_images_that_were_drawn():
    with np.load(mini.MINI_FILE) as archive:
        found = {key: hashlib.sha256(archive[key].tobytes()).hexdigest() for key in archive.files}
    assert found == MINI_SHA256


def test_the_holdout_of_fashion_mini_is_its_first_1024_and_balanced():
    data = load("fashion-mini")
    assert np.array_equal(data.holdout, np.arange(1024))
    counts = np.bincount(data.train.labels[data.holdout])
    assert set(counts.tolist()) <= {102, 103}


def test_any_first_part_of_fashion_mini_is_balanced_and_the_order_is_random():
    labels = load("fashion-mini").train.labels.reshape(-1, 10)
    assert (np.sort(labels, axis=1) == np.arange(10)).all()
    assert len({tuple(row) for row in labels.tolist()}) > 500


def test_no_training_image_of_fashion_mini_is_twice_in_it_or_in_its_test_part():
    data = load("fashion-mini")
    seen = {image.tobytes() for image in data.train.images}
    assert len(seen) == 6000
    assert not seen & {image.tobytes() for image in data.test.images}


def test_a_damaged_embedded_file_is_named(tmp_path, monkeypatch):
    copy = tmp_path / "fashion_mini.npz"
    copy.write_bytes(mini.MINI_FILE.read_bytes()[:-5000])
    monkeypatch.setattr(mini, "MINI_FILE", copy)
    with pytest.raises(DataError, match=re.escape(str(copy))):
        load("fashion-mini")


def test_loading_the_embedded_set_needs_no_pillow():
    probe = "import sys; sys.modules['PIL'] = None; import dyart.data as d; print(len(d.load('fashion-mini').train))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "6000"


def test_the_data_layer_imports_nothing_heavy():
    probe = (
        "import sys, torch; before = set(sys.modules); import dyart.data.commands; "
        "print(sorted({n.split('.')[0] for n in set(sys.modules) - before} & {'PIL', 'scipy', 'rich', 'matplotlib'}))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", DRAW)
def test_a_toy_set_is_two_dimensional_balanced_and_the_same_every_time(name):
    data, twin = load(name), load(name)
    assert data.train.images.dtype == np.float32
    assert data.shape == (2,)
    assert 0 <= data.train.images.min() < 0.35
    assert 0.65 < data.train.images.max() <= 1
    assert np.array_equal(data.train.images, twin.train.images)
    assert np.array_equal(data.test.labels, twin.test.labels)
    assert np.ptp(np.bincount(data.train.labels)) <= 1
    assert len(np.unique(data.train.labels)) == len(data.classes)
    assert len(data.holdout) == pytest.approx(len(data.train) / 10, abs=3)
    assert np.ptp(np.bincount(data.train.labels[data.holdout])) <= 1


@pytest.mark.parametrize("name", DRAW)
def test_a_toy_set_can_be_learned_by_its_neighbours(name):
    data = load(name)
    distance = ((data.test.images[:, None] - data.train.images[None]) ** 2).sum(2)
    assert (data.train.labels[distance.argmin(1)] == data.test.labels).mean() > 0.97


def test_toys_are_in_no_two_sets_the_same():
    firsts = {load(name).train.images[:3].tobytes() for name in DRAW}
    assert len(firsts) == len(DRAW)


def test_an_embedded_set_needs_no_getting(tmp_path):
    assert get("fashion-mini", tmp_path).is_dir()
    assert get("moons", tmp_path).is_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_file_is_a_plain_zip_of_arrays():
    with zipfile.ZipFile(mini.MINI_FILE) as archive:
        assert {Path(name).suffix for name in archive.namelist()} == {".npy"}
