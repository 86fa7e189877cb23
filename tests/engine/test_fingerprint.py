"""A run goes on with the data that it was begun with, or says that it is other data."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import make_config

from dyart.cli import main
from dyart.data import load
from dyart.data.sets import DataSet, Split
from dyart.engine import fingerprint as fingerprints
from dyart.engine.fingerprint import fingerprint
from dyart.engine.run import train
from dyart.engine.stored import RunError
from dyart.recipes import resolve


def write(folder, name, first, count):
    from PIL import Image

    place = folder / "train" / name
    place.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.RandomState(number).randint(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:03d}.png")


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder of pictures and a recipe that trains on it."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("ant", "bee")):
        write(tmp_path / "mine", name, 100 * number, 12)
    shutil.copytree(tmp_path / "mine" / "train", tmp_path / "mine" / "test")
    (tmp_path / "mine.yaml").write_text(
        "base: fashion-mini-cnn-natural\ndata: {name: mine, crop: 0}\nmodel: {name: mlp}\n"
        "train: {epochs: 1, burn_in: 0, batch_size: 8, device: cpu, loggers: []}\neval: {attack: none, steps: 1}\n"
    )
    return tmp_path / "mine"


def test_pictures_that_were_added_after_a_training_are_noticed(pictures, tmp_path, capsys):
    run = tmp_path / "runs/d1"
    assert main(["train", "mine.yaml", "--out", "runs/d1", "--quiet"]) == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    write(pictures, "ant", 50, 5)
    on = ["train", "runs/d1", "--resume", "--train.epochs", "2", "--quiet"]
    capsys.readouterr()
    assert main(on) == 2
    said = capsys.readouterr().err
    assert "runs/d1 was begun with other data (examples 24 (now 29), other labels, other images" in said
    assert "Put mine back as it was, or begin another run with --out" in said
    assert len(said.splitlines()) == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    for number in range(50, 55):
        (pictures / "train/ant" / f"{number:03d}.png").unlink()
    assert main(on) == 0, capsys.readouterr().err


def test_a_run_without_a_fingerprint_goes_on_and_gets_one(pictures, tmp_path):
    assert main(["train", "mine.yaml", "--out", "runs/d1", "--quiet"]) == 0
    path = tmp_path / "runs/d1/environment.json"
    known = json.loads(path.read_text())
    known_by = known.pop("data")
    assert (known_by["examples"], known_by["shape"], known_by["classes"]) == (24, [3, 8, 8], 2)
    path.write_text(json.dumps(known))
    assert main(["train", "runs/d1", "--resume", "--train.epochs", "2", "--quiet"]) == 0
    assert json.loads(path.read_text())["data"] == known_by


def test_other_data_is_named_before_a_network_is_made_for_it(tmp_path):
    train(make_config(tmp_path))
    with pytest.raises(RunError, match=r"shape \[2\] \(now \[1, 28, 28\]\), classes 3 \(now 10\), other labels"):
        train(make_config(tmp_path, train_epochs=4), resume=True, data=load("fashion-mini"))


@pytest.mark.parametrize(
    ("part", "words"), [("images", "other auxiliary images:"), ("labels", "other auxiliary labels:")]
)
def test_other_auxiliary_images_are_refused(tmp_path, part, words):
    own = load("fashion-mini").train
    files = {"images": tmp_path / "more.npy", "labels": tmp_path / "more-labels.npy"}
    np.save(files["images"], own.images[:40])
    np.save(files["labels"], own.labels[:40])
    given = ["--data.auxiliary", str(files["images"]), "--data.auxiliary_labels", str(files["labels"])]
    words_of = ["--data.limit", "128", "--train.batch_size", "64", "--eval.steps", "1", "--train.device", "cpu"]

    def config(epochs):
        out = ["--train.epochs", str(epochs), "--out", str(tmp_path / "run")]
        return resolve("fashion-mini-cnn-natural", [*words_of, *given, *out])

    train(config(1))
    before = np.load(files[part])
    np.save(files[part], np.roll(before, 1, axis=0))
    with pytest.raises(RunError, match=f"was begun with {words} put them back"):
        train(config(2), resume=True)
    np.save(files[part], before)
    assert train(config(2), resume=True).position.epoch == 2


def altered(data, **parts):
    return replace(data, train=replace(data.train, **parts))


def test_what_differs_shows():
    data = load("three-blobs")
    known_by = fingerprint(data)
    assert fingerprint(load("three-blobs")) == known_by
    images, labels = data.train.images.copy(), data.train.labels.copy()
    images[777, 0] += 1e-3
    labels[[3, 4]] = labels[[4, 3]] + [0, 1]
    others = {
        "images": altered(data, images=images),
        "labels": altered(data, labels=labels),
        "holdout": replace(data, holdout=data.holdout[1:]),
        "names": replace(data, classes=data.classes[::-1]),
    }
    for name, other in others.items():
        assert {key for key, value in fingerprint(other).items() if value != known_by[key]} == {name}
    more = fingerprint(replace(data, classes=(*data.classes, "more")))
    assert {key for key, value in more.items() if value != known_by[key]} == {"classes", "names"}


class Counted(np.ndarray):
    """An array that counts the examples that are read."""

    read = 0

    def tobytes(self, order="C"):
        Counted.read += len(self)
        return super().tobytes(order)


@pytest.mark.parametrize("most", ["examples", "bytes"])
def test_of_a_large_set_a_few_images_are_read(monkeypatch, most):
    images = np.random.RandomState(0).randint(0, 256, (5000, 1, 4, 4), dtype=np.uint8)
    monkeypatch.setattr(fingerprints, "MOST_BYTES", images.nbytes - 1 if most == "examples" else 16 * 50)
    monkeypatch.setattr(Counted, "read", 0)
    labels = np.arange(5000) % 2
    data = DataSet("large", Split(images.view(Counted), labels), Split(images[:1], labels[:1]), ("a", "b"), labels[:0])
    known_by = fingerprint(data)
    assert 0 < Counted.read <= (fingerprints.SAMPLE if most == "examples" else 50)
    images[0] += 1
    assert fingerprint(data)["images"] != known_by["images"]


def test_the_same_images_in_another_layout_are_the_same():
    images = np.random.RandomState(0).randint(0, 256, (40, 3, 5, 4), dtype=np.uint8)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    labels = np.arange(40) % 2
    one, two = (DataSet("x", Split(x, labels), Split(x, labels), ("a", "b"), labels[:4]) for x in (images, last))
    assert fingerprint(one) == fingerprint(two)


def test_a_file_of_data_may_be_moved(pictures, tmp_path, capsys):
    assert main(["train", "mine.yaml", "--out", "runs/d1", "--quiet"]) == 0
    (tmp_path / "elsewhere").mkdir()
    pictures.rename(tmp_path / "elsewhere" / "mine")
    on = ["train", "runs/d1", "--resume", "--train.epochs", "2", "--quiet"]
    assert main(on) == 2
    assert "If it was moved, name its new place: --data.name" in capsys.readouterr().err
    assert main([*on, "--data.name", "elsewhere/mine"]) == 0, capsys.readouterr().err
    write(tmp_path / "elsewhere" / "mine", "ant", 50, 5)
    assert main([*on[:-2], "3", "--quiet", "--data.name", "elsewhere/mine"]) == 2
    assert "was begun with other data" in capsys.readouterr().err


def test_classes_in_another_order_are_not_measured(pictures, tmp_path, capsys):
    assert main(["train", "mine.yaml", "--out", "runs/d1", "--quiet"]) == 0
    images = np.random.RandomState(0).randint(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(10) % 2
    for name, classes in {"same": ["ant", "bee"], "turned": ["bee", "ant"], "other": ["cow", "dog"]}.items():
        np.savez(f"{name}.npz", images=images, labels=labels, classes=classes)
    evaluate = ["evaluate", "runs/d1", "--attack", "clean", "--data"]
    assert main([*evaluate, "same.npz"]) == 0
    capsys.readouterr()
    assert main([*evaluate, "turned.npz"]) == 2
    said = capsys.readouterr().err
    assert "was trained with the classes ant, bee, in this order; turned.npz has bee, ant" in said
    with pytest.warns(
        UserWarning, match=r"other\.npz has cow, dog: if these are other classes, the numbers mean nothing"
    ):
        assert main([*evaluate, "other.npz"]) == 0


def test_a_set_of_the_caller_s_own_gives_the_run_its_name(tmp_path):
    data = replace(load("three-blobs"), name="my-points")
    folder = tmp_path / "run"
    train(make_config(folder), data=data)
    assert "name: my-points" in (folder / "config.yaml").read_text()
    assert train(make_config(folder, train_epochs=4), resume=True, data=data).epochs == 4
    assert "name: my-points" in (folder / "config.yaml").read_text()
