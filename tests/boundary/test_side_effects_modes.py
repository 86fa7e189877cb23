"""Training and eval mode, and the user's own contexts: no_grad, inference mode, autocast."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from side_effects import (
    DIRECTIONS,
    SPEEDS,
    TRAINING,
    assert_intact_after_failure,
    assert_same,
    batch,
    direction,
    failing,
    in_mode,
    loss_of_margins,
    modes,
    network,
    over,
    search,
    settings,
    snapshot,
    speed,
    tensors,
    train,
    usual_points,
)
from torch import nn

import dyart

pytestmark = pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")


# BatchNorm in the objective: statistics move in the loss's forward pass and in no other


@pytest.mark.parametrize("joint", [True, False])
def test_batch_norm_statistics_move_only_in_the_forward_pass_of_the_loss(joint):
    model, (inputs, labels) = network().train(), batch()
    twin, norm = copy.deepcopy(model), model[0][1]
    objective = dyart.DyART(r0=1.0, steps=3, joint=joint)
    points = objective.search(twin, inputs, labels).points
    assert int(twin[0][1].num_batches_tracked) == 0
    objective(model, inputs, labels)
    assert int(norm.num_batches_tracked) == (1 if joint else 2)
    for part in [torch.cat([points, inputs])] if joint else [points, inputs]:
        twin(part)
    assert torch.equal(norm.running_mean, twin[0][1].running_mean)
    assert torch.equal(norm.running_var, twin[0][1].running_var)
    objective(model, inputs, labels)
    assert int(norm.num_batches_tracked) == (2 if joint else 4), "no extra pass in the second call either"


def test_the_search_of_the_objective_uses_running_statistics():
    model, (inputs, labels) = network().train(), batch()
    seen: list[tuple[bool, bool]] = []
    model[0][1].register_forward_pre_hook(lambda module, _: seen.append((module.training, model[1].training)))
    objective = dyart.DyART(r0=1.0, steps=3)
    objective(model, inputs, labels)
    assert seen == [(False, False)] * 4 + [(True, True)], "check and three steps in eval mode, the loss in training"
    in_training, in_eval = (objective.search(copy.deepcopy(model).train(on), inputs, labels) for on in (True, False))
    assert in_eval.found.any()
    assert torch.equal(in_training.points, in_eval.points)


def test_a_search_model_is_searched_in_eval_mode_and_left_in_its_own():
    model, other = network().train(), in_mode(network(), "mixed")
    before, seen = snapshot(other), []
    handle = other[0][1].register_forward_pre_hook(lambda module, _: seen.append(module.training))
    train(model, search_model=other)
    handle.remove()
    assert seen == [False] * 4
    assert_same(before, snapshot(other))
    assert int(model[0][1].num_batches_tracked) == 1


@modes
def test_the_public_search_uses_running_statistics_in_any_mode(mode):
    found, usual = search(in_mode(network(), mode)), search(network().eval())
    assert torch.equal(found.points, usual.points)
    assert torch.equal(found.margin, usual.margin)


@over(SPEEDS)
def test_the_speed_is_that_of_eval_mode_in_any_mode(call):
    usual = call(network().eval())
    assert usual.isfinite().any()
    for mode in ("train", "mixed"):
        torch.testing.assert_close(call(in_mode(network(), mode)), usual, rtol=0, atol=0, equal_nan=True)


def test_margin_loss_runs_the_model_in_its_own_mode():
    model = network().train()
    loss_of_margins(model)
    assert int(model[0][1].num_batches_tracked) == 1
    model.eval()
    loss_of_margins(model)
    assert int(model[0][1].num_batches_tracked) == 1


# Inside the user's own contexts


def assert_same_points(one: dyart.BoundaryPoints, other: dyart.BoundaryPoints) -> None:
    for name, value in tensors(one).items():
        torch.testing.assert_close(value, tensors(other)[name], rtol=0, atol=0, equal_nan=True, msg=name)


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "autocast without cache": partial(torch.autocast, "cpu", dtype=torch.bfloat16, cache_enabled=False),
}
contexts = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())


def test_autocast_would_change_the_results():
    model, (inputs, _) = network().eval(), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(inputs)
    assert not torch.equal(rounded.float(), model(inputs))


@contexts
def test_the_search_gives_the_same_inside_the_users_contexts(context):
    usual, model = search(network().eval()), network().eval()
    with context():
        around = settings()
        found = search(model)  # its batch is made in here, too
        assert_same(around, settings())
    assert_same_points(found, usual)


@contexts
@over(SPEEDS)
def test_the_speed_is_the_same_inside_the_users_contexts(context, call):
    usual, model = call(network().eval()), network().eval()
    with context():
        around = settings()
        rate = call(model)
        assert_same(around, settings())
    torch.testing.assert_close(rate, usual, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@over(DIRECTIONS)
def test_the_update_is_the_same_where_gradients_are_off(context, call):
    # Inputs from outside, as in a validation loop that looks at the next training step.
    usual, model = call(network().eval()), network().eval()
    inputs, labels = batch()
    optimizer = None if call is direction else torch.optim.AdamW(model.parameters())
    with context():
        around = settings()
        step = dyart.update_direction(
            model,
            loss=lambda: F.cross_entropy(model(inputs), labels),
            optimizer=optimizer,
            clip_norm=1.0,
            buffers=optimizer is not None,
        )
        assert_same(around, settings())
    assert step.keys() == usual.keys()
    for name, rate in step.items():
        torch.testing.assert_close(rate, usual[name], rtol=0, atol=0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@over(TRAINING)
def test_losses_have_the_same_value_where_gradients_are_off(context, call):
    usual, model = call(network().eval()), network().eval()
    assert usual.requires_grad
    with context():
        around = settings()
        loss = call(model)
        assert_same(around, settings())
    assert not loss.requires_grad
    torch.testing.assert_close(loss, usual.detach())


@over(TRAINING)
def test_losses_work_under_autocast_and_leave_it_as_it_was(call):
    usual, model = call(network().eval()), network().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = settings()
        loss = call(model)
        assert_same(around, settings())
    assert loss.dtype == torch.float32
    # bfloat16 has three digits; the margins of the search move with them.
    torch.testing.assert_close(loss, usual, rtol=0.2, atol=0.2)


@contexts
def test_a_failure_inside_the_users_contexts_leaves_them_as_they_were(context):
    for call, model in ((search, failing("mixed", 4)), (partial(speed, derivative=None), failing("mixed", 1))):
        with context():
            assert_intact_after_failure(call, model)


def test_points_found_in_inference_mode_can_be_trained_on_outside():
    model = network().eval()
    with torch.inference_mode():
        found = search(model)
    assert {name for name, value in tensors(found).items() if value.is_inference()} == set()
    loss = dyart.margin_loss(model, found, dyart.ExponentialCost(r0=1.0))
    loss.backward()


def test_tensors_made_in_inference_mode_can_be_used_outside():
    with torch.inference_mode():
        inputs, labels = batch()
    assert inputs.is_inference()
    model = network().eval()
    assert_same_points(dyart.closest_boundary_points(model, inputs, labels, steps=10), usual_points())


def test_a_method_of_a_network_is_searched_like_the_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)).train()
    x = torch.rand(12, 4)
    labels = model.eval()(x).argmax(dim=1)
    model.train()
    with pytest.warns(UserWarning, match="BatchNorm layers in training mode"):
        expected = dyart.closest_boundary_points(model, x, labels)
    with pytest.warns(UserWarning, match="BatchNorm layers in training mode"):
        found = dyart.closest_boundary_points(model.forward, x, labels)
    assert torch.equal(found.margin.nan_to_num(), expected.margin.nan_to_num())
    assert model[1].num_batches_tracked == 0
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(16)])
def test_a_function_around_a_network_in_training_mode_is_warned_of(layer):
    model = nn.Sequential(nn.Linear(4, 16), layer, nn.Linear(16, 3)).train()
    x = torch.rand(6, 4)
    with pytest.warns(UserWarning, match=r"model in it is in training mode.*Call \.eval\(\) first"):
        dyart.closest_boundary_points(lambda z: 1.0 * model(z), x, steps=2)
    model.eval()
    dyart.closest_boundary_points(lambda z: 1.0 * model(z), x, steps=2)
    plain = nn.Linear(4, 3).train()
    dyart.closest_boundary_points(lambda z: 1.0 * plain(z), x, steps=2)
