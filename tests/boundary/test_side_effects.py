"""Nothing of the user's changes: not the model, not its gradients, not the random state, not torch's settings.

Every function is called on a model that would show it: BatchNorm, dropout, frozen parameters, existing gradients; and
again with a model that fails on the way.
"""

import copy
import math
import random
from contextlib import nullcontext, suppress
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dyart
from dyart.boundary.derivative import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")

SHAPE, CLASSES, EXAMPLES = (3, 2, 2), 4, 5


class Counter(nn.Module):
    """Counts its forward calls in a buffer, in eval mode too, in one of the ways in which that can be written."""

    def __init__(self, way: str = "in place") -> None:
        super().__init__()
        self.way = way
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "in place":
            self.calls += 1
        elif self.way == "assigned":
            self.calls = self.calls + 1
        else:
            self.calls.data.add_(1)
        return x


class Noise(nn.Module):
    """Draws from the global generator, in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-6 * torch.randn_like(x)


class FailureError(Exception):
    """Raised by the models below; no RuntimeError, which ``boundary_speed`` takes for a missing derivative."""


class Failing(nn.Module):
    """Passes its input on, and fails at its n-th call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.fail_at, self.error = 0, None, FailureError

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise self.error(f"call {self.calls}")
        return x


class FailingGradient(nn.Module):
    """Passes its input on, and fails at the n-th gradient that is taken through it."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients, self.fail_at = 0, None

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(self._hook)
        return x

    def _hook(self, gradient: Tensor) -> None:
        self.gradients += 1
        if self.gradients == self.fail_at:
            raise FailureError(f"gradient {self.gradients}")


def network(*extra: nn.Module) -> nn.Sequential:
    """BatchNorm with statistics of its own, dropout, one frozen layer, gradients on some parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Tanh()),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(16, 6),
            nn.Tanh(),
            nn.Linear(6, CLASSES),
            *extra,
        )
        with torch.no_grad():
            model[0][1].running_mean.normal_(std=0.1)
            model[0][1].running_var.uniform_(0.5, 1.5)
        model[3].requires_grad_(False)
        for parameter in (model[0][0].weight, model[5].bias):
            parameter.grad = torch.randn_like(parameter)
    return model


def in_mode(model: nn.Sequential, mode: str) -> nn.Sequential:
    """``mixed``: what fine-tuning with frozen statistics makes, and an odd one in the other direction."""
    model.train(mode != "eval")
    if mode == "mixed":
        model[0][1].eval()
        model[2].eval()
        model[0].training = False
    return model


def batch() -> tuple[Tensor, Tensor]:
    inputs = 0.2 + 0.6 * torch.rand(EXAMPLES, *SHAPE, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        labels = network().eval()(inputs).argmax(dim=1)
    labels[1] = (labels[1] + 1) % CLASSES  # one example outside its class
    return inputs, labels


def snapshot(model: nn.Module, *, buffers: bool = True) -> dict[str, object]:
    """All of a model's state that a call could change."""
    state: dict[str, object] = {}
    for name, module in model.named_modules():
        state[f"{name}: training"] = module.training
        state[f"{name}: hooks"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
        state[f"{name}: names"] = (list(module._parameters), list(module._buffers))
    for name, parameter in model.named_parameters():
        state[f"{name}: identity"] = (id(parameter), parameter.data_ptr(), type(parameter))
        state[f"{name}: flag"] = parameter.requires_grad
        state[f"{name}: value"] = parameter.detach().clone()
        state[f"{name}: grad"] = None if parameter.grad is None else parameter.grad.clone()
        state[f"{name}: grad identity"] = id(parameter.grad)
    for name, buffer in model.named_buffers():
        state[f"{name}: buffer"] = (buffer.requires_grad, buffer.dtype, type(buffer))
        if buffers:
            state[f"{name}: value"] = buffer.detach().clone()
    return state


def settings(*, draws: bool = True) -> dict[str, object]:
    """All of the process's state that a call could change."""
    state: dict[str, object] = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "matmul precision": torch.get_float32_matmul_precision(),
        "default dtype": torch.get_default_dtype(),
        "attention": (
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
        "forward AD level": torch.autograd.forward_ad._current_level,
        "threads": torch.get_num_threads(),
    }
    if draws:
        state["torch generator"] = torch.get_rng_state()
        state["python generator"] = random.getstate()
        state["numpy generator"] = np.random.get_state()[1].tolist()
    return state


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name]
        assert same, f"{name}: {value} before, {after[name]} afterwards"


# The calls. Each takes a model in any mode; what it needs beforehand comes from a model of its own.


@cache
def usual_points() -> dyart.BoundaryPoints:
    return dyart.closest_boundary_points(network().eval(), *batch(), steps=10)


def search(model: nn.Module, **options) -> dyart.BoundaryPoints:
    """Every part of the search: rivals in turn, random starts, polish, signed margins, two chunks."""
    inputs, labels = batch()
    everything = {"steps": 2, "restarts": 4, "tol": 1e-2, "signed": True, "batch_size": 3}
    return dyart.closest_boundary_points(model, inputs, labels, **{**everything, **options})


def all_parameters_move(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones_like(parameter) for name, parameter in model.named_parameters()}


def speed(model: nn.Module, derivative: str | None) -> Tensor:
    return dyart.boundary_speed(model, usual_points(), all_parameters_move(model), derivative=derivative)


def direction(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, buffers: bool = False):
    inputs, labels = batch()
    return dyart.update_direction(
        model,
        loss=lambda: F.cross_entropy(model(inputs), labels),
        optimizer=optimizer,
        buffers=buffers,
        clip_norm=1.0,
    )


def optimizer_step(model: nn.Module) -> dict[str, Tensor]:
    return direction(model, torch.optim.AdamW(model.parameters()), buffers=True)


def loss_of_margins(model: nn.Module) -> Tensor:
    return dyart.margin_loss(model, usual_points(), dyart.ExponentialCost(r0=1.0))


def train(model: nn.Module, **options) -> Tensor:
    return dyart.DyART(**{"r0": 1.0, "steps": 3, "keep": "found", **options})(model, *batch())[0]


SPEEDS = {f"boundary_speed, {name}": partial(speed, derivative=name) for name in (None, *METHODS)}
DIRECTIONS = {"update_direction": direction, "update_direction with optimizer": optimizer_step}
SILENT = {"closest_boundary_points": search, **SPEEDS, **DIRECTIONS}
TRAINING = {"margin_loss": loss_of_margins, "DyART": train, "DyART, two passes": partial(train, joint=False)}


def over(calls):
    return pytest.mark.parametrize("call", calls.values(), ids=calls.keys())


modes = pytest.mark.parametrize("mode", ["eval", "train", "mixed"])


def test_the_example_batch_exercises_the_search():
    found = search(network().eval())
    assert found.found.all()
    assert found.inside.tolist() == [True, False, True, True, True]
    assert usual_points().found.tolist() == [True, False, True, True, True]


# After the call everything is as it was before


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


# Also when the model fails on the way


def failing(
    mode: str, fail_at: int, error: type[BaseException] = FailureError, *, counts: bool = True
) -> nn.Sequential:
    """A model that fails behind all layers that have changed something by then."""
    model = in_mode(network(*([Counter()] if counts else []), Noise(), Failing()), mode)
    model[-1].fail_at, model[-1].error = fail_at, error
    return model


def assert_intact_after_failure(call, model: nn.Module, error: type[BaseException] = FailureError) -> None:
    before, around = snapshot(model), settings()
    with pytest.raises(error):
        call(model)
    assert_same(before, snapshot(model))
    assert_same(around, settings())


@cache
def calls_of_a_search() -> int:
    model = failing("eval", 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        search(model)
    return model[-1].calls


# From the first pass over the inputs to the last of the polish; the draws decide how many that takes.
@modes
@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.3, 0.5, 0.8, 1])
def test_all_is_as_before_when_the_search_fails(mode, share):
    fail_at = math.ceil(1 + share * (calls_of_a_search() - 1))
    torch.manual_seed(0)
    assert_intact_after_failure(search, failing(mode, fail_at))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, torch.OutOfMemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("fail_at", [1, 6])
def test_all_is_as_before_when_the_search_is_stopped_by_any_error(fail_at, error):
    assert_intact_after_failure(search, failing("mixed", fail_at, error), error)


@modes
@pytest.mark.parametrize(
    ("derivative", "fail_at"), [(None, 1), *((name, 1) for name in METHODS), ("central difference", 2)]
)
def test_all_is_as_before_when_the_speed_fails(mode, derivative, fail_at):
    assert_intact_after_failure(partial(speed, derivative=derivative), failing(mode, fail_at, counts=False))


def test_all_is_as_before_when_every_derivative_fails():
    class Never(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no derivative of any kind")

    model = in_mode(network(Counter(), Never()), "mixed")
    assert_intact_after_failure(partial(speed, derivative=None), model, RuntimeError)


@modes
@over(DIRECTIONS)
def test_all_is_as_before_when_the_loss_of_an_update_fails(mode, call):
    assert_intact_after_failure(call, failing(mode, 1))


def test_all_is_as_before_when_the_loss_of_an_update_is_refused():
    model, (inputs, _) = network(Counter()).train(), batch()

    def call(model: nn.Module) -> None:
        dyart.update_direction(model, loss=lambda: model(inputs))

    assert_intact_after_failure(call, model, ValueError)


@modes
def test_modes_and_flags_are_as_before_when_margin_loss_fails(mode):
    model = failing(mode, 1)
    before = snapshot(model, buffers=False)
    with pytest.raises(FailureError):
        loss_of_margins(model)
    assert_same(before, snapshot(model, buffers=False))


# Calls of the objective: the check (1), three steps (2 to 4), the loss (5, and 6 with two passes).
@modes
@pytest.mark.parametrize("fail_at", [1, 2, 4, 5, 6])
def test_modes_and_flags_are_as_before_when_the_objective_fails(mode, fail_at):
    model = failing(mode, fail_at)
    before, around = snapshot(model, buffers=False), settings(draws=False)
    with pytest.raises(FailureError):
        train(model, joint=fail_at != 6)
    assert model[-1].calls == fail_at
    assert_same(before, snapshot(model, buffers=False))
    assert_same(around, settings(draws=False))


@modes
@pytest.mark.parametrize("fail_at", [1, 2, 4])
def test_buffers_and_generator_are_as_before_when_the_search_of_the_objective_fails(mode, fail_at):
    assert_intact_after_failure(train, failing(mode, fail_at))


@modes
@pytest.mark.parametrize("call", [search, train, direction, partial(speed, derivative="double backward")])
def test_all_is_as_before_when_a_gradient_fails(mode, call):
    model = in_mode(network(FailingGradient()), mode)
    model[-1].fail_at = 1
    assert_intact_after_failure(call, model)


def test_a_refused_input_leaves_everything_as_before():
    model, (inputs, labels) = in_mode(network(Counter()), "mixed"), batch()
    wrong = labels.clone()
    wrong[0] = CLASSES
    for call in (
        lambda model: dyart.closest_boundary_points(model, inputs + 3, labels),
        lambda model: dyart.closest_boundary_points(model, inputs, wrong),
    ):
        assert_intact_after_failure(call, model, ValueError)


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


def tensors(found: dyart.BoundaryPoints) -> dict[str, Tensor]:
    return {name: value for name, value in vars(found).items() if isinstance(value, Tensor)}


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


# TF32 and its relatives: torch has two interfaces to one setting, and an error for those who mix them


PRECISIONS = {
    "all": lambda: torch.backends,
    "cuda matmul": lambda: torch.backends.cuda.matmul,
    "cudnn": lambda: torch.backends.cudnn,
    "cudnn conv": lambda: getattr(torch.backends.cudnn, "conv", None),
    "cudnn rnn": lambda: getattr(torch.backends.cudnn, "rnn", None),
    "mkldnn": lambda: torch.backends.mkldnn,
    "mkldnn matmul": lambda: getattr(torch.backends.mkldnn, "matmul", None),
    "mkldnn conv": lambda: getattr(torch.backends.mkldnn, "conv", None),
}
NEW_INTERFACE = hasattr(torch.backends.cuda.matmul, "fp32_precision")


def read(name: str, get) -> object:
    try:
        return get()
    except RuntimeError:
        return f"{name} cannot be read: the interfaces are mixed"


def precisions() -> dict[str, object]:
    state = {
        "cuda matmul allow_tf32": read("matmul", lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn allow_tf32": read("cudnn", lambda: torch.backends.cudnn.allow_tf32),
        "matmul precision": read("precision", torch.get_float32_matmul_precision),
    }
    return state | {name: getattr(owner(), "fp32_precision", None) for name, owner in PRECISIONS.items()}


@pytest.fixture
def fresh_precision():
    """Torch's defaults, at the start and at the end, however mixed it was left."""

    def reset() -> None:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
        if NEW_INTERFACE:
            for name, owner in PRECISIONS.items():
                if owner() is not None:
                    owner().fp32_precision = "tf32" if name in ("cudnn conv", "cudnn rnn") else "none"

    reset()
    yield
    reset()


def _set(**values: str) -> None:
    for name, value in values.items():
        PRECISIONS[name.replace("_", " ")]().fp32_precision = value


def _legacy(matmul: bool, cudnn: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


OLD_PRECISION = {
    "defaults": lambda: None,
    "allow_tf32 on": lambda: _legacy(True, True),
    "allow_tf32 off": lambda: _legacy(False, False),
    "matmul precision high": lambda: torch.set_float32_matmul_precision("high"),
    "matmul precision medium": lambda: torch.set_float32_matmul_precision("medium"),
}
NEW_PRECISION = {
    "cuda matmul tf32": lambda: _set(cuda_matmul="tf32"),
    "cuda matmul ieee": lambda: _set(cuda_matmul="ieee"),
    "cudnn conv ieee": lambda: _set(cudnn_conv="ieee"),
    "all tf32": lambda: _set(all="tf32"),
    "all ieee": lambda: _set(all="ieee"),
}


@pytest.mark.usefixtures("fresh_precision")
@pytest.mark.parametrize("fails", [False, True], ids=["", "and the model fails"])
@over(OLD_PRECISION | (NEW_PRECISION if NEW_INTERFACE else {}))
def test_tf32_settings_are_the_same_after_the_call(call, fails):
    call()
    before = precisions()
    if fails:
        with pytest.raises(FailureError):
            search(failing("eval", 4))
    else:
        search(network().eval())
    assert precisions() == before
    speed(network().eval(), derivative=None)
    assert precisions() == before


@pytest.mark.usefixtures("fresh_precision")
@pytest.mark.parametrize("call", [search, partial(speed, derivative=None)], ids=["search", "speed"])
def test_tf32_is_off_while_the_model_runs(call):
    _legacy(True, True)
    seen: list[tuple[str, ...]] = []

    class Look(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if NEW_INTERFACE:
                names = ("cuda matmul", "cudnn conv", "cudnn rnn")
                seen.append(tuple(PRECISIONS[name]().fp32_precision for name in names))
            else:
                seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
            return x

    call(network(Look()).eval())
    assert seen
    assert {value for values in seen for value in values} <= {"ieee", "none", False}


# What is returned, and what the user holds


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
