"""Sets on disk: whole or not at all, verified when loaded, safe under two writers and on a full disk."""

import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from data_cases import raw_set

from dyart.data import DataError, data_root, errors, listing, load, store
from dyart.data.raw import ARRAYS
from dyart.data.store import save, sha256


def stored(folder, **options):
    raw = raw_set(**options)
    save(folder / "mine", "mine", raw, "a test", "nothing")
    return raw


def test_a_stored_set_comes_back_as_it_was(tmp_path):
    raw = stored(tmp_path)
    data = load("mine", tmp_path)
    assert np.array_equal(data.train.images, raw.train_images)
    assert np.array_equal(data.train.labels, raw.train_labels)
    assert np.array_equal(data.test.images, raw.test_images)
    assert data.classes == ("a", "b", "c", "d")
    assert data.name == "mine"
    assert np.array_equal(data.holdout, np.arange(4)), "a tenth, from the front of a set in random order"


def test_a_stored_set_is_found_by_its_path_too(tmp_path):
    stored(tmp_path)
    assert load(str(tmp_path / "mine")).classes == ("a", "b", "c", "d")


def test_a_name_that_is_a_path_too_says_which_was_taken_and_how_to_take_the_other(tmp_path, monkeypatch):
    stored(tmp_path / "sets")
    monkeypatch.chdir(tmp_path)
    assert load("mine", tmp_path / "sets").notes == (), "nothing else is meant"
    images, labels = np.zeros((20, 3, 4, 4), np.uint8), np.arange(20) % 2
    Path("mine").mkdir()
    np.save("mine/test_images.npy", images)
    np.save("mine/test_labels.npy", labels)
    note = load("mine", tmp_path / "sets").notes[0]
    assert note == (
        f"the set stored in {tmp_path / 'sets' / 'mine'} is taken; to take the folder mine in the working directory, "
        "name it ./mine"
    )
    other = load("./mine", tmp_path / "sets")
    assert other.shape == (3, 4, 4)
    assert not any("is taken" in note for note in other.notes)
    monkeypatch.chdir(tmp_path / "sets")
    assert load("mine", tmp_path / "sets").notes == (), "it is the stored set that lies there"


def test_a_set_of_the_package_or_one_to_be_downloaded_names_a_path_likewise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("moons", tmp_path / "sets").notes == ()
    for name in ("moons", "cifar10"):
        Path(name).write_text("something")
    (note,) = load("moons", tmp_path / "sets").notes
    assert note.startswith("the set that comes with the package is taken; to take the file moons")
    with pytest.raises(DataError, match=r"dyart data get cifar10 --root \S+; to take the file cifar10 .* \./cifar10$"):
        load("cifar10", tmp_path / "sets")


def test_the_folder_may_be_given_from_the_home_on(tmp_path, monkeypatch):
    stored(tmp_path / "sets")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert len(load("mine", "~/sets").train) == 40
    assert "mine" in [line.name for line in listing("~/sets") if line.present]


def test_the_manifest_tells_counts_classes_and_checksums(tmp_path):
    stored(tmp_path)
    folder = tmp_path / "mine"
    content = json.loads((folder / "manifest.json").read_text())
    assert content["counts"] == {"train": 40, "test": 20}
    assert content["counts_by_class"] == {"train": [10] * 4, "test": [5] * 4}
    assert content["classes"] == ["a", "b", "c", "d"]
    assert content["shape"] == [1, 4, 4]
    assert content["source"] == "a test"
    assert {name: entry["sha256"] for name, entry in content["files"].items()} == {
        f"{key}.npy": sha256(folder / f"{key}.npy") for key in ARRAYS
    }


def test_images_are_mapped_not_read_and_torch_takes_them_without_copy_or_warning(tmp_path):
    stored(tmp_path)
    images = load("mine", tmp_path).train.images
    assert isinstance(images, np.memmap)
    tensor = torch.from_numpy(images)
    tensor[0] = 0
    assert images[0].max() == 0
    assert load("mine", tmp_path).train.images[0].max() > 0, "the file keeps its bytes"


@pytest.mark.parametrize("key", ARRAYS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_file_is_named_with_the_command_that_repairs_it(tmp_path, key, damage):
    stored(tmp_path)
    path = tmp_path / "mine" / f"{key}.npy"
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[-3] ^= 4
        path.write_bytes(data[:-1] if damage == "cut" else data)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} .*dyart data get mine --root \S+ --from"):
        load("mine", tmp_path)


def test_a_large_set_is_hashed_only_on_request(tmp_path, monkeypatch):
    stored(tmp_path)
    path = tmp_path / "mine/train_images.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(store, "VERIFY_BELOW", 100)
    load("mine", tmp_path)
    with pytest.raises(DataError, match=r"train_images.npy was altered"):
        load("mine", tmp_path, verify=True)
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"bytes instead of"):
        load("mine", tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1}'])
def test_a_damaged_manifest_is_named(tmp_path, text):
    stored(tmp_path)
    (tmp_path / "mine/manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest.json .*dyart data get mine"):
        load("mine", tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_nothing_and_says_how_much_is_needed_where(tmp_path, monkeypatch):
    opened = Path.open

    def full(path, *rest, **options):
        # A device of the system on which every write fails as on a full disk.
        return opened(Path("/dev/full") if path.name == "test_images.npy" else path, *rest, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))} is full: .* bytes are needed.*DYART_DATA"):
        stored(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_any_byte_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(errors.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match="1,000 bytes are free"):
        stored(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_set(tmp_path, monkeypatch):
    stored(tmp_path)

    def broken(*_):
        raise RuntimeError("stop")

    monkeypatch.setattr(store, "_write_bytes", broken)
    with pytest.raises(RuntimeError, match="stop"):
        stored(tmp_path, train=80)
    assert len(load("mine", tmp_path, verify=True).train) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_replacement_that_fails_in_the_end_keeps_the_old_set(tmp_path, monkeypatch):
    stored(tmp_path)
    rename, calls = os.rename, itertools.count(1)

    def second_fails(source, target):
        if next(calls) == 2:
            raise OSError("stop")
        rename(source, target)

    monkeypatch.setattr(store.os, "rename", second_fails)
    with pytest.raises(OSError, match="stop"):
        stored(tmp_path, train=80)
    assert len(load("mine", tmp_path, verify=True).train) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_set_is_replaced_whole(tmp_path):
    stored(tmp_path)
    before = load("mine", tmp_path).train.images
    kept = before.copy()
    stored(tmp_path, train=80, size=6)
    assert load("mine", tmp_path).train.images.shape == (80, 1, 6, 6)
    assert np.array_equal(before, kept), "who has the old one open still sees it"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_killed_writer_leaves_no_set(tmp_path):
    script = (
        "import os, sys, pathlib; sys.path.insert(0, sys.argv[2]); from dyart.data import store; import data_cases; "
        "store._sync = lambda _: os._exit(9); "
        "store.save(pathlib.Path(sys.argv[1]) / 'mine', 'mine', data_cases.raw_set(), 'a', 'b')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), os.path.dirname(__file__)], check=False)
    assert done.returncode == 9
    with pytest.raises(DataError, match="no data set 'mine'"):
        load("mine", tmp_path)
    stored(tmp_path)
    assert len(load("mine", tmp_path).train) == 40


def test_two_writers_take_turns(tmp_path):
    spans = []

    def hold():
        with store.locked(tmp_path, "mine"):
            start = time.monotonic()
            time.sleep(0.2)
            spans.append((start, time.monotonic()))

    workers = [threading.Thread(target=hold) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    spans.sort()
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DYART_DATA": "/a/b"}, "/a/b"),
        ({"DYART_DATA": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/dyart"),
        ({"HOME": "/h"}, "/h/.cache/dyart"),
        ({"DYART_DATA": "", "HOME": "/h"}, "/h/.cache/dyart"),
    ],
)
def test_the_folder_of_the_data_sets(monkeypatch, variables, expected):
    for name in ("DYART_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(data_root()) == expected
