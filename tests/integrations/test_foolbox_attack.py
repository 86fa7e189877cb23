"""The boundary search in foolbox: its own model, criteria and conventions."""

import warnings

import pytest
import torch
from integration_cases import CLASSES, distances, examples, linear, predictions
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    foolbox = pytest.importorskip("foolbox")

from dyart.integrations import ClosestBoundaryAttack

EPSILONS = [0.0, 0.01, 0.05, 0.2, None]


def wrapped(model, **options):
    return foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu", **options)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_success_at_every_epsilon_is_the_margin_below_it(norm):
    model, inputs = linear(), examples()
    labels, truth = predictions(model, inputs), distances(model, inputs, norm).amin(dim=1)
    raw, clipped, success = ClosestBoundaryAttack(norm=norm)(wrapped(model), inputs, labels, epsilons=EPSILONS)
    assert len(raw) == len(clipped) == len(EPSILONS)
    assert success.shape == (len(EPSILONS), len(inputs))
    assert success.dtype == torch.bool
    for points, epsilon, fooled in zip(clipped, EPSILONS, success, strict=True):
        limit = float("inf") if epsilon is None else epsilon
        clear = (truth - limit).abs() > 1e-3 * truth
        assert torch.equal(fooled[clear], (truth <= limit)[clear])
        assert torch.equal(fooled, predictions(model, points) != labels)
    assert torch.equal(raw[-1], clipped[-1])


def test_one_epsilon_gives_tensors():
    model, inputs = linear(), examples()
    labels = predictions(model, inputs)
    raw, clipped, success = ClosestBoundaryAttack(norm="l2")(wrapped(model), inputs, labels, epsilons=0.05)
    assert raw.shape == clipped.shape == inputs.shape
    assert success.shape == (len(inputs),)
    assert (torch.linalg.vector_norm(clipped - inputs, dim=1) <= 0.05 + 1e-6).all()


@pytest.mark.parametrize(("norm", "rival"), [("l2", "L2DeepFoolAttack"), ("linf", "LinfDeepFoolAttack")])
def test_no_farther_than_foolbox_own_search_on_a_network(norm, rival):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, CLASSES)).eval()
    inputs = examples(60)
    fmodel, labels = wrapped(model), predictions(model, inputs)
    attack, other = ClosestBoundaryAttack(norm=norm), getattr(foolbox.attacks, rival)()
    mine, _, success = attack(fmodel, inputs, labels, epsilons=None)
    theirs, _, their_success = other(fmodel, inputs, labels, epsilons=None)
    assert success[their_success].all()
    ours, others = (attack.distance(inputs, points)[their_success] for points in (mine, theirs))
    assert ours.mean() <= others.mean()


def test_preprocessing_and_bounds_of_the_model_count():
    """On inputs in [0, 255] with normalisation inside, distances are those of [0, 255]."""
    model, inputs = linear(), examples()
    labels, truth = predictions(model, inputs), distances(model, inputs, "l2").amin(dim=1)
    shifted = foolbox.PyTorchModel(model, bounds=(0, 255), device="cpu", preprocessing={"mean": 0.0, "std": 255.0})
    attack = ClosestBoundaryAttack(norm=2)
    raw, _, success = attack(shifted, 255 * inputs, labels, epsilons=None)
    assert success.all()
    torch.testing.assert_close(attack.distance(255 * inputs, raw), 255 * truth, rtol=1e-3, atol=1e-3)
    unit = shifted.transform_bounds((0, 1))
    raw, _, success = attack(unit, inputs, labels, epsilons=None)
    assert success.all()
    torch.testing.assert_close(attack.distance(inputs, raw), truth, rtol=1e-3, atol=1e-5)


def test_targets_and_wrapped_tensors():
    eagerpy = pytest.importorskip("eagerpy")
    model, inputs = linear(classes=2), examples()
    targets = 1 - predictions(model, inputs)
    criterion = foolbox.criteria.TargetedMisclassification(targets)
    raw, _, success = ClosestBoundaryAttack(norm="l2")(
        wrapped(model), eagerpy.astensor(inputs), criterion, epsilons=None
    )
    assert success.all()
    assert isinstance(raw, eagerpy.PyTorchTensor)
    assert torch.equal(predictions(model, raw.raw), targets)


def test_repeated_by_foolbox_and_printed():
    model, inputs = linear(), examples(10)
    labels = predictions(model, inputs)
    attack = ClosestBoundaryAttack(norm="l2", steps=20)
    once, _, _ = attack(wrapped(model), inputs, labels, epsilons=[None])
    twice, _, _ = attack.repeat(2)(wrapped(model), inputs, labels, epsilons=[None])
    assert torch.equal(once[0], twice[0])
    assert repr(attack) == "ClosestBoundaryAttack(norm=l2, steps=20, restarts=1, batch_size=None, seed=0)"


def test_what_it_cannot_do_is_said():
    model, inputs = linear(), examples(5)
    labels = predictions(model, inputs)
    either = foolbox.criteria.Misclassification(labels) & foolbox.criteria.TargetedMisclassification(labels)
    with pytest.raises(ValueError, match="unsupported criterion"):
        ClosestBoundaryAttack()(wrapped(model), inputs, either, epsilons=0.1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        ClosestBoundaryAttack()(wrapped(model), inputs, labels, epsilons=0.1, momentum=3)
    with pytest.raises(ValueError, match="no search in the norm"):
        ClosestBoundaryAttack(norm="l0")
