"""Sets that are not there: what was expected, and the command that gets them."""

import pytest

from dyart.data import DataError, MissingDataError, load


def test_a_folder_without_data_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"holds no data set; known are an .npz"):
        load(str(tmp_path))


def test_a_missing_set_says_the_command_that_gets_it(tmp_path):
    with pytest.raises(MissingDataError, match=f"cifar10 is not in {tmp_path}; get it with: dyart data get cifar10"):
        load("cifar10", tmp_path)


def test_the_command_names_a_folder_that_is_not_the_usual_one(tmp_path, monkeypatch):
    monkeypatch.setenv("DYART_DATA", str(tmp_path))
    for root in (None, tmp_path):
        with pytest.raises(MissingDataError, match=r"dyart data get cifar10$"):
            load("cifar10", root)
    with pytest.raises(MissingDataError, match=rf"dyart data get cifar10 --root '{tmp_path}/my data'$"):
        load("cifar10", tmp_path / "my data")


def test_an_unknown_name_gets_the_nearest(tmp_path):
    with pytest.raises(MissingDataError, match=r"no data set 'tiny_imagnet' \(did you mean 'tiny-imagenet'\?\)"):
        load("tiny_imagnet", tmp_path)
