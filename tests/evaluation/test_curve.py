"""Robust accuracy against radius: counted by hand, falling, whatever the order of the radii."""

import dataclasses
import math

import pytest
import torch
from problems import linear_model, linear_truth_in_box, smooth_network, uniform
from torch import nn

import dyart
from dyart.attacks.accuracy import correct, resists_pgd
from dyart.attacks.radius import Radius
from dyart.evaluation.curve import accuracy_from_margins

INPUTS = uniform((80, 6), 2)
MODEL = smooth_network(6, 4)
with torch.no_grad():
    LABELS = MODEL(INPUTS).argmax(dim=1)
LABELS[::7] = (LABELS[::7] + 1) % 4
RADII = [Radius("8/255"), 0.0, 0.3, 0.01, Radius("4/255"), 0.1, 0.01]


def search(model=MODEL, inputs=INPUTS, labels=LABELS, **options):
    return dyart.closest_boundary_points(model, inputs, labels, steps=30, **options)


FOUND = search()


def with_margins(margins, right):
    """Return results with these margins, and which examples are right."""
    rows = torch.tensor(right)
    found = FOUND[torch.arange(len(right))]
    return dataclasses.replace(found, margin=torch.tensor(margins), correct=rows, inside=rows, found=rows)


def test_counted_by_hand():
    nan = math.nan
    # right and far, right and near, right without a found point, wrong, right at exactly a radius
    found = with_margins([0.5, 0.1, nan, nan, 0.25], [True, True, True, False, True])
    assert accuracy_from_margins(found, [0, 0.1, 0.2, 0.25, 0.3, 9.0]) == pytest.approx(
        {0: 0.8, 0.1: 0.6, 0.2: 0.6, 0.25: 0.4, 0.3: 0.4, 9.0: 0.2}
    )


def test_a_margin_of_exactly_the_radius_is_within_it_also_after_rounding():
    found = with_margins([8 / 255, 0.1], [True, True])
    assert found.margin.dtype == torch.float32
    assert accuracy_from_margins(found, [Radius("8/255"), 0.1]) == {8 / 255: 0.5, 0.1: 0.0}


def test_a_wrong_example_never_counts_whatever_its_margin():
    found = dataclasses.replace(
        with_margins([0.5, 0.5], [True, False]), inside=torch.tensor([True, False]), found=torch.tensor([True, True])
    )
    assert accuracy_from_margins(found, [0.1]) == {0.1: 0.5}


def test_an_example_on_the_boundary_is_not_robust():
    # All logits equal: the first class wins the tie, and no distance is left.
    flat = nn.Linear(6, 4)
    nn.init.zeros_(flat.weight)
    nn.init.zeros_(flat.bias)
    found = search(flat, INPUTS[:5], torch.zeros(5, dtype=torch.long))
    assert found.correct.all()
    assert not found.inside.any()
    assert accuracy_from_margins(found, [0.0, 0.1]) == {0.0: 0.0, 0.1: 0.0}


def test_a_classifier_that_never_changes_its_mind_is_robust():
    constant = nn.Linear(6, 2)
    nn.init.zeros_(constant.weight)
    with torch.no_grad():
        constant.bias.copy_(torch.tensor([0.0, 3.0]))
    labels = torch.tensor([1, 1, 1, 0])
    assert accuracy_from_margins(search(constant, INPUTS[:4], labels), [0.5, 2.0]) == {0.5: 0.75, 2.0: 0.75}


def test_margins_of_the_soft_boundary_are_refused():
    with pytest.raises(ValueError, match="exact boundary, got 'soft'"):
        accuracy_from_margins(search(boundary="soft"), [0.1])


def test_a_curve_falls_and_keeps_the_order_and_the_words_of_the_radii():
    curve = accuracy_from_margins(FOUND, RADII)
    assert list(curve) == [8 / 255, 0.0, 0.3, 0.01, 4 / 255, 0.1]
    assert str(next(iter(curve))) == "8/255"
    values = [curve[radius] for radius in sorted(curve)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    assert curve[0.0] == pytest.approx(float(correct(MODEL, INPUTS, LABELS).float().mean()))
    assert all(accuracy_from_margins(FOUND, [radius]) == {radius: curve[radius]} for radius in curve)
    assert accuracy_from_margins(FOUND, []) == {}
    assert all(type(value) is float for value in curve.values())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_margins_and_pgd_are_the_closed_form_on_a_linear_classifier(norm):
    model = linear_model(2, 6)
    labels = model(INPUTS).argmax(dim=1)
    margin = linear_truth_in_box(model, INPUTS, labels, norm, 0.0, 1.0).margin.float()
    labels[::9] = 1 - labels[::9]
    right = model(INPUTS).argmax(dim=1) == labels
    ordered = margin[right & margin.isfinite()].sort().values
    gaps = (ordered[1:] - ordered[:-1]).topk(4).indices
    radii = [float((ordered[i] + ordered[i + 1]) / 2) for i in gaps]
    wanted = {radius: float((right & ~(margin <= radius)).float().mean()) for radius in radii}
    found = search(model, INPUTS, labels, norm=norm)
    assert accuracy_from_margins(found, radii) == pytest.approx(wanted)
    if norm == "linf":  # in l2, clipping to the box is no projection: PGD may stop short of the closest corner
        assert all(float(resists_pgd(model, INPUTS, labels, r).float().mean()) == share for r, share in wanted.items())
