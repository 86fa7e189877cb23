"""margin_loss: rows without a point, masked or damaged rows, and batches without any."""

import dataclasses

import pytest
import torch
from gradient_checks import BOUNDARIES, NORMS, assert_all_close, gradients_of, linear, search, with_unfound_rows
from networks import smooth_network, uniform

import dyart


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_rows_without_a_point_add_exactly_nothing(norm, boundary):
    model = smooth_network()
    x = uniform(24, 12, dtype=torch.float64)
    labels = torch.arange(24) % 4
    found = search(model, x, labels, norm=norm, boundary=boundary)
    assert 2 <= found.found.sum() <= 20
    cost = dyart.ExponentialCost(3.0, 10.0)
    per_row = dyart.margin_loss(model, found, cost, reduction="none")
    assert (per_row[~found.found] == 0).all()
    assert (per_row[found.found] > 0).all()
    # Their forward pass takes part, their gradient does not.
    unused = gradients_of(dyart.margin_loss(model, found, cost, reduction="none")[~found.found].sum(), model)
    assert all((gradient == 0).all() for gradient in unused)
    alone = dyart.margin_loss(model, found[found.found], cost, reduction="sum")
    assert_all_close(
        gradients_of(dyart.margin_loss(model, found, cost, reduction="sum"), model), gradients_of(alone, model), 1e-9
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_masked_rows_add_exactly_nothing(reduction):
    model, found = with_unfound_rows()
    cost = dyart.ExponentialCost(3.0, 1.0)
    mask = torch.arange(10) < 5  # rows 0, 2 and 4 are left
    got = dyart.margin_loss(model, found, cost, reduction=reduction, mask=mask)
    keep = torch.tensor([0, 2, 4])
    per_row = dyart.margin_loss(model, found[keep], cost, reduction="none")
    if reduction == "none":
        assert (got[~mask] == 0).all()
        torch.testing.assert_close(got[keep], per_row)
        got, scale = got.sum(), 1.0
    else:
        scale = 0.1 if reduction == "mean" else 1.0
    wanted = scale * per_row.sum()
    torch.testing.assert_close(got, wanted)
    assert_all_close(gradients_of(got, model), gradients_of(wanted, model), 1e-9)


def test_a_mask_cannot_bring_back_rows_without_a_point():
    model, found = with_unfound_rows()
    cost = dyart.ExponentialCost(3.0, 1.0)
    everything = torch.ones(10, dtype=torch.bool)
    got = dyart.margin_loss(model, found, cost, reduction="none", mask=everything)
    torch.testing.assert_close(got, dyart.margin_loss(model, found, cost, reduction="none"), rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["margin", "gradient", "zero gradient", "all"])
def test_damaged_rows_never_bring_nan(damage):
    model, found = with_unfound_rows()
    row = torch.arange(10) == 2
    margin, gradient = found.margin, found.gradient
    if damage in ("margin", "all"):
        margin = torch.where(row, torch.nan, margin)
    if damage in ("gradient", "all"):
        gradient = torch.where(row[:, None], torch.nan, gradient)
    if damage == "zero gradient":
        gradient = torch.where(row[:, None], 0.0, gradient)
    broken = dataclasses.replace(found, margin=margin, gradient=gradient)
    # A flat row is left out by itself: dividing by its slope would give infinity. The others need the mask.
    mask = None if damage == "zero gradient" else ~row
    cost = dyart.ExponentialCost(3.0, 1.0)
    per_row = dyart.margin_loss(model, broken, cost, reduction="none", mask=mask)
    assert per_row[2] == 0
    others = torch.arange(10)[~row]
    torch.testing.assert_close(
        per_row[others], dyart.margin_loss(model, found[others], cost, reduction="none"), rtol=1e-9, atol=0
    )
    wanted = gradients_of(dyart.margin_loss(model, found[others], cost, reduction="sum"), model)
    assert_all_close(gradients_of(per_row.sum(), model), wanted, 1e-9)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_rows_masked_gives_zero_and_zero_gradients(reduction):
    model, found = with_unfound_rows()
    mask = torch.zeros(10, dtype=torch.bool)
    loss = dyart.margin_loss(model, found, dyart.ExponentialCost(3.0, 1.0), reduction=reduction, mask=mask)
    assert (loss == 0).all()
    assert all((gradient == 0).all() for gradient in gradients_of(loss.sum(), model))


def test_no_row_found_gives_zero_and_zero_gradients():
    model, x = linear(), uniform(5, 6, dtype=torch.float64)
    found = search(model, x, 1 - model(x).argmax(dim=1))
    assert not found.found.any()
    loss = dyart.margin_loss(model, found, dyart.ExponentialCost(3.0, 1.0))
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients_of(loss, model))


@pytest.mark.parametrize(("reduction", "shape"), [("mean", ()), ("sum", ()), ("none", (0,))])
def test_an_empty_batch_costs_nothing(reduction, shape):
    model, found = with_unfound_rows()
    loss = dyart.margin_loss(model, found[torch.zeros(10, dtype=torch.bool)], dyart.ExponentialCost(), reduction)
    assert loss.shape == shape
    assert (loss == 0).all()


def test_the_loss_of_an_empty_batch_can_be_differentiated():
    # found[found.optimal] may well be empty early in a training; backward() must not fail then.
    model, found = with_unfound_rows()
    dyart.margin_loss(model, found[torch.zeros(10, dtype=torch.bool)], dyart.ExponentialCost()).backward()
    assert all(parameter.grad is None or (parameter.grad == 0).all() for parameter in model.parameters())
