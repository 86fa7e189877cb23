"""update_direction: against a step that is really taken, and nothing may change on the way."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from networks import random_like, small_resnet, smooth_network, uniform
from torch import Tensor, nn

import dyart

X = uniform(16, 12, dtype=torch.float64)
Y = torch.arange(16) % 4


def cross_entropy(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X), Y)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, object]:
    """Everything that must be the same afterwards, as independent copies."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "grad": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "flags": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict()),
        "random": torch.get_rng_state(),
    }


def assert_same(one: object, other: object, where: str = "") -> None:
    """Bitwise equality of nested dictionaries, lists and tensors."""
    assert type(one) is type(other), where
    if isinstance(one, Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert one == other, where


def assert_close(got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert set(got) == set(wanted)
    for name, rate in wanted.items():
        torch.testing.assert_close(got[name], rate, rtol=tolerance, atol=tolerance * float(rate.abs().max()))


def step_of_a_copy(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], Tensor]
) -> dict[str, Tensor]:
    """What really happens: copy both together, step, and see what the copy's tensors did."""
    other, stepped = copy.deepcopy((model, optimizer))
    stepped.zero_grad()
    loss(other).backward()
    stepped.step()
    before = model.state_dict()
    return {name: (tensor - before[name]).detach() for name, tensor in other.state_dict().items()}


def warm_up(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], Tensor], steps: int = 4
) -> None:
    """A few real steps, so that momenta and moments are not at their start."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


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

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "sgd, momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "sgd, nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "sgd, decay": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd, dampening": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
    "adam, amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.9, centered=True),
}


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


# Buffers

IMAGES = uniform(12, 3, 8, 8)
TARGETS = torch.arange(12) % 4


def image_loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(IMAGES), TARGETS)


def test_buffers_are_the_change_of_the_running_statistics():
    model = small_resnet("batch").train()
    optimizer = OPTIMIZERS["sgd, momentum"](model.parameters())
    warm_up(model, optimizer, image_loss, steps=2)
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: image_loss(model), optimizer=optimizer, buffers=True)
    assert_same(snapshot(model, optimizer), before)
    wanted = step_of_a_copy(model, optimizer, image_loss)
    counters = [name for name in wanted if name.endswith("num_batches_tracked")]
    assert all(wanted.pop(name) == 1 for name in counters)  # integers do not flow
    assert (wanted["norm.running_mean"] != 0).any()
    assert_close(update, wanted, 1e-4)


def test_buffers_are_left_out_unless_asked_for():
    model = small_resnet("batch").train()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    before = snapshot(model, optimizer)
    update = dyart.update_direction(model, loss=lambda: image_loss(model), optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)
    assert set(update) == {name for name, _ in model.named_parameters()}


def test_buffers_do_not_move_in_eval_mode():
    model = small_resnet("batch")
    update = dyart.update_direction(
        model, loss=lambda: image_loss(model), optimizer=OPTIMIZERS["sgd"](model.parameters()), buffers=True
    )
    assert (update["norm.running_mean"] == 0).all()
    assert (update["head.weight"] != 0).any()


class Centred(nn.Module):
    """Keeps a running mean by assignment, as self-distillation heads do, not in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = smooth_network()
        self.register_buffer("centre", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * z.detach().mean(dim=0)
        return z - self.centre


def test_a_buffer_that_is_assigned_anew_is_put_back():
    model = Centred()
    before = snapshot(model)
    dyart.update_direction(model, loss=lambda: cross_entropy(model))
    assert_same(snapshot(model), before)


def test_a_buffer_that_is_assigned_anew_counts_as_moved():
    model = Centred()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    wanted = step_of_a_copy(model, optimizer, cross_entropy)
    assert (wanted["centre"] != 0).any()
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer, buffers=True)
    assert_close(update, wanted)


# Nothing changes


def test_everything_is_bitwise_the_same_afterwards():
    model = small_resnet("batch").train()
    model.block2.eval()
    model.stem.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(4)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    warm_up(model, optimizer, image_loss, steps=2)
    before = snapshot(model, optimizer)
    storage = [tensor.data_ptr() for tensor in model.state_dict().values()]
    for options in ({}, {"optimizer": optimizer}, {"optimizer": optimizer, "clip_norm": 0.1, "buffers": True}):
        dyart.update_direction(model, loss=lambda: image_loss(model), **options)
        assert_same(snapshot(model, optimizer), before)
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == storage


def test_everything_is_put_back_after_an_error():
    model = small_resnet("batch").train()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    before = snapshot(model, optimizer)

    def broken() -> Tensor:
        image_loss(model)
        torch.rand(3)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        dyart.update_direction(model, loss=broken, optimizer=optimizer)
    assert_same(snapshot(model, optimizer), before)


def test_random_numbers_are_those_of_the_step_that_follows():
    # Dropout: the direction must be the one of the next real step, and drawing it must not spend the draws.
    model = nn.Sequential(nn.Dropout(0.5), smooth_network())
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with torch.random.fork_rng():
        torch.manual_seed(5)
        before = snapshot(model, optimizer)
        update = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
        assert_same(snapshot(model, optimizer), before)
        warm_up(model, optimizer, cross_entropy, steps=1)
    at = before["state"]
    assert_close(update, {name: (tensor - at[name]).detach() for name, tensor in model.state_dict().items()})


def test_without_gradients_in_the_callers_mode():
    model = smooth_network()
    wanted = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    with torch.no_grad():
        assert_close(dyart.update_direction(model, loss=lambda: cross_entropy(model)), wanted)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped_models_give_the_names_of_the_network_inside(wrap):
    model = smooth_network()
    optimizer = OPTIMIZERS["sgd, momentum"](model.parameters())
    warm_up(model, optimizer, cross_entropy)
    wanted = dyart.update_direction(model, loss=lambda: cross_entropy(model), optimizer=optimizer)
    wrapped = wrap(model)
    got = dyart.update_direction(wrapped, loss=lambda: cross_entropy(model), optimizer=optimizer)
    assert_close(got, wanted)


# Bad calls


def test_nothing_given_raises():
    with pytest.raises(ValueError, match=r"needs a loss, an optimizer"):
        dyart.update_direction(smooth_network())


def test_no_gradients_raises():
    model = smooth_network()
    with pytest.raises(ValueError, match=r"backward\(\)"):
        dyart.update_direction(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_optimizer_with_a_closure_raises():
    model = smooth_network()
    with pytest.raises(TypeError, match=r"LBFGS.*closure"):
        dyart.update_direction(
            model, loss=lambda: cross_entropy(model), optimizer=torch.optim.LBFGS(model.parameters())
        )


def test_an_optimizer_of_another_model_raises():
    model, other = smooth_network(), smooth_network()
    with pytest.raises(ValueError, match="another model"):
        dyart.update_direction(
            model, loss=lambda: cross_entropy(model), optimizer=torch.optim.SGD(other.parameters(), lr=0.1)
        )


def test_a_loss_per_example_raises():
    model = smooth_network()
    with pytest.raises(ValueError, match=r"scalar.*\(16,\)"):
        dyart.update_direction(model, loss=lambda: F.cross_entropy(model(X), Y, reduction="none"))


def test_a_loss_without_graph_raises():
    model = smooth_network()
    with pytest.raises(ValueError, match="does not depend"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model).detach())


def test_a_loss_of_another_model_raises():
    # It has a graph, yet no parameter of this model in it: an empty direction would look like a model at rest.
    model, other = smooth_network(), smooth_network()
    with pytest.raises(ValueError, match="does not depend"):
        dyart.update_direction(model, loss=lambda: cross_entropy(other))


@pytest.mark.parametrize("optimizer", [False, True])
def test_buffers_without_loss_or_optimizer_raise(optimizer):
    model = small_resnet("batch")
    options = {"optimizer": OPTIMIZERS["sgd"](model.parameters())} if optimizer else {"loss": lambda: image_loss(model)}
    with pytest.raises(ValueError, match="buffers=True needs both"):
        dyart.update_direction(model, buffers=True, **options)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_a_clip_norm_that_is_not_positive_raises(clip_norm):
    model = smooth_network()
    with pytest.raises(ValueError, match="clip_norm must be positive"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model), clip_norm=clip_norm)


def test_a_model_without_trainable_parameters_raises():
    model = smooth_network().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        dyart.update_direction(model, loss=lambda: cross_entropy(model))


def test_the_direction_fits_the_speed():
    # The names and shapes are those that boundary_speed takes, statistics included.
    model = smooth_network()
    found = dyart.closest_boundary_points(model, X, steps=10)
    update = dyart.update_direction(model, loss=lambda: cross_entropy(model))
    assert list(update) == list(random_like(model))
    assert dyart.boundary_speed(model, found, update).isfinite().all()
