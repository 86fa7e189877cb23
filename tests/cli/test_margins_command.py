"""``dyart margins``: which examples, which settings, and what is refused before a search."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_cases import run
from margins_cases import rows, words_there

from dyart.cli import main
from dyart.data import load

IMAGES = (
    "import torch\ndef net(classes, shape):\n"
    "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))\n"
)


@pytest.fixture
def linear(tmp_path, monkeypatch):
    """Words for the margins of a linear network in the working directory, whose answer is known."""
    return words_there(tmp_path, monkeypatch)


def test_margins_are_right_and_named_by_the_places_of_the_examples(capsys, linear):
    status, out, err = run(capsys, *linear, "--count", "50", "--seed", "3")
    assert status == 0, err
    data = load("moons")
    table = rows()
    places = [int(row["index"]) for row in table]
    assert len(set(places)) == 50
    assert max(places) > 60, "not the first fifty"
    assert [int(row["label"]) for row in table] == data.test.labels[places].tolist()
    for row, x in zip(table, data.test.images[places], strict=True):
        phi = abs((-4 * x[0] + 2 * x[1] + 1.0).item())
        if row["found"] == "1" and row["verdict"] == "locally optimal":
            assert float(row["margin"]) == pytest.approx(phi / 6, rel=0.02), "L-inf distance of a line inside the box"
    nearest = min((row for row in table if row["found"] == "1"), key=lambda row: float(row["margin"]))
    assert f"example {nearest['index']}," in out


def test_the_json_beside_it_says_how_the_numbers_were_made(capsys, linear):
    words = ["--count", "40", "--radii", "0.02,8/255", "--steps", "20", "--norm", "linf", "--model-args", "classes=2"]
    status, _, err = run(capsys, *linear, *words, "--out", "here.csv")
    assert status == 0, err
    record = json.loads(Path("here.json").read_text())
    network = record["settings"].pop("network")
    assert len(network) == 16
    assert record["settings"] == {
        "model": "margins_mine:net",
        "model_args": {"classes": 2},
        "weights": "w.pt",
        "count": 40,
        "seed": 0,
        "device": "cpu",
        "norm": "linf",
        "boundary": "exact",
        "steps": 20,
        "restarts": 1,
        "solver": "fast",
        "batch_size": 256,
    }
    assert record["classes"] == list(load("moons").classes)
    assert record["data"] == "moons"
    assert {"dyart", "torch", "python"} <= record["versions"].keys()
    table = rows("here.csv")
    summary = record["summary"]
    assert summary["examples"] == len(table) == 40
    assert summary["found"] == sum(row["found"] == "1" for row in table)
    assert summary["accuracy"] == pytest.approx(np.mean([row["correct"] == "1" for row in table]))
    beyond = np.mean([row["inside"] == "1" and float(row["margin"]) > 8 / 255 for row in table])
    assert summary["robust"]["8/255"] == pytest.approx(beyond)
    low, high = summary["intervals"]["8/255"]
    assert low < beyond < high


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--radii", "8"], "did you mean 8/255?"),
        (["--radii", "0.1,1"], "the radius 1 is as large as the box"),
        (["--radii", "8", "--norm", "l2"], "the radius 8 is as large as the box"),
        (["--radii", "-0.1"], "positive"),
        (["--radii", "0"], "positive"),
        (["--count", "-3"], "--count"),
    ],
    ids=" ".join,
)
def test_radii_and_counts_that_cannot_be_meant_are_refused(capsys, linear, words, expected, tmp_path):
    words = [f"{words[0]}={words[1]}", *words[2:]]
    status, _, err = run(capsys, *linear, *words)
    assert status == 2
    assert expected in err
    assert not (tmp_path / "margins.csv").exists()


def test_a_large_l2_radius_inside_the_box_is_accepted(capsys, linear):
    assert run(capsys, *linear, "--norm", "l2", "--radii", "1.2", "--count", "20", "--steps", "5")[0] == 0


def test_examples_of_a_set_stored_class_by_class_are_of_all_classes(capsys, tmp_path, monkeypatch):
    """The first images of a folder are all of its first class."""
    generator = np.random.RandomState(0)
    labels = np.repeat(np.arange(4), 30)
    images = generator.randint(0, 256, (120, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    (tmp_path / "margins_images.py").write_text(IMAGES)
    monkeypatch.chdir(tmp_path)
    words = ["--model", "margins_images:net", "--data", "set.npz", "--count", "20", "--steps", "3", "--device", "cpu"]
    status, _, err = run(capsys, "margins", *words)
    assert status == 0, err
    assert {row["label"] for row in rows()} == {"0", "1", "2", "3"}


def test_what_is_wrong_with_a_network_is_said_before_the_search(capsys, linear, tmp_path):
    (tmp_path / "margins_flat.py").write_text(
        "import torch\nclass Flat(torch.nn.Linear):\n"
        "    def forward(self, x):\n        return super().forward(x.round(decimals=1))\n"
        "def net():\n    return Flat(2, 2)\n"
    )
    words = ["margins", "--model", "margins_flat:net", "--data", "moons", "--device", "cpu"]
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "exactly zero for every example" in err
    assert not (tmp_path / "margins.csv").exists()


def test_every_option_has_a_help_text(capsys):
    with pytest.raises(SystemExit):
        main(["margins", "--help"])
    out = capsys.readouterr().out
    described = {line.split()[0]: line for line in out.splitlines() if line.startswith("  --")}
    assert len(described) > 15
    bare = []
    lines = out.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("  --") and "model NAME --" not in line:
            text = line.split("  ")
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            if len([part for part in text if part.strip()]) < 2 and not follows.startswith("      "):
                bare.append(line)
    assert bare == []


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Images and labels without parts, and words for a network that tells all of them by their first row."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first_row.py").write_text(
        "import torch\n"
        "def net(classes, shape):\n"
        "    layer = torch.nn.Linear(64, classes, bias=False)\n"
        "    layer.weight.data = torch.eye(classes, 64)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), layer)\n"
    )
    labels = np.arange(40) % 4
    pictures = np.random.RandomState(0).randint(0, 100, (40, 8, 8), dtype=np.uint8)
    pictures[np.arange(40), 0, labels] = 250 - np.arange(40)
    words = ["--model", "first_row:net", "--device", "cpu", "--data", "mine.npz"]
    return pictures, labels, words


@pytest.mark.parametrize("command", ["margins", "evaluate"])
def test_examples_of_a_file_without_a_test_part_are_named_by_their_rows(capsys, images, command):
    pictures, labels, words = images
    np.savez("mine.npz", images=pictures, labels=labels)
    words += ["--attack", "margins", "--radii", "0.01"] if command == "evaluate" else []
    status, _, err = run(capsys, command, *words)
    assert status == 0, err
    table = rows("margins.csv" if command == "margins" else "evaluation-first_row-net/per_example.csv")
    assert len(table) == 8, "a fifth"
    assert max(int(row["index"]) for row in table) > 8
    for row in table:
        place = int(row["index"])
        image = pictures[place].astype(float) / 255
        rival = max(image[0, k] for k in range(4) if k != labels[place])
        assert int(row["label"]) == labels[place]
        assert float(row["margin"]) == pytest.approx((image[0, labels[place]] - rival) / 2, rel=0.01)
    first = ", ".join(row["index"] for row in table[:3])
    assert f"8 of 40 examples, a fifth of each class and at least one, became it (rows {first}, ..." in err
    assert "only these are measured" in err
    assert "test_images" in err
    place = "margins.json" if command == "margins" else "evaluation-first_row-net/evaluation.json"
    record = json.loads(Path(place).read_text())
    assert any("no test part" in note for note in record["notes"])


@pytest.mark.parametrize("command", ["margins", "evaluate"])
def test_pictures_are_named_by_their_files(capsys, images, command):
    image = pytest.importorskip("PIL.Image")
    pictures, labels, words = images
    for place, (pixels, label) in enumerate(zip(pictures, labels, strict=True)):
        file = Path("mine.npz/test", f"class{label}", f"{place}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(file)
    words += ["--attack", "margins", "--radii", "0.01", "--out", "found"] if command == "evaluate" else []
    status, out, err = run(capsys, command, *words, "--count", 9)
    assert status == 0, err
    table = rows("margins.csv" if command == "margins" else "found/per_example.csv")
    assert len(table) == 9
    for row in table:
        place = int(Path(row["file"]).stem)
        rival = max(pictures[place][0, k] for k in range(4) if k != labels[place])
        assert float(row["margin"]) == pytest.approx((pictures[place][0, labels[place]] - rival) / 510, rel=0.01)
    if command == "margins":
        nearest = min(table, key=lambda row: float(row["margin"]))
        assert f"example {nearest['index']} ({nearest['file']}), class {nearest['label']} ({nearest['class']}):" in out
        assert {row["rival_class"] for row in table} <= {f"class{k}" for k in range(4)}
    assert "labels by the folders' names, in alphabetical order: 0 class0, 1 class1, 2 class2, 3 class3" in err


def test_folders_of_some_of_a_networks_classes_are_mentioned_and_empty_ones_count(capsys, images):
    image = pytest.importorskip("PIL.Image")
    pictures, _, words = images
    for name in ("ant", "cat"):
        file = Path("mine.npz/test", name, "1.png")
        file.parent.mkdir(parents=True)
        image.fromarray(pictures[0]).save(file)
    words += ["--model-args", "classes=4"]
    status, _, err = run(capsys, "margins", *words)
    assert status == 0, err
    assert "has 4 outputs, and mine.npz 2 folders" in err
    Path("mine.npz/test/bee").mkdir()
    status, _, err = run(capsys, "margins", *words, "--out", "second.csv")
    assert status == 0, err
    assert [row["label"] for row in rows("second.csv")] == ["0", "2"]


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_names_of_some_of_a_networks_classes_are_mentioned_and_all_may_be_named(capsys, images, kind):
    pictures, labels, words = images
    names, kept = np.array(["ant", "bee", "cat", "dog"]), labels != 0
    arrays = {"test_images": pictures[kept], "test_labels": names[labels[kept]]}

    def save(**more):
        if kind == "npz":
            return np.savez("mine.npz", **arrays, **more)
        Path("mine.npz").mkdir(exist_ok=True)
        for name, array in (arrays | more).items():
            np.save(f"mine.npz/{name}.npy", array)

    save()
    words += ["--model-args", "classes=4", "--steps", "2"]
    status, _, err = run(capsys, "margins", *words)
    assert status == 0, err
    assert "labels by their names, in alphabetical order: 0 bee, 1 cat, 2 dog" in err
    assert "has 4 outputs, and mine.npz 3 names: if others of its classes come before one of these" in err
    assert "save the names of all classes, in the order of its outputs, as an array classes beside the labels" in err
    save(classes=names)
    status, _, err = run(capsys, "margins", *words, "--out", "second.csv")
    assert status == 0, err
    assert "these labels are wrong" not in err
    assert {row["correct"] for row in rows("second.csv")} == {"1"}


def test_digits_as_labels_of_some_of_a_networks_classes_are_mentioned(capsys, images):
    pictures, labels, words = images
    np.savez("mine.npz", test_images=pictures, test_labels=np.array(["1", "2", "10", "11"])[labels])
    status, _, err = run(capsys, "margins", *words, "--model-args", "classes=12", "--steps", "2")
    assert status == 0, err
    assert "labels by their names, in the order of these numbers: 0 1, 1 2, 2 10, 3 11" in err
    assert "has 12 outputs, and mine.npz 4 names" in err
    assert "if they are numbers of outputs, save labels.astype(int)" in err


@pytest.mark.parametrize("command", ["margins", "evaluate"])
def test_a_test_part_alone_is_measured_whole(capsys, images, command):
    pictures, labels, words = images
    np.savez("mine.npz", test_images=pictures[:-10], test_labels=labels[:-10])
    words += ["--attack", "margins", "--radii", "0.01"] if command == "evaluate" else []
    status, _, err = run(capsys, command, *words, "--model-args", "classes=5")
    assert status == 0, err
    table = rows("margins.csv" if command == "margins" else "evaluation-first_row-net/per_example.csv")
    assert [int(row["index"]) for row in table] == list(range(30))
    assert "no test part" not in err
    status, _, err = run(capsys, command, *words, "--model-args", "classes=3")
    assert status == 2
    assert "gives 3 logits, mine.npz has 4 classes" in err


def test_what_is_quick_to_see_is_said_before_the_data_is_looked_for(capsys, images):
    """Nobody downloads a set to be told of a misspelt name."""
    words = ["margins", "--device", "cpu", "--data", "cifar10", "--model"]
    for file in ("weights.pt", "notes.txt"):
        Path(file).write_bytes(b"")
    expected = {
        "first_row:net --weights weigths.pt": "did you mean weights.pt?",
        "first_row:net --weights other.bin": "did you mean weights.pt?",
        "first_row:net --weights .": ". is a folder",
        "first_row:nett": "did you mean 'net'?",
        "third_row:net": "there is no module 'third_row'",
    }
    for text, part in expected.items():
        status, _, err = run(capsys, *words, *text.split())
        assert status == 2
        assert part in err, text


def test_the_closest_are_kept_as_pictures_for_a_page(capsys, images, monkeypatch):
    from dyart.cli import margins
    from dyart.report.page.files import read_pictures

    monkeypatch.setattr(margins, "PICTURES", 5)
    pictures, labels, words = images
    np.savez("mine.npz", test_images=pictures, test_labels=labels)
    assert run(capsys, "margins", *words)[0] == 0
    table = sorted(rows(), key=lambda row: float(row["margin"]))
    kept = read_pictures(Path("margins.pictures.npz"))
    assert kept.index.tolist() == [int(row["index"]) for row in table[:5]]
    for index, image, steps, unit, row in zip(kept.index, kept.inputs, kept.steps, kept.unit, table, strict=False):
        assert (image[0] == pictures[index]).all()
        assert abs(steps * unit).max() / 255 == pytest.approx(float(row["margin"]), rel=0.01)
    assert run(capsys, "report", ".")[0] == 0
    assert "Most vulnerable" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("bias", "guesses"), [(9.0, True), (0.5, False)])
def test_a_network_that_predicts_one_class_for_all_is_said_to(capsys, linear, bias, guesses):
    torch.save({"weight": torch.tensor([[-2.0, 1.0], [2.0, -1.0]]), "bias": torch.tensor([bias, -bias])}, "w.pt")
    status, _, err = run(capsys, *linear, "--count", "50")
    assert status == 0, err
    right = np.mean([int(row["label"]) == 0 for row in rows()])
    said = f"every example is predicted as class 0, which is the label of {right:.1%} of them: the network tells no"
    assert (said in err) == guesses
    assert ("is predicted as" in err) == guesses


def test_a_record_is_json_where_nothing_was_found(capsys, linear):
    words = ["--count", "20", "--cross-check", "--steps", "2", "--out", "none.csv"]
    images = load("moons").test.images[:40]
    np.savez("wrong.npz", test_images=images, test_labels=(2 * images[:, 0] - images[:, 1] < 0.5).astype(np.int64))
    assert run(capsys, *linear, *words, "--data", "wrong.npz")[0] == 0

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    record = json.loads(Path("none.json").read_text(), parse_constant=refuse)
    assert record["cross_check"] == {"agree": 0, "both": 0, "ratio": None}
