"""A network that names one class for all: its accuracies are said to say nothing."""

import pytest
import torch
from torch import nn

import dyart
from dyart.evaluation.guessing import guessing

INPUTS, LABELS = torch.rand(40, 6), torch.tensor([0] * 37 + [1, 2, 1])


def constant(x):
    return torch.stack([3 + 0 * x[:, 0], x[:, 0], x[:, 1]], dim=1)


@pytest.mark.parametrize("attack", ["clean", "margins", "pgd"])
def test_an_evaluation_says_that_a_network_guesses(attack):
    result = dyart.evaluate(constant, INPUTS, LABELS, [0.05], attack)
    (note,) = [note for note in result.notes if "every example is predicted" in note]
    assert note.startswith("every example is predicted as class 0, which is the label of 92.5% of them:")
    assert "tells no classes apart on these examples, and its accuracies say nothing about robustness" in note


def test_what_is_said_holds_where_an_attack_lowers_the_accuracy():
    network = nn.Linear(6, 3)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([0.0, 1.0, 0.0])[:, None].expand(3, 6))
        network.bias.copy_(torch.tensor([0.0, -5.5, -99.0]))  # class 1 where all features are nearly 1
    result = dyart.evaluate(network, INPUTS, LABELS, [0.01, 0.95], "pgd")
    assert list(result.robust_accuracy.values()) == [result.clean_accuracy, 0.0]
    (note,) = [note for note in result.notes if "every example is predicted" in note]
    assert "no attack" not in note


def test_nothing_is_said_of_others():
    assert guessing([0, 0, 1], [0, 0, 0]) is None
    assert guessing([2, 2, 2], [2, 2, 2]) is None, "examples of one class may all be right"
    assert guessing([], []) is None
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    labels = network(INPUTS).argmax(dim=1)
    assert not any("predicted as" in note for note in dyart.evaluate(network, INPUTS, labels, [0.05], "pgd").notes)
