"""Directional derivatives in the parameters: d/dt f(theta + t theta') for a whole batch at once.

Forward-mode AD does it in one pass. Where a layer has no forward-mode rule there are three more ways, in order of
preference: forward mode with attention written out, two backward passes, a central difference.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from dyart.boundary.model import by_all_names, tensors_of
from dyart.boundary.norms import positive

Direction = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]
"""A value and its derivative."""
Function = Callable[[nn.Module, torch.dtype | None], Tensor]
"""From a module to one value per example; the inputs are cast to the dtype, if one is given."""

METHODS = ("forward mode", "forward mode, math attention", "double backward", "central difference")
CENTRAL_STEP = {torch.float64: 1e-7, torch.float32: 1e-5}


def directional_derivative(
    module: nn.Module, function: Function, direction: Direction, method: str | None = None
) -> tuple[Pair, str]:
    """Return ``function(module)`` and its derivative along ``direction``, both ``[N]``, and the method that gave them.

    Args:
        module: whose parameters and buffers move.
        function: from the module to one value per example.
        direction: parameter or buffer name to its rate of change.
        method: one of ``METHODS``, or None for the first that works.
    """
    ways = dict(zip(METHODS, (_forward, _forward_math_attention, _double_backward, _central_difference), strict=True))
    if method is not None:
        return ways[method](module, function, direction), method
    first_error: Exception | None = None
    for name, way in ways.items():
        try:
            return way(module, function, direction), name
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError) as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


class _AffineNorm(TorchFunctionMode):
    """Writes norms with running statistics out, in eval mode: fused kernels have no derivative in the statistics."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if (order := _NORMS.get(func)) is not None:
            given = _NORM_DEFAULTS | dict(zip(order, args, strict=False)) | (kwargs or {})
            own_statistics = given.get("training") or given.get("use_input_stats")
            if not own_statistics and given["running_mean"] is not None and given["running_var"] is not None:
                return _affine(*(given[name] for name in _AFFINE))
        return func(*args, **(kwargs or {}))


_AFFINE = ("input", "running_mean", "running_var", "weight", "bias", "eps")
_NORM_DEFAULTS: dict[str, Any] = {"running_mean": None, "running_var": None, "weight": None, "bias": None, "eps": 1e-5}
# The functions' arguments in their order.
_NORMS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.batch_norm: (*_AFFINE[:-1], "training", "momentum", "eps"),
    F.instance_norm: (*_AFFINE[:-1], "use_input_stats", "momentum", "eps"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
    torch.instance_norm: (
        "input",
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "use_input_stats",
        "momentum",
        "eps",
    ),
}


def _affine(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    scale = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return x * scale.reshape(shape) + shift.reshape(shape)


class _Call(nn.Module):
    """Makes a function of a module the forward pass of a module, for functional_call."""

    def __init__(self, module: nn.Module, function: Function) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self) -> Tensor:
        return self.function(self.module, None)


def _forward(module: nn.Module, function: Function, direction: Direction) -> Pair:
    call, tensors = _Call(module, function), tensors_of(module)
    primal = {f"module.{name}": tensors[name].detach() for name in direction}
    tangent = {f"module.{name}": rate for name, rate in direction.items()}

    def values(state: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(call, by_all_names(call, state), (), tie_weights=False)
        return result

    with torch.no_grad(), _differentiable_kernels(module, direction):
        value, derivative, *_ = torch.func.jvp(values, (primal,), (tangent,))
    return value, derivative


def _forward_math_attention(module: nn.Module, function: Function, direction: Direction) -> Pair:
    with sdpa_kernel(SDPBackend.MATH):
        return _forward(module, function, direction)


def _double_backward(module: nn.Module, function: Function, direction: Direction) -> Pair:
    tensors = tensors_of(module)
    moving = [tensors[name] for name in direction]
    flags = [tensor.requires_grad for tensor in moving]
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _differentiable_kernels(module, direction):
            for tensor in moving:
                tensor.requires_grad_(True)
            values = function(module, None)
            # The backward pass is linear in its incoming gradient; its transpose is the derivative along direction.
            probe = torch.zeros_like(values, requires_grad=True)
            gradients = torch.autograd.grad(values, moving, probe, create_graph=True, allow_unused=True)
            _check_twice_differentiable(gradients)
            pairs = zip(gradients, direction.values(), strict=True)
            products = [(gradient * rate).sum() for gradient, rate in pairs if gradient is not None]
            if not products:
                return values, torch.zeros_like(values)
            (derivative,) = torch.autograd.grad(torch.stack(products).sum(), probe)
    finally:
        for tensor, flag in zip(moving, flags, strict=True):
            tensor.requires_grad_(flag)
    return values, derivative


def _check_twice_differentiable(gradients: Iterable[Tensor | None]) -> None:
    """Raise if a layer's backward pass is marked as not differentiable: autograd would leave it out without a word."""
    seen: set[Any] = set()
    waiting: list[Any] = [gradient.grad_fn for gradient in gradients if gradient is not None]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "Error" in node.name():
            raise NotImplementedError("a layer of the model cannot be differentiated twice")
        waiting += [following for following, _ in node.next_functions]


def _central_difference(module: nn.Module, function: Function, direction: Direction) -> Pair:
    try:
        return _difference_in(torch.float64, module, function, direction)
    except RuntimeError:  # a model that cannot run in float64
        return _difference_in(None, module, function, direction)


def _difference_in(dtype: torch.dtype | None, module: nn.Module, function: Function, direction: Direction) -> Pair:
    tensors = tensors_of(module)
    size = torch.stack([tensors[name].detach().double().norm() for name in direction]).norm()
    rate = torch.stack([tangent.double().norm() for tangent in direction.values()]).norm()
    # Small enough to stay on one side of most kinks of a network, large enough to rise above rounding.
    relative = CENTRAL_STEP.get(dtype or torch.float32, 1e-5)
    step = relative * (1 + size) / positive(rate)
    with torch.no_grad(), _shifted(tensors, direction, step, dtype):
        ahead = function(module, dtype)
    with torch.no_grad(), _shifted(tensors, direction, -step, dtype):
        behind = function(module, dtype)
    return (ahead + behind) / 2, (ahead - behind) / (2 * step).to(ahead)


@contextmanager
def _shifted(
    tensors: dict[str, Tensor], direction: Direction, step: Tensor, dtype: torch.dtype | None
) -> Iterator[None]:
    """Move the named tensors by ``step`` along ``direction``: new storage inside, the very old one afterwards."""
    kept = {name: tensor.data for name, tensor in tensors.items() if tensor.is_floating_point()}
    try:
        for name, data in kept.items():
            moved = data.to(dtype or data.dtype)
            if name in direction:
                moved = moved + (step * direction[name].double()).to(moved.dtype)
            tensors[name].data = moved
        yield
    finally:
        for name, data in kept.items():
            tensors[name].data = data


@contextmanager
def _differentiable_kernels(module: nn.Module, direction: Direction) -> Iterator[None]:
    """Avoid fused kernels without the derivatives that are needed: fast attention, BatchNorm with moving statistics."""
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    statistics = dict(module.named_buffers()).keys() & direction.keys()
    try:
        if statistics:
            with _AffineNorm():
                yield
        else:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_attention)
