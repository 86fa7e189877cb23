"""What is returned hangs on nothing of the user's, and what the user holds stays usable."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from side_effects import (
    DIRECTIONS,
    SHAPE,
    SILENT,
    SPEEDS,
    TRAINING,
    all_parameters_move,
    batch,
    in_mode,
    network,
    over,
    search,
    tensors,
)

import dyart

pytestmark = pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")


@over({"closest_boundary_points": search, "not signed": partial(search, signed=False)})
def test_the_result_requires_no_gradient(call):
    found = call(network().eval())
    for name, value in tensors(found).items():
        assert not value.requires_grad, name
    assert not any(value.requires_grad for value in (found.displacement, found.multiplier(), found.optimal))


def test_the_result_requires_no_gradient_though_inputs_and_bounds_do():
    inputs, labels = batch()
    inputs.requires_grad_()
    low = torch.zeros(SHAPE, requires_grad=True)
    found = dyart.closest_boundary_points(network().eval(), inputs, labels, steps=3, bounds=(low, 1.0))
    assert {name for name, value in tensors(found).items() if value.requires_grad} == set()
    assert inputs.grad is None
    assert inputs.requires_grad


@over(SPEEDS)
def test_the_speed_requires_no_gradient(call):
    assert not call(network().eval()).requires_grad


@over(DIRECTIONS)
def test_the_update_requires_no_gradient_and_is_no_view_of_the_model(call):
    model = network().eval()
    update = call(model)
    kept = {name: rate.clone() for name, rate in update.items()}
    assert not any(rate.requires_grad for rate in update.values())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    assert all(torch.equal(update[name], rate) for name, rate in kept.items())


def test_an_update_from_gradients_in_place_is_no_view_of_them():
    model = network().eval()
    update = dyart.update_direction(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    kept = {name: rate.clone() for name, rate in update.items()}
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    assert all(torch.equal(update[name], rate) for name, rate in kept.items())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_later_change_of_the_inputs_does_not_reach_the_result(norm, signed, batch_size):
    inputs, labels = batch()
    found = dyart.closest_boundary_points(
        network().eval(), inputs, labels, norm=norm, steps=3, signed=signed, batch_size=batch_size
    )
    kept = {name: value.clone() for name, value in tensors(found).items() if name not in ("inputs", "labels")}
    rows = found.found.clone()
    assert rows.any()
    inputs.fill_(0.123)
    for name, value in kept.items():
        now = tensors(found)[name]
        torch.testing.assert_close(now[rows], value[rows], rtol=0, atol=0, msg=name)
    torch.testing.assert_close(found.margin, kept["margin"], rtol=0, atol=0, equal_nan=True)


def test_a_later_change_of_the_model_does_not_reach_the_result():
    model = network().eval()
    found = search(model)
    kept = {name: value.clone() for name, value in tensors(found).items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    for name, value in kept.items():
        torch.testing.assert_close(tensors(found)[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def test_the_inputs_and_labels_are_not_written_to():
    inputs, labels = batch()
    kept, versions = (inputs.clone(), labels.clone()), (inputs._version, labels._version)
    model = network().train()
    found = dyart.closest_boundary_points(model, inputs, labels, steps=3, restarts=4, tol=1e-3, signed=True)
    dyart.boundary_speed(model, found, all_parameters_move(model))
    dyart.DyART(steps=3)(model, inputs, labels)
    assert torch.equal(inputs, kept[0])
    assert torch.equal(labels, kept[1])
    assert (inputs._version, labels._version) == versions


@pytest.mark.parametrize("mode", ["eval", "train"])
@over({**SILENT, **TRAINING})
def test_a_loss_from_before_the_call_can_be_differentiated_after_it(call, mode):
    model, (inputs, labels) = in_mode(network(), mode), batch()
    model[1].p = 0.0  # so that both losses are the same
    model.zero_grad()
    features = inputs.clone().requires_grad_()
    loss = F.cross_entropy(model(features), labels)
    expected = torch.autograd.grad(loss, [features, model[0][0].weight], retain_graph=True)
    call(model)
    loss.backward()
    assert torch.equal(features.grad, expected[0])
    assert torch.equal(model[0][0].weight.grad, expected[1])


def test_inputs_in_the_middle_of_a_graph_stay_there():
    model, (inputs, labels) = network().eval(), batch()
    scale = torch.ones((), requires_grad=True)
    scaled = inputs * scale
    found = dyart.closest_boundary_points(model, scaled, labels, steps=3)
    objective, _ = dyart.DyART(steps=3)(model, scaled, labels)
    assert not found.inputs.requires_grad
    assert objective.requires_grad
    scaled.sum().backward()
    torch.testing.assert_close(scale.grad, inputs.sum())
