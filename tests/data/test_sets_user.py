"""A user's own arrays: what is read, and what is said about the rest."""

import os
import re

import numpy as np
import pytest
import torch
from data_cases import numbered, pictures

from dyart.data import DataError, get, load
from dyart.data.loader import Loader
from dyart.engine.run import prepare
from dyart.engine.stored import RunError
from dyart.recipes import resolve

pytest.importorskip("PIL")


def four(train=60, test=20, **options):
    images, labels = numbered(train, classes=3, **options)
    test_images, test_labels = numbered(test, classes=3, seed=1, **options)
    return {"train_images": images, "train_labels": labels, "test_images": test_images, "test_labels": test_labels}


def npz(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


KERAS = ("x_train", "y_train", "x_test", "y_test")


@pytest.mark.parametrize("names", [None, KERAS, [name.upper() for name in KERAS]], ids=["ours", "keras", "capitals"])
def test_an_npz_file_is_read_under_either_set_of_names(tmp_path, names):
    arrays = four()
    data = load(str(npz(tmp_path, **dict(zip(names or arrays, arrays.values(), strict=True)))))
    assert np.array_equal(data.train.images, arrays["train_images"])
    assert np.array_equal(data.test.labels, arrays["test_labels"])
    assert data.classes == ("0", "1", "2")
    assert data.train.labels.dtype == np.int64
    assert np.bincount(data.train.labels[data.holdout]).tolist() == [2, 2, 2], "a tenth of each class"


def test_a_class_without_a_test_example_is_noted(tmp_path):
    arrays = four()
    arrays["test_labels"] = np.where(arrays["test_labels"] == 1, 2, arrays["test_labels"])
    data = load(str(npz(tmp_path, **arrays, classes=["ant", "bee", "cow"])))
    assert "no test example of bee: accuracies are of the other 2 classes" in data.notes
    assert load(str(npz(tmp_path, **four()))).notes == ()


def test_names_as_pandas_has_them_are_explained(tmp_path):
    arrays = four()
    arrays["train_labels"] = np.array([f"class {label}" for label in arrays["train_labels"]], dtype=object)
    with pytest.raises(DataError, match=r"save names as labels\.astype\(str\)"):
        load(str(npz(tmp_path, **arrays)))


def test_a_folder_of_npy_files_is_read(tmp_path):
    arrays = four()
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    data = load(str(tmp_path))
    assert np.array_equal(data.train.images, arrays["train_images"])


@pytest.mark.parametrize("layout", ["grey", "last", "first", "vectors"])
def test_a_folder_of_npy_files_stays_on_the_disk(tmp_path, layout):
    images, labels = numbered(60, 1 if layout == "grey" else 3, 7, 3)
    points = np.random.RandomState(0).rand(60, 5).astype(np.float32)
    saved = {"grey": images[:, 0], "last": images.transpose(0, 2, 3, 1), "first": images, "vectors": points}[layout]
    saved = np.ascontiguousarray(saved)
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_images.npy", saved)
        np.save(tmp_path / f"{part}_labels.npy", labels)
    data = load(str(tmp_path))
    for part in (data.train, data.test):
        assert isinstance(part.images, np.memmap), "not read until a batch needs it"
        assert part.images.base is not None
        assert np.array_equal(part.images, points if layout == "vectors" else images)
        assert type(part.labels) is np.ndarray
    whole, streamed = (list(Loader(data.train, data.fit, 9, 0, residency=r).epoch(0)) for r in ("device", "stream"))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(whole, streamed, strict=True))


@pytest.mark.parametrize("layout", ["grey", "last", "first"])
def test_every_layout_becomes_channels_first(tmp_path, layout):
    images, labels = numbered(60, 1 if layout == "grey" else 3, 7, 3)
    saved = {"grey": images[:, 0], "last": images.transpose(0, 2, 3, 1), "first": images}[layout]
    data = load(str(npz(tmp_path, train_images=saved, train_labels=labels, test_images=saved, test_labels=labels)))
    assert np.array_equal(data.train.images, images)


def test_a_pair_without_a_test_part_gives_a_fifth_of_each_class_for_it_and_says_so(tmp_path):
    images, labels = numbered(300, 1, 4, 3)
    data = load(str(npz(tmp_path, images=images, labels=labels[:, None])))
    assert np.bincount(data.test.labels).tolist() == [20, 20, 20]
    together = {image.tobytes() for image in np.concatenate([data.train.images, data.test.images])}
    assert together == {image.tobytes() for image in images}
    assert any("no test part" in note for note in data.notes)
    assert np.array_equal(images[data.test_rows], data.test.images), "the rows of the file are known"
    assert np.array_equal(data.rows_of(np.array([2, 0])), data.test_rows[[2, 0]])
    stored = load("mine", get("mine", tmp_path / "root", tmp_path / "mine.npz").parent)
    assert np.array_equal(stored.test_rows, data.test_rows), "also once it is stored"


def test_a_set_with_a_test_part_is_named_by_places_in_it(tmp_path):
    data = load(str(npz(tmp_path, **four())))
    assert data.test_rows is None
    assert data.rows_of(np.array([3, 1])).tolist() == [3, 1]


@pytest.mark.parametrize("kind", ["npz", "npy", "pictures", "stored"])
def test_a_test_part_alone_is_a_set_to_measure_on(tmp_path, kind):
    images, labels = numbered(20, 3, 8, 2)
    if kind == "pictures":
        place, _ = pictures(tmp_path / "set", parts=("test/",))
    elif kind == "npy":
        place = tmp_path
        np.save(tmp_path / "x_test.npy", images)
        np.save(tmp_path / "y_test.npy", labels)
    else:
        place = npz(tmp_path, test_images=images, test_labels=labels)
    place = get("mine", tmp_path / "root", place) if kind == "stored" else place
    data = load(str(place))
    assert (len(data.train), len(data.test), len(data.classes)) == (0, 20, 2)
    assert data.shape == (3, 8, 8)
    assert data.test_rows is None
    with pytest.raises(RunError, match=r"has a test part alone: training needs train_images"):
        prepare(resolve("fashion-mini-cnn-at", ["--data.name", str(place), "--train.device", "cpu"]))


def test_a_test_part_alone_need_not_show_every_class(tmp_path):
    images, _ = numbered(4, 1, 4)
    labels = np.array([0, 3, 3, 7])
    assert len(load(str(npz(tmp_path, test_images=images, test_labels=labels))).classes) == 8
    named = load(str(npz(tmp_path, test_images=images, test_labels=labels, classes=np.array(list("abcdefghij")))))
    assert named.classes == tuple("abcdefghij")
    with pytest.raises(DataError, match="labels go up to 9,999,999"):
        load(str(npz(tmp_path, test_images=images, test_labels=labels + 9_999_992)))


@pytest.mark.parametrize(
    ("white", "dtype", "words"),
    [
        (1, np.float32, r"go from 0 to 1, so save \(images \* 255\).round\(\).astype\(numpy.uint8\)$"),
        (16, np.float64, r"if 16 is white, save \(images \* \(255 / 16\)\).round"),
        (16, np.int64, r"if 16 is white, save \(images \* \(255 / 16\)\).round"),
        (255, np.float32, r"so save images.round\(\).astype\(numpy.uint8\)$"),
        (65535, np.uint16, r"if 65535 is white, save"),
        (-1, np.float32, r"undo the normalisation.*--mean and --std"),
    ],
)
def test_images_of_another_type_get_the_advice_that_makes_them_right(tmp_path, white, dtype, words):
    images = (np.linspace(0, 1, 60 * 16).reshape(60, 4, 4) * white).astype(dtype)
    path = npz(tmp_path, images=images, labels=np.arange(60) % 3)
    with pytest.raises(DataError, match=words):
        load(str(path))
    if white > 0:  # as the message says
        scale = 1 if white == 255 else 255 / white
        saved = (images * scale).round().astype(np.uint8)
        data = load(str(npz(tmp_path, images=saved, labels=np.arange(60) % 3)))
        assert data.train.images.max() == 255
        assert not any("white" in note for note in data.notes)


@pytest.mark.parametrize(("white", "noted"), [(1, True), (16, True), (127, True), (200, False), (255, False)])
def test_bytes_with_another_white_get_a_note(tmp_path, white, noted):
    images = (np.arange(60 * 16).reshape(60, 4, 4) % (white + 1)).astype(np.uint8)
    for arrays in ({"images": images, "labels": np.arange(60) % 3}, {"x_test": images, "y_test": np.arange(60) % 3}):
        notes = load(str(npz(tmp_path, **arrays))).notes
        assert any(f"largest number in the images is {white}," in note for note in notes) == noted


def test_flat_bytes_are_told_what_they_could_be(tmp_path):
    path = npz(tmp_path, images=np.zeros((60, 64), np.uint8), labels=np.arange(60) % 3)
    with pytest.raises(
        DataError, match=r"shape \(60, 64\): for images save them as \[N, H, W\], for vectors as x / 255"
    ):
        load(str(path))
    np.save(tmp_path / "x.npy", np.zeros((60, 8, 8), np.uint8))
    with pytest.raises(DataError, match="is one array: name the folder"):
        load(str(tmp_path / "x.npy"))


def test_names_as_labels_become_numbers_in_alphabetical_order(tmp_path):
    images, labels = numbered(60, 1, 4, 3)
    words = np.array(["cat", "ant", "bee"])
    data = load(str(npz(tmp_path, images=images, labels=words[labels])))
    assert data.classes == ("ant", "bee", "cat")
    match = {image.tobytes(): words[label] for image, label in zip(images, labels, strict=True)}
    assert [data.classes[label] for label in data.test.labels] == [match[i.tobytes()] for i in data.test.images]


@pytest.mark.parametrize("alone", [True, False], ids=["test part alone", "both parts"])
def test_digits_as_labels_are_ordered_as_numbers(tmp_path, alone):
    images, _ = numbered(12, 1, 4)
    labels = np.array(["0", "1", "10", "11", "2", "9"] * 2)
    arrays = {"test_images": images, "test_labels": labels}
    data = load(str(npz(tmp_path, **arrays, **({} if alone else {"train_images": images, "train_labels": labels}))))
    assert data.classes == ("0", "1", "2", "9", "10", "11")
    assert data.test.labels.tolist() == [0, 1, 4, 5, 2, 3] * 2
    assert data.numbered_by == "digits"


def test_names_of_both_parts_are_numbered_together(tmp_path):
    arrays, words = four(), np.array(["ant", "bee", "cat"])
    of_training, of_test = words[arrays["train_labels"]], np.array(["cat", "bee"] * 10)
    data = load(str(npz(tmp_path, **(arrays | {"train_labels": of_training, "test_labels": of_test}))))
    assert data.test.labels.tolist() == [2, 1] * 10, "though the test part has no ant"
    with pytest.raises(DataError, match=r"test labels \['dog'\] have no training example"):
        load(str(npz(tmp_path, **(arrays | {"train_labels": of_training, "test_labels": np.array(["dog"] * 20)}))))


@pytest.mark.parametrize("stored", [False, True], ids=["file", "stored"])
@pytest.mark.parametrize("kind", ["names", "classes", "numbers", "folders"])
def test_a_set_says_whose_order_its_labels_are_in(tmp_path, kind, stored):
    images, labels = numbered(20, 3, 8, 2)
    if kind == "folders":
        place, _ = pictures(tmp_path / "set", parts=("test/",))
    else:
        words = {} if kind == "names" else {"classes": np.array(["b", "a"])}
        given = labels if kind == "numbers" else np.array(["b", "a"])[labels]
        place = npz(tmp_path, test_images=images, test_labels=given, **words)
    data = load(str(get("mine", tmp_path / "root", place) if stored else place))
    assert data.numbered_by == (kind if kind in ("names", "folders") else "")


@pytest.mark.parametrize("kind", ["U", "S"])
def test_names_as_labels_become_numbers_in_the_order_of_the_classes(tmp_path, kind):
    words = np.array(["cat", "ant", "bee"]).astype(kind)
    arrays = four()
    labels = {key: words[arrays[key]] for key in ("train_labels", "test_labels")}
    data = load(str(npz(tmp_path, **(arrays | labels), classes=words)))
    assert data.classes == ("cat", "ant", "bee")
    assert np.array_equal(data.train.labels, arrays["train_labels"])
    assert np.array_equal(data.test.labels, arrays["test_labels"])
    mixed = labels | {"test_labels": labels["test_labels"].astype("U" if kind == "S" else "S")}
    assert np.array_equal(load(str(npz(tmp_path, **(arrays | mixed)))).test.labels, (arrays["test_labels"] + 2) % 3)


def test_names_of_classes_may_be_bytes(tmp_path):
    assert load(str(npz(tmp_path, **four(), classes=np.array([b"ant", b"bee", b"cat"])))).classes == (
        "ant",
        "bee",
        "cat",
    )


def test_vectors_in_the_unit_box_are_allowed(tmp_path):
    points = np.random.RandomState(0).rand(60, 5)
    data = load(str(npz(tmp_path, images=points, labels=np.arange(60) % 3)))
    assert data.shape == (5,)
    assert data.train.images.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"train_labels": np.where(np.arange(60) % 3 == 1, 2, np.arange(60) % 3)},
            "no example of class 1,.*numpy.unique",
        ),
        ({"train_labels": np.arange(59) % 3}, "60 training images and 59 labels"),
        ({"train_labels": np.eye(3)[np.arange(60) % 3]}, r"labels have shape \(60, 3\)"),
        ({"train_labels": np.arange(60) / 3}, "labels have type float64"),
        ({"train_labels": np.zeros(60, dtype=int), "test_labels": np.zeros(20, dtype=int)}, "1 class;"),
        ({"test_labels": np.full(20, 3)}, "test labels go from 3 to 3"),
        ({"train_labels": np.arange(60) % 10 - 1}, "labels from -1 to 8; they must begin at 0: .*numpy.unique"),
        ({"train_labels": np.arange(60) % 2 - 1}, "labels from -1 to 0; they must begin at 0: .*numpy.unique"),
        ({"test_labels": np.arange(20) % 4 - 1}, "test labels go from -1 to 2; they must begin at 0: .* alike"),
        ({"train_images": np.zeros((60, 3, 32, 32), dtype=np.float32)}, r"float32; uint8.*\* 255"),
        ({"train_images": np.zeros((60, 5, 32, 32), dtype=np.uint8)}, "neither axis 1 nor axis 3"),
        ({"train_images": np.zeros((60, 3, 32, 3), dtype=np.uint8)}, "could both be the channels"),
        ({"train_images": np.zeros((60, 3, 16, 16), dtype=np.uint8)}, "both must have one shape"),
        ({"train_images": np.zeros(60, dtype=np.uint8)}, r"shape \(60,\)"),
        (
            {"train_images": np.zeros((0, 3, 32, 32), np.uint8), "train_labels": np.zeros(0, int)},
            "no training examples",
        ),
        (
            {"train_images": np.where(np.arange(60)[:, None] > 57, np.nan, np.ones((60, 2)))},
            "2 rows have NaN .* first is 58",
        ),
        ({"train_images": np.full((60, 2), 1.5)}, r"lie in \[0, 1\], found 1.5"),
        ({"classes": np.array(["a", "b", "c", "d"])}, "no example of class 3"),
        ({"classes": np.array(["a", "b"])}, "0 to 2; with 2 classes"),
        ({"classes": np.array(3)}, r"classes have shape \(\); one name per class is needed, or leave them out"),
        (
            {"test_labels": np.array(["a"] * 20)},
            "training labels have type int64, test labels <U1; use numbers in both",
        ),
        (
            {
                "train_labels": np.array(["a", "b", "c"] * 20),
                "test_labels": np.array(["a"] * 20),
                "classes": np.array(["a", "b"]),
            },
            r"the labels \['c'\] are not among the classes \['a', 'b'\]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arrays_are_described(tmp_path, change, words):
    path = npz(tmp_path, **(four() | change))
    with pytest.raises(DataError, match=words) as caught:
        load(str(path))
    assert str(path) in str(caught.value)


def test_missing_arrays_are_named(tmp_path):
    with pytest.raises(DataError, match="has the arrays 'pixels'; needed are train_images"):
        load(str(npz(tmp_path, pixels=np.zeros(3))))
    arrays = four()
    del arrays["test_labels"]
    with pytest.raises(DataError, match="has test_images and no y_test or test_labels that belong to it"):
        load(str(npz(tmp_path, **arrays)))


@pytest.mark.parametrize("names", ["val_images val_labels", "X_val y_val", "x_valid y_valid", "x_testing y_testing"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside a training part"])
def test_a_part_for_validation_is_the_test_part_as_in_a_folder_of_pictures(tmp_path, names, alone):
    arrays = four()
    held = dict(zip(names.split(), (arrays.pop("test_images"), arrays.pop("test_labels")), strict=True))
    data = load(str(npz(tmp_path, **held, **({} if alone else arrays))))
    assert (len(data.train), len(data.test)) == (0 if alone else 60, 20)
    assert np.array_equal(data.test.images, next(iter(held.values())))
    assert data.test_rows is None
    assert data.notes == ()


@pytest.mark.parametrize("kind", ["npz", "npy", "test part alone"])
def test_of_two_test_parts_one_is_used_and_the_other_mentioned(tmp_path, kind):
    arrays = four() | dict(zip(("val_images", "val_labels"), numbered(30, classes=3, seed=2), strict=True))
    if kind == "npy":
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
    used = {name: array for name, array in arrays.items() if kind == "npz" or not name.startswith("train")}
    data = load(str(tmp_path if kind == "npy" else npz(tmp_path, **used)))
    assert np.array_equal(data.test.images, arrays["test_images"])
    assert data.notes == ("test_images and test_labels are the test part; val_images, val_labels not used",)


def test_half_a_part_for_validation_is_an_error_and_no_reason_to_draw_one(tmp_path):
    images, labels = numbered(60, classes=3)
    with pytest.raises(DataError, match="has x_val and no y_val or val_labels that belong to it; give both or neither"):
        load(str(npz(tmp_path, images=images, labels=labels, x_val=images)))
    with pytest.raises(DataError, match=r"has x_test and no y_test .* \(val is the test part then\)"):
        load(str(npz(tmp_path, images=images, labels=labels, x_test=images, x_val=images, y_val=labels)))


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_a_truncated_array_file_is_named(tmp_path, kind):
    if kind == "npz":
        path = npz(tmp_path, **four())
    else:
        path = tmp_path / "train_images.npy"
        np.save(path, four()["train_images"])
        np.save(tmp_path / "train_labels.npy", four()["train_labels"])
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match=re.escape(str(path))):
        load(str(path if kind == "npz" else tmp_path))


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_a_pickle_inside_an_array_file_is_refused_and_runs_nothing(tmp_path, kind):
    target = tmp_path / "made-by-the-pickle"
    images = np.array([Evil(target)], dtype=object)
    if kind == "npz":
        path = npz(tmp_path, train_images=images, train_labels=np.zeros(1, dtype=int))
    else:
        path = tmp_path / "train_images.npy"
        np.save(path, images)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} is .* no "):
        load(str(path if kind == "npz" else tmp_path))
    assert not target.exists()


def test_a_file_that_is_no_archive_is_not_offered_to_pickle(tmp_path):
    (tmp_path / "mine.npz").write_text("hello")
    with pytest.raises(DataError, match=r"mine\.npz is no \.npz archive") as error:
        load(str(tmp_path / "mine.npz"))
    assert "pickle" not in str(error.value)


def test_too_few_images_for_a_test_part(tmp_path):
    np.savez(tmp_path / "mine.npz", images=np.zeros((5, 8, 8, 1), np.uint8), labels=np.arange(5))
    with pytest.raises(DataError, match=r"5 examples of 5 classes are too few to draw a test part from; give test_im"):
        load(str(tmp_path / "mine.npz"))
