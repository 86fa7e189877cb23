"""Pictures of several sizes: refused with the way on, and brought to one size where that is asked for."""

import re
import shlex

import numpy as np
import pytest
from data_cases import numbered, picture, pictures, write

from dyart.cli import main
from dyart.data import DataError, get, load
from dyart.data.pictures import fitted
from dyart.data.store import manifest

pytest.importorskip("PIL")


@pytest.fixture
def mixed(tmp_path):
    """Forty pictures of 8 x 8, one of 12 x 24 with a square of its own in the middle, and a grey one of 4 x 4."""
    folder, _ = pictures(tmp_path / "my set")
    wide = np.zeros((12, 24, 3), np.uint8)
    wide[:, 6:18] = (10, 200, 30)
    write(folder, {"train/bee/98.png": picture(wide), "test/ant/99.png": picture(np.full((4, 4), 77, np.uint8))})
    return folder


def test_the_middle_is_kept_and_shrunk_to_the_size(mixed, tmp_path):
    plain = load(str(pictures(tmp_path / "plain")[0]))
    data = load("mine", get("mine", tmp_path / "root", mixed, size=(8, 8)).parent)
    assert (len(data.train), len(data.test), data.shape) == (21, 21, (3, 8, 8))
    assert np.array_equal(data.train.images[:20], plain.train.images), "those of the size keep their pixels"
    green = np.array([10, 200, 30], np.uint8)[:, None, None]
    assert (data.train.images[20][:, :, 1:-1] == green).all(), "the sides show at the edges alone"
    assert (data.train.images[20] > green / 2).all()
    assert (data.test.images[10] == 77).all()


def test_what_was_done_is_noted_and_kept_with_the_set(mixed, tmp_path):
    folder = get("mine", tmp_path / "root", mixed, size=(8, 8))
    words = "2 of 42 images were cut to the shape of 8 x 8 (width x height) around their centre and resized to it"
    assert manifest(folder)["notes"][0] == f"{words} (bilinear); 1 of them were smaller, and are enlarged"
    assert load("mine", folder.parent).notes[0].startswith(words)
    same = get("same", tmp_path / "root", pictures(tmp_path / "plain")[0], size=(8, 8))
    assert manifest(same)["notes"] == []


def test_another_size_of_the_same_folder_is_made_anew(mixed, tmp_path):
    for size in ((8, 8), (6, 5), (8, 8)):
        folder = get("mine", tmp_path / "root", mixed, size=size)
        assert load("mine", folder.parent).shape == (3, size[1], size[0])
    with pytest.raises(DataError, match="3 sizes"):
        get("mine", tmp_path / "root", mixed)
    assert load("mine", tmp_path / "root").shape == (3, 8, 8), "what was stored stays"


def test_a_drawn_test_part_is_still_what_the_last_note_is_about(tmp_path):
    folder, _ = pictures(tmp_path / "set", parts=("",))
    data = load("mine", get("mine", tmp_path / "root", folder, size=(4, 4)).parent)
    assert data.notes[0].startswith("20 of 20 images were cut")
    assert data.notes[-1].startswith("no test part was given")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("width", "height"), [(7, 5), (30, 40), (64, 3), (20, 10)])
def test_pictures_are_those_of_resizing_the_shorter_side_and_cutting_the_centre(channels, width, height):
    from PIL import Image

    ramp = np.linspace(0, 255, 60 * 90).reshape(60, 90).astype(np.uint8)
    pixels = np.stack([ramp, ramp[::-1], ramp[:, ::-1]])[:channels]
    found = fitted(pixels, (width, height))
    assert found.shape == (channels, height, width)
    assert found.dtype == np.uint8
    scale = max(width / 90, height / 60)
    left, top = (90 - width / scale) / 2, (60 - height / scale) / 2
    for channel, expected in zip(found, pixels, strict=True):
        box = (left, top, 90 - left, 60 - top)
        whole = Image.fromarray(expected).resize((width, height), Image.Resampling.BILINEAR, box=box)
        assert np.abs(channel.astype(int) - np.asarray(whole)).max() <= 1


def test_the_error_names_a_command_that_goes_on(mixed, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DYART_DATA", str(tmp_path / "root"))
    for name, call in (("NAME", lambda: load(str(mixed))), ("mine", lambda: get("mine", source=mixed))):
        with pytest.raises(DataError, match=r"3 sizes \(width x height\): 40 of 8 x 8") as caught:
            call()
        found = re.search(r"dyart (data get \S+ --from '[^']+' --size N)", str(caught.value))
        assert found[1].split()[2] == name
    words = shlex.split(found[1].removesuffix("N") + "8x6")
    assert main(words) == 0
    assert "note: 42 of 42 images were cut to the shape of 8 x 6" in capsys.readouterr().out
    assert load("mine").shape == (3, 6, 8)


def test_a_size_is_for_pictures_of_ones_own(tmp_path):
    images, labels = numbered(60, 1, 4, 3)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(DataError, match="holds arrays, whose images have one size: leave --size out"):
        get("mine", tmp_path, tmp_path / "a.npz", size=(8, 8))
    for name in ("cifar10", "fashion-mini", "moons"):
        with pytest.raises(DataError, match=f"{name} has a size of its own: leave --size out"):
            get(name, tmp_path, size=(8, 8))
    with pytest.raises(DataError, match="at least 1 pixel"):
        get("mine", tmp_path, tmp_path, size=(8, 0))


@pytest.mark.parametrize("size", ["0", "-3", "8x", "8x8x8", "big", "8.5", "100000"])
def test_what_is_no_size_is_refused(capsys, size):
    with pytest.raises(SystemExit):
        main(["data", "get", "mine", "--from", ".", f"--size={size}"])
    assert f"--size: pixels are needed, e.g. 64, or 64x48 for width and height; got {size!r}" in capsys.readouterr().err
