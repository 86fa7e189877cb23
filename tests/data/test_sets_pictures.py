"""A user's own pictures in class folders: what is read, how they are named, and what is said about the rest."""

import os
import re
import zipfile
import zlib

import numpy as np
import pytest
from data_cases import picture, pictures, tar, write

from dyart.data import DataError, get, load
from dyart.data.pictures import decode
from dyart.data.store import manifest

pytest.importorskip("PIL")


def test_class_folders_are_read_in_alphabetical_order(tmp_path):
    folder, _ = pictures(tmp_path / "set", classes=("bee", "ant", "cat"))
    data = load(str(folder))
    assert data.classes == ("ant", "bee", "cat")
    assert data.train.images.shape == (30, 3, 8, 8)
    assert data.test.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert data.notes == ()


def test_a_picture_keeps_its_pixels_and_its_label(tmp_path):
    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    folder, _ = pictures(tmp_path, count=3, parts=("train/",))
    write(folder, {f"{part}/{name}/x.png": picture(pixels) for part in ("train", "val") for name in ("ant", "bee")})
    for old in folder.glob("train/*/0*.png"):
        old.unlink()
    data = load(str(folder))
    assert np.array_equal(data.train.images[1], pixels.transpose(2, 0, 1))
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 1]


def test_class_folders_alone_give_a_fifth_for_the_test_part(tmp_path):
    folder, _ = pictures(tmp_path / "set", parts=("",))
    data = load(str(folder))
    assert (len(data.train), len(data.test)) == (16, 4)
    assert any("no test part" in note for note in data.notes)


def test_an_archive_of_class_folders_is_read_like_the_folder(tmp_path):
    folder, files = pictures(tmp_path / "set")
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(tar({f"inside/{name}": data for name, data in files.items()}))
    assert np.array_equal(load(str(archive)).train.images, load(str(folder)).train.images)


def test_names_of_the_parts_in_capitals_are_known_and_a_second_test_part_is_mentioned(tmp_path):
    folder, _ = pictures(tmp_path, parts=("Train/", "Val/", "Test/"), count=3)
    write(folder, {"Test/ant/09.png": (folder / "Test/ant/00.png").read_bytes()})
    data = load(str(folder))
    assert (len(data.train), len(data.test)) == (6, 7)
    assert data.notes == ("Test/ is the test part; Val/ not used",)


def test_the_systems_own_files_in_an_archive_are_no_pictures(tmp_path):
    _, files = pictures(tmp_path / "set")
    files |= {"__MACOSX/train/ant/._00.png": b"x", "train/ant/.hidden.png": b"x"}
    (tmp_path / "set.tgz").write_bytes(tar(files))
    assert len(load(str(tmp_path / "set.tgz")).train) == 20


def test_hidden_folders_in_an_archive_are_skipped_as_in_a_folder(tmp_path):
    hidden = {
        f"{place}.ipynb_checkpoints/{k}.png": picture(np.zeros((8, 8, 3), np.uint8))
        for place in ("", "ant/")
        for k in "ab"
    }
    folder, files = pictures(tmp_path / "set", parts=("",))
    write(folder, hidden)
    (tmp_path / "set.tgz").write_bytes(tar({f"./{name}": data for name, data in (files | hidden).items()}))
    for place in ("set", "set.tgz"):
        data = load(str(tmp_path / place))
        assert data.classes == ("ant", "bee")
        assert len(data.train) + len(data.test) == 20


def test_an_archive_with_a_password_says_what_to_do(tmp_path):
    _, files = pictures(tmp_path / "set")
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    content = bytearray(path.read_bytes())
    for head, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(head), bytes(content)):
            content[found.start() + flags] |= 1  # the bit that says encrypted
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"set.zip \(train/ant/00.png\): .*encrypted.*unpack the archive"):
        load(str(path))


def test_grey_pictures_alone_stay_grey(tmp_path):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    files = {
        f"{part}/{name}/{k}.png": picture(grey + k) for part in ("train", "test") for name in "ab" for k in range(3)
    }
    data = load(str(write(tmp_path, files)))
    assert data.shape == (1, 8, 8)
    assert np.array_equal(data.train.images[2, 0], grey + 2)
    assert data.notes == ()


def test_a_grey_picture_among_coloured_ones_becomes_rgb_and_the_manifest_says_so(tmp_path):
    folder, _ = pictures(tmp_path / "set")
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    write(folder, {"train/ant/00.png": picture(grey), "train/ant/01.jpg": picture(grey, "JPEG")})
    data = load(str(folder))
    assert np.array_equal(data.train.images[0], np.stack([grey] * 3))
    stored = manifest(get("mine", tmp_path / "root", folder))
    assert stored["notes"] == [
        "2 grey (e.g. train/ant/00.png), 39 in colour: the grey images were made RGB by three equal channels"
    ]
    assert load("mine", tmp_path / "root").notes == tuple(stored["notes"])


def test_a_coloured_picture_among_grey_ones_is_named(tmp_path):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    files = {f"{name}/{k:02}.png": picture(grey) for name in "ab" for k in range(30)}
    files["b/17.png"] = picture(np.stack([grey] * 3, axis=2))
    data = load(str(write(tmp_path, files)))
    assert data.shape == (3, 8, 8)
    assert (
        data.notes[0] == "59 grey, 1 in colour (e.g. b/17.png): the grey images were made RGB by three equal channels"
    )


def test_a_coloured_test_part_makes_a_grey_training_part_rgb(tmp_path):
    folder, _ = pictures(tmp_path, parts=("test/",))
    grey = np.zeros((8, 8), dtype=np.uint8)
    write(folder, {f"train/{name}/{k}.png": picture(grey) for name in ("ant", "bee") for k in range(4)})
    assert load(str(folder)).shape == (3, 8, 8)


def test_mixed_sizes_are_counted_and_an_example_of_each_is_named(tmp_path):
    folder, _ = pictures(tmp_path)
    write(folder, {"train/bee/99.png": picture(np.zeros((9, 5, 3), dtype=np.uint8))})
    with pytest.raises(DataError, match=r"2 sizes.*40 of 8 x 8.*1 of 5 x 9 \(e.g. .*99.png\)") as caught:
        load(str(folder))
    assert str(folder / "train/bee/99.png") in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_picture_is_named(tmp_path, damage):
    folder, files = pictures(tmp_path)
    bad = folder / "train/bee/05.png"
    bad.write_bytes({"cut": files["train/bee/05.png"][:120], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(DataError, match=re.escape(str(bad))):
        load(str(folder))


def test_transparent_pixels_are_an_error_and_an_opaque_alpha_channel_is_dropped(tmp_path):
    folder, _ = pictures(tmp_path)
    pixels = np.full((8, 8, 4), 255, dtype=np.uint8)
    pixels[..., 0] = 7
    write(folder, {"train/bee/00.png": picture(pixels)})
    assert load(str(folder)).train.images[10, :, 0, 0].tolist() == [7, 255, 255]
    pixels[3, 3, 3] = 0
    write(folder, {"train/bee/00.png": picture(pixels)})
    with pytest.raises(DataError, match=r"bee/00.png has transparent pixels"):
        load(str(folder))


@pytest.mark.parametrize(("mode", "colour"), [("1", 1), ("L", 7), ("RGB", (1, 2, 3))])
def test_one_colour_that_counts_as_transparent_is_seen(tmp_path, mode, colour):
    from PIL import Image

    path = tmp_path / "x.png"
    image = Image.new(mode, (8, 8), colour)
    image.save(path)
    assert decode(path.read_bytes(), "x.png").shape == (3 if mode == "RGB" else 1, 8, 8)
    image.save(path, transparency=colour)
    with pytest.raises(DataError, match=r"x.png has transparent pixels"):
        decode(path.read_bytes(), "x.png")


def test_sixteen_bits_are_an_error(tmp_path):
    folder, _ = pictures(tmp_path)
    write(folder, {"test/bee/00.png": picture(np.full((8, 8), 60_000, dtype=np.uint16))})
    with pytest.raises(DataError, match=r"bee/00.png has more than 8 bits"):
        load(str(folder))


def test_sixteen_bits_of_colour_are_an_error(tmp_path):
    """Pillow would take the upper eight: nearly black, where a camera wrote ten or twelve bits."""

    def chunk(kind, content):
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    size = (8).to_bytes(4, "big")
    rows = 8 * (b"\0" + np.full((8, 3), 1023, dtype=">u2").tobytes())
    head = chunk(b"IHDR", size + size + bytes([16, 2, 0, 0, 0]))
    content = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    folder, _ = pictures(tmp_path)
    write(folder, {"test/bee/00.png": content})
    with pytest.raises(DataError, match=r"bee/00.png has more than 8 bits"):
        load(str(folder))


def test_a_class_without_pictures_is_named(tmp_path):
    folder, _ = pictures(tmp_path)
    (folder / "train/cat").mkdir()
    with pytest.raises(DataError, match="no picture in the folder of cat"):
        load(str(folder))


def test_a_test_class_without_training_pictures_is_named(tmp_path):
    folder, files = pictures(tmp_path)
    write(folder, {"test/cat/1.png": files["test/ant/00.png"]})
    with pytest.raises(DataError, match="no class 'cat' in the training part"):
        load(str(folder))


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    folder, _ = pictures(tmp_path)
    closed = folder / "train/bee"
    if os.geteuid() == 0:  # root reads everything: the system's answer is played
        iterdir = type(closed).iterdir

        def refuse(path):
            if path == closed:
                raise PermissionError(13, "Permission denied", str(path))
            return iterdir(path)

        monkeypatch.setattr(type(closed), "iterdir", refuse)
    else:
        closed.chmod(0)
    try:
        with pytest.raises(DataError, match=rf"{re.escape(str(closed))} cannot be read or written \(Permission denied"):
            load(str(folder))
    finally:
        closed.chmod(0o755)


def test_several_sets_side_by_side_are_named(tmp_path):
    place, _ = pictures(tmp_path / "sets", parts=("one/train/", "one/test/", "two/train/"))
    with pytest.raises(DataError, match="there are 2 sets: one/, two/; name the folder of one of them"):
        load(str(place))
    assert len(load(str(place / "one")).test) == 20
    annotated, files = pictures(tmp_path / "annotated", parts=("images/train/", "images/test/"))
    write(annotated, {name.replace("images/", "labels/").replace(".png", ".txt"): b"1" for name in files})
    assert len(load(str(annotated)).train) == 20, "a folder without pictures is no set"


def test_empty_folders_of_a_test_part_alone_are_classes_and_others_without_pictures_are_not(tmp_path):
    place, _ = pictures(tmp_path / "set", classes=("bee", "cat"), parts=("test/",))
    (place / "test" / "ant").mkdir()
    data = load(str(place))
    assert data.classes == ("ant", "bee", "cat")
    assert set(data.test.labels) == {1, 2}
    write(place, {"test/annotations/a.xml": b"<a/>"})
    (place / "test" / "__pycache__").mkdir()
    with pytest.raises(DataError, match="no picture in the folder of __pycache__, annotations"):
        load(str(place))


def test_test_parts_without_a_training_part_are_no_classes(tmp_path):
    place, files = pictures(tmp_path / "set", parts=("val/", "Test/"), count=3)
    archive = tmp_path / "set.tgz"
    archive.write_bytes(tar({f"inside/{name}": data for name, data in files.items()}))
    for path, around in ((place, ""), (archive, "inside/")):
        data = load(str(path))
        assert data.classes == ("ant", "bee")
        assert (len(data.train), len(data.test)) == (0, 6)
        assert data.notes == (f"{around}Test/ is the test part; {around}val/ not used",)
        assert all(name.startswith(f"{around}Test/") for name in data.test_files)
    (tmp_path / "classes").mkdir()
    for name, pixels in files.items():  # pictures right in them: classes that are called so
        part, kind, number = name.split("/")
        write(tmp_path / "classes", {f"{part}/{kind}-{number}": pixels})
    assert load(str(tmp_path / "classes")).classes == ("Test", "val")


@pytest.mark.parametrize("parts", [("train/", "test/"), ("test/",), ("",)], ids=["both", "test alone", "drawn"])
def test_test_pictures_are_known_by_their_files(tmp_path, parts):
    place, files = pictures(tmp_path / "set", parts=parts)
    archive = tmp_path / "set.tgz"
    archive.write_bytes(tar(files))
    for data in (load(str(place)), load(str(archive)), load(str(get("mine", tmp_path / "root", place)))):
        assert len(set(data.test_files)) == len(data.test)
        for name, image, label in zip(data.test_files, data.test.images, data.test.labels, strict=True):
            assert data.classes[label] in name
            assert picture(image.transpose(1, 2, 0)) == files[name]
        assert data.files_of(np.array([3, 1])) == [data.test_files[3], data.test_files[1]]


def test_arrays_have_no_files(tmp_path):
    np.savez(tmp_path / "mine.npz", images=np.zeros((20, 4, 4), np.uint8), labels=np.arange(20) % 2)
    data = load(str(tmp_path / "mine.npz"))
    assert data.test_files == ()
    assert data.files_of(np.array([0])) is None
