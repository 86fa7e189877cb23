"""Training a network of one's own from the command line: one that does not fit is named, and nothing is written."""

import re

import pytest
from cli_cases import TINY, run

MINE = """
import torch
def wrong(classes):
    return torch.nn.Linear(5, classes)
def two():
    return torch.nn.Linear(2, 2)
class Auxiliary(torch.nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        return (logits, -logits) if self.training else logits
def auxiliary(classes):
    return Auxiliary(2, classes)
class Logits(torch.nn.Sequential):
    forward = lambda self, x: self[0](x)[0] if self.training else self[0](x)
def wrapped(classes):
    return Logits(Auxiliary(2, classes))
class More(torch.nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        return torch.cat([logits, -logits], dim=1) if self.training else logits
def more(classes):
    return More(2, classes)
class Broken(torch.nn.Linear):
    def forward(self, x):
        return {}["a key"] if self.training else super().forward(x)
def broken(classes):
    return Broken(2, classes)
"""


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("wrong", "fails on inputs of shape 2"),
        ("two", "gives 2 logits, three-blobs has 3 classes"),
        ("more", "gives 6 logits in training mode, three-blobs has 3 classes"),
        ("broken", "KeyError: 'a key'"),
        ("auxiliary", "own_auxiliary:auxiliary, in training mode: the model returned tuple; it must return a tensor"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_named_before_anything_is_written(
    capsys, tmp_path, monkeypatch, factory, expected
):
    (tmp_path / f"own_{factory}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "--model.name", f"own_{factory}:{factory}", "--out", "run"]
    status, _, err = run(capsys, "train", "fashion-mini-cnn-at", *words)
    assert status == 2
    assert expected in err
    assert not (tmp_path / "run").exists()


def test_a_network_of_auxiliary_outputs_trains_in_the_wrapper_that_the_refusal_names(capsys, tmp_path, monkeypatch):
    (tmp_path / "own_wrapped.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    _, _, err = run(capsys, "train", "fashion-mini-cnn-at", *TINY, "--model.name", "own_wrapped:auxiliary")
    advised = re.search(r"end the line with: (.*)\), by which .*forward = (.*)", err)
    assert f"forward = {advised[2]} {advised[1]}" in MINE
    assert run(capsys, "train", "fashion-mini-cnn-at", *TINY, "--model.name", "own_wrapped:wrapped")[0] == 0


def test_a_network_that_returns_probabilities_is_mentioned_in_training(capsys, tmp_path, monkeypatch):
    lines = "import torch\ndef net(classes):\n    layers = torch.nn.Linear(2, classes), torch.nn.Softmax(dim=1)\n"
    (tmp_path / "own_softmax.py").write_text(lines + "    return torch.nn.Sequential(*layers)\n")
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "--out", "run", "--quiet"]
    status, out, err = run(capsys, "train", "fashion-mini-cnn-at", *words, "--model.name", "own_softmax:net")
    assert status == 0, err
    assert "the outputs of model.name own_softmax:net are probabilities" in out + err
    status, out, err = run(capsys, "train", "fashion-mini-cnn-at", *words[:-2], "other", "--quiet")
    assert status == 0, err
    assert "probabilities" not in out + err
