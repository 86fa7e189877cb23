"""update_direction against the negative gradient and a step that is really taken."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import random_like, smooth_network
from torch import Tensor, nn
from update_cases import OPTIMIZERS, X, Y, assert_close, assert_same, cross_entropy, snapshot, step_of_a_copy, warm_up

import dyart

# The negative gradient


def test_a_loss_alone_gives_the_negative_gradient():
    model = smooth_network()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    gradients = torch.autograd.grad(cross_entropy(model), list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    assert_close(update, {name: -g for name, g in zip(names, gradients, strict=True)})
    assert not any(rate.requires_grad for rate in update.values())


def test_a_step_along_the_direction_lowers_the_loss():
    model = smooth_network()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    before = float(cross_entropy(model).detach())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.01 * update[name])
    assert float(cross_entropy(model).detach()) < before - 1e-3


def test_a_loss_of_shape_one_counts_as_a_scalar():
    model = smooth_network()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model)[None])
    assert_close(update, dyart.update_direction(model, loss=lambda: cross_entropy(model)))


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_refused(factor):
    model = smooth_network()
    first = next(name for name, _ in model.named_parameters())
    with pytest.raises(ValueError, match=rf"gradient of '{first}' is not finite, nor are those of \d+ more"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model) * factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    (cross_entropy(model) * factor).backward()
    with pytest.raises(ValueError, match="not finite"):
        dyart.update_direction(model, optimizer=optimizer)


@pytest.mark.parametrize("with_optimizer", [False, True])
@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_clipping_is_that_of_torch(clip_norm, with_optimizer):
    model = smooth_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3) if with_optimizer else None
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), clip_norm=clip_norm, optimizer=optimizer)
    other = copy.deepcopy(model)
    cross_entropy(other).backward()
    total = torch.nn.utils.clip_grad_norm_(other.parameters(), clip_norm)
    assert 0.05 < total < 1e6  # one of the two clips, the other does not
    lr = 0.3 if with_optimizer else 1.0
    assert_close(update, {name: -lr * p.grad for name, p in other.named_parameters()})


def test_clipping_is_over_all_parameters_together():
    model = smooth_network()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), clip_norm=0.05)
    total = torch.stack([rate.norm() for rate in update.values()]).norm()
    torch.testing.assert_close(total, torch.tensor(0.05, dtype=torch.float64), rtol=1e-3, atol=0)


def test_frozen_parameters_and_those_without_gradient_are_left_out_of_the_gradient():
    model = nn.ModuleDict({"used": smooth_network(), "unused": nn.Linear(2, 2)})
    model["used"][0].weight.requires_grad_(False)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model["used"]))
    wanted = [f"used.{name}" for name, _ in model["used"].named_parameters() if name != "0.weight"]
    assert list(update) == wanted


# An optimizer's next step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_true_next_step(name):
    model = smooth_network()
    optimizer = OPTIMIZERS[name](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    wanted = step_of_a_copy(model, optimizer, cross_entropy)
    assert_close(update, wanted)
    # And the copy was no accident: the real step that follows is the same.
    at = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    warm_up(model, optimizer, cross_entropy, steps=1)
    assert_close(update, {name: parameter.detach() - at[name] for name, parameter in model.named_parameters()})


def test_warm_up_matters():
    # Or the test above would pass with an optimizer whose state was lost.
    model = smooth_network()
    optimizer = OPTIMIZERS["sgd, momentum"](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    fresh = dyart.update_direction(
        model, loss=lambda: cross_entropy(model), optimizer=OPTIMIZERS["sgd, momentum"](model.parameters())
    )
    assert any((update[name] - fresh[name]).abs().max() > 0.1 * fresh[name].abs().max() for name in fresh)


def test_clipping_comes_before_the_optimizer():
    model = smooth_network()
    optimizer = OPTIMIZERS["sgd, decay"](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer, clip_norm=0.01)
    other, stepped = copy.deepcopy((model, optimizer))
    stepped.zero_grad()
    cross_entropy(other).backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    stepped.step()
    at = model.state_dict()
    assert_close(update, {name: tensor - at[name] for name, tensor in other.state_dict().items()})


@pytest.mark.parametrize("name", ["sgd, decay", "adamw"])
def test_groups_with_their_own_learning_rates(name):
    model = smooth_network()
    optimizer = OPTIMIZERS[name](
        [
            {"params": list(model[0].parameters()), "lr": 0.5},
            {"params": list(model[2].parameters()), "lr": 0.001, "weight_decay": 0.0},
            {"params": list(model[4].parameters())},
        ]
    )
    warm_up(model, optimizer, cross_entropy)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_close(update, step_of_a_copy(model, optimizer, cross_entropy))


def test_an_optimizer_of_some_of_the_parameters():
    # Fine-tuning: the loss has gradients everywhere, the optimizer holds the head alone.
    model = smooth_network()
    optimizer = OPTIMIZERS["sgd, momentum"](model[4].parameters())
    warm_up(model, optimizer, cross_entropy)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert sorted(update) == ["4.bias", "4.weight"]
    wanted = step_of_a_copy(model, optimizer, cross_entropy)
    assert all((wanted[name] == 0).all() for name in wanted if not name.startswith("4."))
    assert_close(update, {name: wanted[name] for name in update})


@pytest.mark.parametrize("name", ["sgd, decay", "adamw"])
def test_frozen_parameters_do_not_move(name):
    model = smooth_network()
    model[0].weight.requires_grad_(False)
    optimizer = OPTIMIZERS[name](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    wanted = step_of_a_copy(model, optimizer, cross_entropy)
    assert (wanted["0.weight"] == 0).all()
    assert "0.weight" not in update or (update["0.weight"] == 0).all()
    assert_close({"0.weight": torch.zeros_like(wanted["0.weight"])} | update, wanted)


@pytest.mark.parametrize("name", ["sgd, decay", "adamw"])
def test_parameters_without_gradient_do_not_move(name):
    # Decay or not: torch's optimizers skip a parameter whose gradient is None.
    model = nn.ModuleDict({"used": smooth_network(), "unused": nn.Linear(2, 2, dtype=torch.float64)})
    optimizer = OPTIMIZERS[name](model.parameters())

    def loss(whole: nn.ModuleDict) -> Tensor:
        return cross_entropy(whole["used"])

    warm_up(model, optimizer, loss)
    update = dyart.update_direction(model, loss=lambda: loss(model), optimizer=optimizer)
    wanted = step_of_a_copy(model, optimizer, loss)
    assert (wanted["unused.weight"] == 0).all()
    assert_close(update, wanted)


@pytest.mark.parametrize("name", ["sgd, nesterov", "adamw"])
def test_gradients_that_are_already_there(name):
    model = smooth_network()
    optimizer = OPTIMIZERS[name](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    optimizer.zero_grad()
    # Accumulated over two batches: no loss that could be passed.
    cross_entropy(model).backward()
    (0.5 * F.cross_entropy(model(1 - X), Y)).backward()
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    optimizer.step()
    at = before["state"]
    assert_close(update, {name: (tensor - at[name]).detach() for name, tensor in model.state_dict().items()})


def test_gradients_that_are_already_there_are_clipped_in_the_copy_only():
    model = smooth_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    cross_entropy(model).backward()
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, optimizer=optimizer, clip_norm=0.05)
    assert_same(snapshot(model, optimizer), before)
    total = torch.stack([rate.norm() for rate in update.values()]).norm()
    torch.testing.assert_close(total, torch.tensor(0.05, dtype=torch.float64), rtol=1e-3, atol=0)


def test_a_loss_takes_the_place_of_gradients_that_are_already_there():
    model = smooth_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    assert_close(update, dyart.update_direction(model, loss=lambda: cross_entropy(model)))


def test_a_frozen_parameter_with_a_gradient_left_over_moves_as_the_optimizer_moves_it():
    # Frozen after a backward pass and not zeroed: the optimizer looks at .grad, not at the flag, and moves it.
    model = smooth_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cross_entropy(model).backward()
    model[0].weight.requires_grad_(False)
    update = dyart.update_direction(model, optimizer=optimizer)
    at = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer.step()
    moved = {name: (tensor - at[name]).detach() for name, tensor in model.state_dict().items()}
    assert (moved["0.weight"] != 0).any()
    assert_close(update, moved)


@pytest.mark.parametrize("name", ["sgd, momentum", "adamw"])
def test_a_learning_rate_schedule_on_the_optimizer(name):
    # A scheduler replaces the optimizer's step method: the copy must not step the original through it.
    model = smooth_network()
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for _ in range(3):
        warm_up(model, optimizer, cross_entropy, steps=1)
        schedule.step()
    before, rates = snapshot(model, optimizer), schedule.get_last_lr()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    assert schedule.get_last_lr() == rates
    warm_up(model, optimizer, cross_entropy, steps=1)
    schedule.step()  # warns, hence fails, if the optimizer's step was not seen
    at = before["state"]
    assert_close(update, {name: (tensor - at[name]).detach() for name, tensor in model.state_dict().items()})
    assert schedule.get_last_lr() != rates


class Signed(torch.optim.Optimizer):
    """A user's own optimizer, with a setting that is an attribute of its own."""

    def __init__(self, parameters, size):
        super().__init__(parameters, {"lr": 1.0})
        self.size = size

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(self.size * parameter.grad.sign())


def test_a_users_own_optimizer_with_attributes():
    model = smooth_network()
    optimizer = Signed(model.parameters(), 0.01)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    gradient = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    assert_close(update, {name: 0.01 * rate.sign() for name, rate in gradient.items()})


def test_step_hooks_of_the_optimizer_take_part():
    # Gradient centralisation, clipping and the like are often hooks; the true next step has them.
    model = smooth_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def halve(stepping: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for group in stepping.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    at = before["state"]
    warm_up(model, optimizer, cross_entropy, steps=1)
    assert_close(update, {name: (tensor - at[name]).detach() for name, tensor in model.state_dict().items()})


def test_the_direction_fits_the_speed():
    # The names and shapes are those that boundary_speed takes, statistics included.
    model = smooth_network()
    found = dyart.closest_boundary_points(model, X, steps=10)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    assert list(update) == list(random_like(model))
    assert dyart.boundary_speed(model, found, update).isfinite().all()


def test_a_loss_without_its_graph_is_told_so():
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"got float: leave out \.item\(\)"):
        dyart.update_direction(model, loss=lambda: model(torch.rand(4, 3)).sum().detach().item())


def test_a_loss_that_was_computed_already_is_told_to_be_a_function():
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"loss=lambda: cross_entropy\(model\(x\), y\); got Tensor"):
        dyart.update_direction(model, loss=model(torch.rand(4, 3)).sum())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(torch.optim.SGD, "the class SGD"), (object(), "an object of object"), ("sgd", "an object of str")],
)
def test_what_is_no_optimizer_is_named(wrong, words):
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=f"optimizer of torch.*got {words}"):
        dyart.update_direction(model, loss=lambda: model(torch.rand(4, 3)).sum(), optimizer=wrong)


def test_a_function_has_no_parameters_to_move():
    with pytest.raises(TypeError, match=r"needs an nn\.Module.*got function"):
        dyart.update_direction(lambda x: x, loss=lambda: torch.zeros(()))
