"""Files that somebody made to run code, to write elsewhere, or to be read as what they are not."""

import io
import os
import pickle
import stat
import tarfile
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from dyart.data import DataError, load
from dyart.data.auxiliary import open_auxiliary
from dyart.data.cifar import read_pickle
from dyart.data.mapped import host_memory, open_npy
from dyart.data.trees import open_tree
from dyart.recipes import RecipeError, resolve


class Runs:
    """Runs code when it is unpickled: makes a folder."""

    def __init__(self, evidence):
        self.evidence = evidence

    def __reduce__(self):
        return os.mkdir, (str(self.evidence),)


def test_the_trap_works(tmp_path):
    pickle.loads(pickle.dumps(Runs(tmp_path / "evidence")))
    assert (tmp_path / "evidence").exists()


class Reduced:
    """Pickles as a call of anything."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) + (() if state is None else (state,))

    def __reduce__(self):
        return self.reduced


def array(*state):
    """Pickles as numpy's arrays do, with any state."""
    return Reduced(np.empty(0).__reduce__()[0], np.ndarray, (0,), b"b", state=(1, *state))


HOSTILE = {
    # Eight bytes as the address of an object: reading it would follow the address.
    "objects from bytes": lambda: Reduced(np.ndarray, (1,), np.dtype("O"), b"AAAAAAAA"),
    "objects as a state": lambda: array((1,), np.dtype("O"), False, b"A" * 8),
    "a type that lies": lambda: Reduced(np.dtype, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 0)),
    "an array of objects": lambda: np.array([print, None], dtype=object),
    "too few bytes": lambda: array((1 << 40,), np.dtype("u1"), False, b"A"),
    "numbers of another type": lambda: np.arange(3.0),
    "a function": lambda: print,
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_array_in_a_pickle_is_refused(name, protocol):
    data = pickle.dumps({"data": HOSTILE[name](), "labels": [0]}, protocol=protocol)
    with pytest.raises(DataError, match="data_batch_1"):
        read_pickle(data, "data_batch_1")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_honest_array_in_a_pickle_is_read(protocol, order):
    if protocol == 5 and order == "F":
        pytest.skip("numpy pickles it in another way; CIFAR's files are of protocol 2")
    array = np.asarray(np.arange(24, dtype=np.uint8).reshape(2, 12), order=order)
    data = pickle.dumps({"data": array, "labels": [1, 2]}, protocol=protocol)
    if protocol == 5:  # likewise
        with pytest.raises(DataError):
            read_pickle(data, "batch")
        return
    batch = read_pickle(data, "batch")
    np.testing.assert_array_equal(batch["data"], array)
    assert batch["labels"] == [1, 2]


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_an_array_of_objects_runs_nothing(tmp_path, kind):
    evidence = tmp_path / "evidence"
    objects = np.array([Runs(evidence)] * 4, dtype=object)
    folder = tmp_path / "set"
    folder.mkdir()
    labels = np.array([0, 1, 0, 1])
    if kind == "npz":
        np.savez(folder / "set.npz", images=objects, labels=labels)
        path = folder / "set.npz"
    else:
        np.save(folder / "images.npy", objects, allow_pickle=True)
        np.save(folder / "labels.npy", labels)
        path = folder
    with pytest.raises(DataError, match="plain"):
        load(str(path))
    np.save(folder / "pool.npy", objects, allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        open_auxiliary(folder / "pool.npy", folder / "pool.npy", 0.5, (1, 2, 2), 2)
    assert not evidence.exists()


def picture(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


OUTSIDE = ("../../escaped.png", "/tmp/dyart-escaped.png", "set/a/../../../escaped.png")


def hostile_tar(path, secret):
    """A tar with pictures, paths that lead out of it, and links and devices."""
    with tarfile.open(path, "w") as archive:

        def add(name, content=b"", **fields):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in fields.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))

        for label in "ab":
            for number in range(12):
                add(f"set/{label}/{number}.png", picture(number))
        for name in OUTSIDE:
            add(name, picture(9))
        add("set/a/link.png", type=tarfile.SYMTYPE, linkname=str(secret))
        add("set/a/hard.png", type=tarfile.LNKTYPE, linkname=str(secret))
        add("set/a/pipe.png", type=tarfile.FIFOTYPE)


def hostile_zip(path, secret):
    with zipfile.ZipFile(path, "w") as archive:
        for label in "ab":
            for number in range(12):
                archive.writestr(f"set/{label}/{number}.png", picture(number))
        for name in OUTSIDE:
            archive.writestr(name, picture(9))
        link = zipfile.ZipInfo("set/a/link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(secret))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_reaches_nothing_outside(tmp_path, kind):
    """Archives are read, never extracted: names that lead outside lead nowhere, links are followed to nothing."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(picture(77))
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    path = inner / f"set.{kind}"
    (hostile_tar if kind == "tar" else hostile_zip)(path, secret)
    before = sorted(tmp_path.rglob("*"))
    tree = open_tree(path)
    contents = {name: tree.read(name) for name in tree.names}
    assert picture(77) not in contents.values()
    with suppress(DataError):
        load(str(path))
    assert sorted(tmp_path.rglob("*")) == before
    assert not os.path.exists("/tmp/dyart-escaped.png")


@pytest.mark.parametrize(
    "text",
    [
        "seed: !!python/object/apply:os.mkdir ['{place}']",
        "!!python/object/apply:os.mkdir ['{place}']",
        "data: {{name: !!python/object/new:os.mkdir ['{place}']}}",
        "base: !!python/name:os.mkdir",
    ],
)
def test_yaml_runs_nothing(tmp_path, text):
    place = tmp_path / "evidence"
    (tmp_path / "recipe.yaml").write_text(text.format(place=place))
    with pytest.raises(RecipeError, match="no YAML"):
        resolve(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError):
        resolve("fashion-mini-cnn-at", ["--seed", f"!!python/object/apply:os.mkdir ['{place}']"])
    assert not place.exists()


def test_a_file_larger_than_memory_is_mapped(tmp_path):
    """With holes: it takes no room on the disk."""
    rows = int(2 * host_memory() / 2**20)
    array = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.uint8, (rows, 2**20))
    array[rows // 2, :3] = 1, 2, 3
    del array
    mapped = open_npy(tmp_path / "large.npy")
    assert mapped[rows // 2, :4].tolist() == [1, 2, 3, 0]
    with pytest.raises(ValueError, match="read-only"):
        mapped[0, 0] = 1


def test_a_small_file_is_mapped_privately(tmp_path):
    np.save(tmp_path / "small.npy", np.zeros(4, np.uint8))
    mapped = open_npy(tmp_path / "small.npy")
    mapped[0] = 1
    assert np.load(tmp_path / "small.npy").tolist() == [0, 0, 0, 0]
