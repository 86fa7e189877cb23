"""What the two commands print, with rich and without."""

import builtins
import re

import numpy as np
import pytest
from data_cases import numbered, raw_set

from dyart.cli import main
from dyart.data import DataError, load
from dyart.data.commands import get_command, list_command
from dyart.data.store import save


@pytest.fixture(params=["rich", "plain"])
def look(request, monkeypatch):
    if request.param == "rich":
        pytest.importorskip("rich")
        monkeypatch.setenv("COLUMNS", "160")
        return request.param
    real = builtins.__import__

    def without_rich(name, *rest, **options):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    return request.param


def test_the_list_has_a_line_per_set(look, tmp_path, capsys):
    save(tmp_path / "mine", "mine", raw_set(), "a test", "nothing")
    list_command(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    by_name = {name: next(line for line in lines if name in line) for name in ("fashion-mini", "cifar100", "mine ")}
    assert "6,000" in by_name["fashion-mini"]
    assert "yes" in by_name["fashion-mini"]
    assert "no" in by_name["cifar100"].split()
    assert "1 x 4 x 4" in by_name["mine "]
    assert any(str(tmp_path) in line for line in lines)


def test_getting_tells_where_the_set_is_and_what_was_done(look, tmp_path, capsys):
    images, labels = numbered(60, 1, 4, 3)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    folder = get_command("mine", tmp_path / "root", tmp_path / "a.npz")
    out = capsys.readouterr().out
    assert f"mine: 48 training and 12 test images in {folder}" in out
    assert "note: no test part was given" in out


def test_a_set_from_other_files_is_replaced_only_where_that_is_asked_for(tmp_path):
    root = tmp_path / "root"
    for name, count in (("a", 30), ("b", 60)):
        images, labels = numbered(count, 1, 4, 3)
        np.savez(tmp_path / f"{name}.npz", train_images=images, train_labels=labels, test_images=images,
                 test_labels=labels)  # fmt: skip
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    get_command("mine", root, first)
    with pytest.raises(DataError) as refused:
        get_command("mine", root, second)
    assert str(refused.value) == (
        f"there is a set mine already, made from {first}: choose another name, or replace it with dyart data get mine "
        f"--root {root} --from {second} --replace"
    )
    with pytest.raises(DataError, match=re.escape(f"--from {second} --size 16x8 --replace")):
        get_command("mine", root, second, (16, 8))
    assert len(load("mine", root).train) == 30
    get_command("mine", root, tmp_path / "root" / ".." / "a.npz")  # the same file
    assert main(["data", "get", "mine", "--root", str(root), "--from", str(second), "--replace"]) == 0
    assert len(load("mine", root).train) == 60
    (root / "mine" / "test_labels.npy").unlink()
    get_command("mine", root, first)
    assert len(load("mine", root).train) == 30, "a damaged set is made again from anything"


def test_an_embedded_set_needs_nothing(look, tmp_path, capsys):
    get_command("fashion-mini", tmp_path)
    assert "comes with the package" in capsys.readouterr().out
