"""The hold-out of every kind of set, and the two records that carry a set."""

import dataclasses

import numpy as np
import pytest

from dyart.data import DataError, DataSet, Split, load
from dyart.data.raw import Raw
from dyart.data.sets import check_labels, drawn, first
from dyart.data.store import save

FIRST_OF_100_000 = [2, 166, 176, 268, 315]


def make(labels, holdout):
    images = np.zeros((len(labels), 3, 2, 5), dtype=np.uint8)
    return DataSet("set", Split(images, labels), Split(images[:4], labels[:4]), ("a", "b"), holdout)


def test_fit_and_holdout_share_nothing_and_cover_the_training_set():
    labels = np.arange(50_000) % 2
    data = make(labels, drawn(labels))
    assert len(data.holdout) == 1024
    assert len(data.fit) == 50_000 - 1024
    assert np.array_equal(np.sort(np.concatenate([data.fit, data.holdout])), np.arange(50_000))
    assert data.fit.dtype == data.holdout.dtype == np.int64


def test_the_first_of_a_set_in_random_order_are_trained_on_first():
    data = make(np.arange(2000) % 2, np.arange(200))
    assert np.array_equal(data.fit, np.arange(200, 2000))


@pytest.mark.parametrize("count", [50, 500])
def test_the_first_of_a_set_stored_class_by_class_are_a_fair_sample(count):
    """Both above and below the size at which the hold-out is a tenth of every class."""
    labels = np.repeat(np.arange(100), count)
    data = dataclasses.replace(make(labels, drawn(labels)), shuffled=False)
    assert np.array_equal(np.sort(np.concatenate([data.fit, data.holdout])), np.arange(100 * count))
    counts = np.bincount(labels[data.fit[:2000]], minlength=100)
    assert counts.min() >= 5, "every class, about 20 times"
    assert counts.max() <= 40
    again = dataclasses.replace(data, name="again")
    assert np.array_equal(again.fit, data.fit)


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_stored_set_remembers_its_order(tmp_path, shuffled):
    labels = np.repeat(np.arange(2), 100)
    images = np.random.RandomState(0).randint(0, 256, (200, 1, 2, 2), dtype=np.uint8)
    save(tmp_path / "mine", "mine", Raw(images, labels, images, labels, ("a", "b"), shuffled), "here", "by a test")
    part = load("mine", tmp_path).fit[:40]
    assert (np.bincount(labels[part], minlength=2).min() > 10) == (not shuffled)


def test_a_users_set_is_taken_to_be_in_any_order(tmp_path):
    labels = np.repeat(np.arange(4), 50)
    images = np.zeros((200, 1, 2, 2), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    data = load(str(tmp_path / "mine.npz"))
    assert np.bincount(data.train.labels[data.fit[:60]], minlength=4).min() > 5


def test_a_set_knows_the_shape_of_an_example_and_its_length():
    data = make(np.arange(20) % 2, np.arange(2))
    assert data.shape == (3, 2, 5)
    assert (len(data.train), len(data.test)) == (20, 4)


def test_a_set_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(np.arange(4) % 2, np.arange(1)).name = "other"


def test_a_set_in_random_order_gives_its_first_1024():
    assert np.array_equal(first(np.zeros(50_000, dtype=np.int64)), np.arange(1024))
    assert np.array_equal(first(np.zeros(10_240, dtype=np.int64)), np.arange(1024))
    assert np.array_equal(first(np.zeros(100, dtype=np.int64)), np.arange(10)), "a tenth of a small set"


def test_a_set_stored_class_by_class_gives_1024_of_the_permutation_of_seed_13():
    labels = np.repeat(np.arange(200), 500)
    expected = np.sort(np.random.RandomState(13).permutation(100_000)[:1024])
    assert np.array_equal(drawn(labels), expected)
    assert len(np.unique(labels[drawn(labels)])) > 190


def test_the_draw_is_the_same_for_ever():
    assert drawn(np.repeat(np.arange(200), 500))[:5].tolist() == FIRST_OF_100_000


def test_a_small_set_gives_a_tenth_of_each_class_and_at_least_one():
    labels = np.repeat([0, 1, 2, 3], [100, 30, 5, 1])
    counts = np.bincount(labels[drawn(labels)], minlength=4)
    assert counts.tolist() == [10, 3, 1, 0], "the only example of a class stays in training"


def test_a_class_of_a_large_set_that_is_drawn_whole_stays_in_training():
    order = np.random.RandomState(13).permutation(20_000)
    labels = np.zeros(20_000, dtype=np.int64)
    labels[order[[0, 1]]], labels[order[[2, 5_000]]] = 1, 2
    held = drawn(labels)
    assert np.array_equal(held, np.sort(order[2:1024]))
    assert np.bincount(np.delete(labels, held)).tolist() == [20_000 - 4 - 1021, 2, 1]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 2, 2], "no example of class 1"),
        ([1, 4], "no example of classes 0, 2, 3"),
        ([-1, 0], "from -1 to 0"),
        (range(-1, 9), r"from -1 to 8; they must begin at 0: .* numpy.unique\(labels, return_inverse=True\)\[1\]"),
        ([], "no examples"),
    ],
)
def test_labels_that_skip_a_class_are_named(labels, words):
    labels = np.array(labels, dtype=np.int64)
    with pytest.raises(DataError, match=words):
        check_labels(labels, int(labels.max(initial=0)) + 1, "the file")


def test_the_error_about_a_skipped_class_says_how_to_renumber():
    with pytest.raises(DataError, match=r"the file.*numpy.unique\(labels, return_inverse=True\)\[1\]"):
        check_labels(np.array([0, 2]), 3, "the file")


def test_labels_beyond_the_named_classes_are_an_error():
    with pytest.raises(DataError, match="0 to 3; with 3 classes"):
        check_labels(np.array([0, 1, 2, 3]), 3, "the file")
