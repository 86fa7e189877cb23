"""``dyart margins`` on a linear network in the working directory, and what it wrote."""

import csv

import torch

SOURCE = "import torch\ndef net(classes, shape):\n    return torch.nn.Linear(shape[0], classes)\n"


def words_there(place, monkeypatch):
    """Make a folder the working directory, with a linear network, and return the words that measure its margins."""
    (place / "margins_mine.py").write_text(SOURCE)
    monkeypatch.chdir(place)
    torch.save({"weight": torch.tensor([[-2.0, 1.0], [2.0, -1.0]]), "bias": torch.tensor([0.5, -0.5])}, "w.pt")
    return ["margins", "--model", "margins_mine:net", "--weights", "w.pt", "--data", "moons", "--device", "cpu"]


def rows(path="margins.csv"):
    with open(path) as file:
        return list(csv.DictReader(file))
