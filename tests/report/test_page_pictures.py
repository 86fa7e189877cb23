"""The pictures inside the page: exact, in the right place, each once, and no larger than they may be."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from dyart.report.page.files import Pictures, read_pictures
from dyart.report.page.markup import script_json
from dyart.report.page.pictures import GALLERY, LARGEST, Wanted, sheets

ALL = 10**9


def wanted(count=40, channels=1, side=6, seed=0, margin=None):
    """Return random pictures, the names of their examples even numbers; steps of up to 20 grey levels."""
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 256, (count, channels, side, side)).astype(np.uint8)
    steps = random.integers(-20, 21, inputs.shape).astype(np.int16)
    index = np.arange(count) * 2
    return Wanted(Pictures(index, inputs, steps, np.ones(count)), index, np.arange(count) if margin is None else margin)


def decoded(uri: str) -> np.ndarray:
    head, _, content = uri.partition(",")
    assert head == "data:image/webp;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))


def tile(size: dict, image: np.ndarray, place: int) -> np.ndarray:
    row, column = divmod(place, size["columns"])
    height, width = size["height"], size["width"]
    return image[row * height : (row + 1) * height, column * width : (column + 1) * width].transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_and_step_of_every_example_can_be_read_back(channels):
    given = wanted(channels=channels, count=60)
    [size], [entry] = sheets([given], ALL)
    images, steps, made = decoded(size["uri"]), decoded(entry["sheet"]["steps"]), entry["sheet"]
    assert size["grey"] == (channels == 1)
    for row, place in enumerate(entry["place"]):
        assert (tile(size, images, made["at"][place])[:channels] == given.pictures.inputs[row]).all()
        step = (tile(size, steps, place)[:channels].astype(float) - 128) / made["levels"] * made["reach"][place]
        assert np.abs(step - given.pictures.steps[row]).max() <= 0.5 * 20 / made["levels"] + 1e-9


def test_an_example_of_several_runs_is_stored_once():
    one, other = wanted(), wanted()
    reverse = Wanted(other.pictures, other.index[::-1].copy(), other.margin)
    [size], [first, second] = sheets([one, reverse], ALL)
    assert size["count"] == 40
    assert [second["sheet"]["at"][place] for place in second["place"]] == list(range(39, -1, -1))
    assert [first["sheet"]["at"][place] for place in first["place"]] == list(range(40))


def test_images_of_two_sizes_have_two_sheets():
    examples, entries = sheets([wanted(), wanted(side=9, seed=1)], ALL)
    assert [(size["width"], size["count"]) for size in examples] == [(6, 40), (9, 40)]
    assert [entry["sheet"]["examples"] for entry in entries] == [0, 1]


def test_examples_without_a_picture_have_no_place():
    given = wanted(count=30)
    asked = Wanted(given.pictures, np.array([0, 1, 58, 7]), np.arange(4.0))
    assert sheets([asked], ALL)[1][0]["place"] == [0, -1, 1, -1]


def test_too_many_are_thinned_and_the_gallery_stays():
    margins = [np.random.default_rng(seed).permutation(300).astype(float) for seed in (1, 2)]
    runs = [wanted(count=300, margin=margin) for margin in margins]
    whole = len(script_json(sheets(runs, ALL)))
    examples, entries = sheets(runs, whole // 2)
    assert 0.8 * whole // 2 < len(script_json([examples, entries])) <= whole // 2, "no more is left out than must be"
    for margin, entry in zip(margins, entries, strict=True):
        places = np.array(entry["place"])
        assert (places[margin < GALLERY] >= 0).all()
        kept = np.sort(margin[places >= 0])
        assert GALLERY < len(kept) < 300
        assert np.diff(kept).max() < 20, "over all margins"
        assert kept[-1] > 280
    assert examples[0]["count"] < 300
    assert sheets(runs, 100) == ([], [])


def test_large_images_are_made_smaller():
    [size], _ = sheets([wanted(count=3, channels=3, side=2 * LARGEST)], ALL)
    assert (size["width"], size["height"]) == (LARGEST, LARGEST)


def test_steps_below_one_grey_level_are_kept_if_the_file_has_them(tmp_path):
    inputs = np.full((2, 1, 4, 4), 100, np.uint8)
    fine = np.full((2, 1, 4, 4), 127, np.int8)
    path = tmp_path / "dynamics.npz"

    def reach() -> list[float]:
        read = read_pictures(path)
        return sheets([Wanted(read, read.index, np.arange(2.0))], ALL)[1][0]["sheet"]["reach"]

    np.savez(path, index=[0, 1], inputs=inputs, points=inputs, steps=fine, scale=np.array([1e-5, 1e-3]) / 127)
    assert reach() == pytest.approx([255e-5, 255e-3])
    np.savez(path, index=[0, 1], inputs=inputs, points=inputs)
    assert reach() == [0.0, 0.0]


def test_arrays_that_do_not_belong_together_are_refused(tmp_path):
    path = tmp_path / "dynamics.npz"
    np.savez(path, index=[0], inputs=np.zeros((1, 5)), points=np.zeros((1, 5)))
    with pytest.raises(ValueError, match="uint8 images"):
        read_pictures(path)
