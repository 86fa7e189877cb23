"""Generated images whose class is a number in the file's name."""

import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from data_cases import picture, write

from dyart.data import DataError, MissingDataError, get, load, obtain
from dyart.data.cifake import read_cifake
from dyart.data.names import CIFAR10
from dyart.data.registry import REGISTRY
from dyart.data.trees import open_tree

pytest.importorskip("PIL")


def grey(level):
    return picture(np.full((32, 32, 3), level, dtype=np.uint8), "JPEG", quality=95)


def files():
    """Two training images and a test image of every class, and a real image that does not belong."""
    made = {}
    for place in range(1, 11):
        end = "" if place == 1 else f" ({place})"
        made |= {f"DATASET/train/FAKE/{number}{end}.jpg": grey(20 * place + number) for number in (2, 10)}
        made[f"DATASET/test/FAKE/0{end}.jpg"] = grey(20 * place + 5)
    made["DATASET/train/REAL/0001 (3).jpg"] = grey(0)
    return made


@pytest.mark.parametrize("packed", [True, False], ids=["zip", "folder"])
def test_the_number_in_brackets_is_the_class(tmp_path, packed):
    path = tmp_path / "main.zip"
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files().items():
                archive.writestr(f"CIFAKE-main/{name}", data)
    else:
        path = write(tmp_path, files())
    raw = read_cifake(open_tree(path), CIFAR10)
    assert raw.train_labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert raw.test_labels.tolist() == list(range(10))
    levels = raw.train_images.reshape(20, -1).mean(axis=1)
    expected = [20 * place + number for place in range(1, 11) for number in (2, 10)]
    assert np.abs(levels - expected).max() < 2, "2 before 10, and no real image"
    assert not raw.shuffled


def test_a_class_that_cannot_be_is_named(tmp_path):
    folder = write(tmp_path, files() | {"DATASET/train/FAKE/7 (11).jpg": grey(1)})
    with pytest.raises(DataError, match=r"7 \(11\)\.jpg: there are 10 classes"):
        read_cifake(open_tree(folder), CIFAR10)


def test_it_is_stored_under_its_name(tmp_path, monkeypatch):
    small = replace(REGISTRY["cifake"], train=20, test=10)
    monkeypatch.setitem(obtain.REGISTRY, "cifake", small)
    get("cifake", tmp_path / "root", write(tmp_path / "here", files()))
    data = load("cifake", tmp_path / "root")
    assert (len(data.train), len(data.test), data.classes) == (20, 10, CIFAR10)


def test_without_files_it_is_said_where_they_are(tmp_path):
    source = re.escape(REGISTRY["cifake"].source)
    with pytest.raises(MissingDataError, match=rf"get it from {source}.*dyart data get cifake.* --from"):
        get("cifake", tmp_path / "root")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=f"no files of cifake; give the files of {source}"):
        get("cifake", tmp_path / "root", tmp_path / "empty")
