"""Models that show what a call leaves behind, snapshots of all that could change, and the calls to try."""

import random
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dyart
from dyart.boundary.derivative import METHODS

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


def tensors(found: dyart.BoundaryPoints) -> dict[str, Tensor]:
    return {name: value for name, value in vars(found).items() if isinstance(value, Tensor)}
