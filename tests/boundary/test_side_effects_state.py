"""After a call the model, its gradients, the random state and torch's settings are as they were before it."""

import copy
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.nn.functional as F
from side_effects import (
    CLASSES,
    SILENT,
    SPEEDS,
    TRAINING,
    Counter,
    Noise,
    assert_same,
    batch,
    direction,
    in_mode,
    modes,
    network,
    over,
    search,
    settings,
    snapshot,
    train,
    usual_points,
)
from torch import Tensor

from dyart.boundary.derivative import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")


def test_the_example_batch_exercises_the_search():
    found = search(network().eval())
    assert found.found.all()
    assert found.inside.tolist() == [True, False, True, True, True]
    assert usual_points().found.tolist() == [True, False, True, True, True]


@modes
@over(SILENT)
def test_the_model_and_the_process_are_the_same_after_the_call(call, mode):
    model = in_mode(network(), mode)
    before, around = snapshot(model), settings()
    call(model)
    assert_same(before, snapshot(model))
    assert_same(around, settings())


@modes
@over(TRAINING)
def test_losses_leave_modes_flags_gradients_and_parameters(call, mode):
    # In training mode a loss does move BatchNorm statistics and draw for dropout: that is what the mode is for.
    model, quiet = in_mode(network(), mode), mode == "eval"
    before, around = snapshot(model, buffers=quiet), settings(draws=quiet)
    call(model)
    assert_same(before, snapshot(model, buffers=quiet))
    assert_same(around, settings(draws=quiet))


@over({**SILENT, **TRAINING})
def test_a_model_without_any_gradient_has_none_afterwards(call):
    model = network().eval()
    model.zero_grad(set_to_none=True)
    call(model)
    assert all(parameter.grad is None for parameter in model.parameters())


@over({"closest_boundary_points": search, "DyART": train})
def test_a_wholly_frozen_model_can_be_searched_and_stays_frozen(call):
    model = network().eval().requires_grad_(False)
    call(model)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("way", ["in place", "assigned", "through .data"])
@over(SILENT)
def test_a_buffer_that_counts_calls_in_eval_mode_is_put_back(call, way):
    model = network(Counter(way)).eval()
    buffer = model[-1].calls
    # Forward mode alone cannot write to buffers, and may say so; boundary_speed on its own finds another way.
    may_refuse = call in (SPEEDS[f"boundary_speed, {name}"] for name in METHODS[:2])
    with suppress(RuntimeError) if may_refuse else nullcontext():
        call(model)
    assert type(model[-1].calls) is Tensor
    assert int(model[-1].calls) == 0
    assert int(buffer) == 0


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("way", ["in place", "assigned", "through .data"])
def test_the_objective_counts_only_the_forward_passes_of_its_loss(way, joint):
    model = network(Counter(way)).train()
    train(model, joint=joint)
    assert int(model[-1].calls) == (1 if joint else 2)


@over(SILENT)
def test_draws_of_the_model_itself_leave_the_global_generator(call):
    model = network(Noise()).eval()
    before = torch.get_rng_state()
    call(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_search_does_not_depend_on_the_global_generator():
    def visited(seed: int) -> list[Tensor]:
        model, seen = network().eval(), []
        model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            search(model, restarts=CLASSES + 2)  # more than there are rivals: the last ones start at random
        return seen

    one, other = visited(1), visited(2)
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_objective_draws_only_for_the_forward_pass_of_its_loss():
    model, (inputs, _) = network(Noise()).eval(), batch()
    start = torch.get_rng_state()
    model(torch.cat([inputs, inputs]))
    once = torch.get_rng_state()
    torch.set_rng_state(start)
    train(model)
    assert torch.equal(torch.get_rng_state(), once)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_the_optimizer_and_its_schedule_are_the_same_after_update_direction(optimizer):
    model, (inputs, labels) = network().eval(), batch()
    momentum = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    own = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.1, **momentum)
    schedule = torch.optim.lr_scheduler.LinearLR(own)  # it replaces own.step by a function of its own
    F.cross_entropy(model(inputs), labels).backward()
    own.step()
    schedule.step()
    before, state, dates = snapshot(model), copy.deepcopy(own.state_dict()), schedule.state_dict()
    held = [id(p) for group in own.param_groups for p in group["params"]]
    step = direction(model, own)
    assert all(rate.abs().sum() > 0 for rate in step.values())
    assert_same(before, snapshot(model))
    assert [id(p) for group in own.param_groups for p in group["params"]] == held
    assert schedule.state_dict() == dates
    after = own.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for number, entry in state["state"].items():
        for name, value in entry.items():
            assert torch.equal(torch.as_tensor(after["state"][number][name]), torch.as_tensor(value)), name
