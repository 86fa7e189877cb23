"""The boundary search as adv-lib's attacks are called."""

import inspect
import math

import pytest
import torch
from integration_cases import CLASSES, distances, examples, linear, predictions

from dyart.integrations import dyart_attack

NAMES = {1: "l1", 2: "l2", math.inf: "linf"}


@pytest.mark.parametrize("norm", NAMES)
def test_adversarial_examples_of_a_linear_classifier_are_the_closest(norm):
    model, inputs = linear(), examples()
    labels = predictions(model, inputs)
    adversarial = dyart_attack(model=model, inputs=inputs, labels=labels, norm=norm, targeted=False)
    assert (predictions(model, adversarial) != labels).all()
    expected = distances(model, inputs, NAMES[norm]).amin(dim=1)
    measured = torch.linalg.vector_norm(adversarial - inputs, norm, dim=1)
    torch.testing.assert_close(measured, expected, rtol=3e-2 if norm == 1 else 1e-3, atol=1e-5)
    assert torch.equal(adversarial, dyart_attack(model, inputs, labels, norm=NAMES[norm]))


@pytest.mark.parametrize("norm", [2, math.inf])
def test_targets_of_two_classes_are_reached_at_their_distance(norm):
    model, inputs = linear(classes=2), examples()
    own = predictions(model, inputs)
    adversarial = dyart_attack(model, inputs, 1 - own, norm, targeted=True)
    assert (predictions(model, adversarial) == 1 - own).all()
    expected = distances(model, inputs, NAMES[norm]).amin(dim=1)
    torch.testing.assert_close(
        torch.linalg.vector_norm(adversarial - inputs, norm, dim=1), expected, rtol=1e-3, atol=1e-5
    )


def test_targets_of_many_classes_are_reached_and_lie_no_closer_than_possible():
    model, inputs = linear(), examples()
    targets = (predictions(model, inputs) + 1) % CLASSES
    adversarial = dyart_attack(model, inputs, targets, 2, targeted=True)
    moved = (adversarial != inputs).any(dim=1)
    assert moved.float().mean() > 0.9
    assert (predictions(model, adversarial) == targets)[moved].all()
    bound = distances(model, inputs, "l2").gather(1, targets[:, None])[:, 0]
    assert (torch.linalg.vector_norm(adversarial - inputs, dim=1) >= bound - 1e-4)[moved].all()


@pytest.mark.parametrize("targeted", [False, True])
def test_what_is_adversarial_already_stays(targeted):
    model, inputs = linear(), examples()
    own = predictions(model, inputs)
    labels = own if targeted else (own + 1) % CLASSES
    assert torch.equal(dyart_attack(model, inputs, labels, targeted=targeted), inputs)


@pytest.mark.parametrize("norm", [0, 3, "l7"])
def test_other_norms_are_refused(norm):
    with pytest.raises(ValueError, match="no search in the norm"):
        dyart_attack(linear(), examples(), predictions(linear(), examples()), norm)


def test_arguments_are_those_of_adv_lib():
    reason = "adv_lib.attacks imports torchvision (no build for the CPU of the pinned torch) and visdom"
    attacks = pytest.importorskip("adv_lib.attacks", reason=reason, exc_type=ImportError)
    theirs, ours = inspect.signature(attacks.fmn).parameters, inspect.signature(dyart_attack).parameters
    assert list(ours)[:6] == list(theirs)[:6]
    model, inputs = linear(), examples()
    labels = predictions(model, inputs)
    other = attacks.fmn(model, inputs, labels, 2, steps=100)
    mine = dyart_attack(model, inputs, labels, 2, steps=100)
    fooled = predictions(model, other) != labels
    lengths = [torch.linalg.vector_norm(points - inputs, dim=1) for points in (mine, other)]
    assert (lengths[0] <= 1.001 * lengths[1])[fooled].all()
