"""Which examples are right, and which stay so under PGD: the closed form on linear classifiers, in batches, cleanly."""

import pytest
import torch
from problems import linear_model, linear_truth, linear_truth_in_box, smooth_network, uniform
from side_effects import Counter, Failing, FailureError, Noise, assert_same, batch, in_mode, network, settings, snapshot
from torch import nn

from dyart.attacks.accuracy import PGD_STEPS, correct, resists_pgd

FEATURES, COUNT = 8, 60
INPUTS = uniform((COUNT, FEATURES), 4)


def labels_for(model, wrong=5):
    """Return the predictions, every fifth of them wrong."""
    labels = model(INPUTS).argmax(dim=1)
    labels[::wrong] = (labels[::wrong] + 1) % model(INPUTS).shape[1]
    return labels


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_a_linear_classifier_resists_exactly_below_its_margin(norm, quantile):
    model = linear_model(2, FEATURES)
    labels = labels_for(model)
    right = correct(model, INPUTS, labels)
    assert right.sum() == COUNT - 12
    margin = linear_truth(model, INPUTS, labels, norm).margin.float()
    radius = float(margin[right].quantile(quantile))
    # Near the radius itself rounding decides.
    sure = (margin - radius).abs() > 1e-4 * radius + (0.01 * radius if norm == "l2" else 0)
    resists = resists_pgd(model, INPUTS, labels, radius, norm=norm, bounds=None)
    assert sure.sum() > 0.9 * COUNT
    assert torch.equal(resists[sure], (right & (margin > radius))[sure])


def test_the_box_protects():
    model = linear_model(2, FEATURES)
    labels = labels_for(model)
    inputs = INPUTS.round()  # corners of the box: half of the ways are barred
    labels = model(inputs).argmax(dim=1)
    margin = linear_truth_in_box(model, inputs, labels, "linf", 0.0, 1.0).margin.float()
    radius = float(margin[margin.isfinite()].median()) * 1.001
    resists = resists_pgd(model, inputs, labels, radius)
    assert torch.equal(resists, ~(margin <= radius))
    assert resists.sum() > resists_pgd(model, inputs, labels, radius, bounds=None).sum()


MODEL = smooth_network(FEATURES, 4)
LABELS = labels_for(MODEL)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_batches_change_nothing(norm):
    whole = resists_pgd(MODEL, INPUTS, LABELS, 0.05, norm=norm, batch_size=COUNT)
    assert 0 < whole.sum() < correct(MODEL, INPUTS, LABELS).sum()
    for batch_size in (1, 7, 59, 1000):
        assert torch.equal(resists_pgd(MODEL, INPUTS, LABELS, 0.05, norm=norm, batch_size=batch_size), whole)
        assert torch.equal(correct(MODEL, INPUTS, LABELS, batch_size), MODEL(INPUTS).argmax(dim=1) == LABELS)


def test_what_resists_is_right_and_radius_zero_takes_nothing():
    right = correct(MODEL, INPUTS, LABELS)
    assert torch.equal(resists_pgd(MODEL, INPUTS, LABELS, 0.0), right)
    assert not (resists_pgd(MODEL, INPUTS, LABELS, 0.02) & ~right).any()
    assert not resists_pgd(MODEL, INPUTS, LABELS, 5.0, bounds=None).any()


def test_starts_are_the_examples_own_and_do_not_make_a_wrong_one_right():
    # Without steps, all is the start: it moves many examples across the boundary, in both directions.
    def attacked(batch_size):
        return resists_pgd(MODEL, INPUTS, LABELS, 0.6, steps=0, bounds=None, batch_size=batch_size)

    whole, right = attacked(COUNT), correct(MODEL, INPUTS, LABELS)
    assert 0 < whole.sum() < right.sum()
    assert torch.equal(attacked(7), whole)
    for label in range(4):
        labels = torch.full((COUNT,), label)
        resists = resists_pgd(MODEL, INPUTS, labels, 0.6, steps=0, bounds=None)
        assert not (resists & ~correct(MODEL, INPUTS, labels)).any()


def test_more_steps_break_no_less():
    kept = [int(resists_pgd(MODEL, INPUTS, LABELS, 0.05, steps=steps).sum()) for steps in (0, 2, 20)]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[-1]


def test_no_examples():
    for result in (correct(MODEL, INPUTS[:0], LABELS[:0]), resists_pgd(MODEL, INPUTS[:0], LABELS[:0], 0.1, norm="l2")):
        assert result.shape == (0,)
        assert result.dtype == torch.bool


def test_the_cost():
    calls = []

    def counting(x):
        calls.append(len(x))
        return MODEL(x)

    resists_pgd(counting, INPUTS, LABELS, 0.05, batch_size=COUNT)
    assert len(calls) == PGD_STEPS + 2


CALLS = {
    "correct": lambda model, x, y: correct(model, x, y, batch_size=3),
    "resists_pgd": lambda model, x, y: resists_pgd(model, x, y, 0.05, steps=2, bounds=None, batch_size=3),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", ["eval", "mixed"])
def test_the_model_is_left_as_it_was(call, mode):
    model = in_mode(network(Counter(), Noise()), mode)
    x, y = batch()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, world = snapshot(model), settings()
    CALLS[call](model, x, y)
    assert_same(before, snapshot(model))
    assert_same(world, settings())


class Modes(nn.Module):
    """Says in which mode it was called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(self.training)
        return x


@pytest.mark.parametrize("call", CALLS)
def test_eval_mode_is_used_and_restored(call):
    model = nn.Sequential(nn.Linear(FEATURES, 3), Modes()).train()
    CALLS[call](model, INPUTS[:5], LABELS[:5] % 3)
    assert not any(model[1].seen)
    assert model.training
    assert model[1].training


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_the_model_leaves_its_mode(call):
    model = nn.Sequential(nn.Linear(FEATURES, 3), Failing()).train()
    model[1].fail_at = 2
    with pytest.raises(FailureError):
        CALLS[call](model, INPUTS[:5], LABELS[:5] % 3)
    assert model.training
    assert model[1].training


@pytest.mark.parametrize("call", CALLS)
def test_under_no_grad_and_inference_mode(call):
    wanted = CALLS[call](MODEL, INPUTS, LABELS)
    with torch.no_grad():
        assert torch.equal(CALLS[call](MODEL, INPUTS, LABELS), wanted)
    with torch.inference_mode():
        assert torch.equal(CALLS[call](MODEL, INPUTS.clone(), LABELS.clone()), wanted)


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="norm must be one of 'linf', 'l2'; got 'l1'"):
        resists_pgd(MODEL, INPUTS, LABELS, 0.1, norm="l1")
