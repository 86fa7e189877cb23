"""Data sets of arrays and tensors of one's own."""

import numpy as np
import pytest
import torch
from data_cases import numbered

from dyart.data import DataError, from_arrays, load


def test_arrays_and_tensors_are_a_set_as_a_file_of_them_is(tmp_path):
    (train_images, train_labels), (others, more) = numbered(60, 3, 7, 3), numbered(30, 3, 7, 3)
    np.savez(tmp_path / "mine.npz", images=train_images, labels=train_labels, test_images=others, test_labels=more)
    of_file = load(str(tmp_path / "mine.npz"))
    images, labels, test_images, test_labels = map(torch.from_numpy, (train_images, train_labels, others, more))
    data = from_arrays(images, labels, test_images, test_labels, classes=["ant", "bee", "cow"], name="insects")
    assert np.array_equal(data.train.images, of_file.train.images)
    assert np.array_equal(data.test.labels, of_file.test.labels)
    assert np.array_equal(data.holdout, of_file.holdout)
    assert (data.name, data.classes) == ("insects", ("ant", "bee", "cow"))
    assert from_arrays(images, labels).test_rows is not None
    with pytest.raises(DataError, match=r"own \(training labels\): no example of class 0"):
        from_arrays(images, labels + 1, test_images, test_labels)
