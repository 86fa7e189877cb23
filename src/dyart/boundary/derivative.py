"""Directional derivatives in the parameters: d/dt f(theta + t theta') for a whole batch at once.

Forward-mode AD does it in one pass. Where a layer has no forward-mode rule there are three more ways, in order of
preference: forward mode with attention written out, two backward passes, a central difference.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Direction = dict[str, Tensor]
Function = Callable[[nn.Module], Tensor]

METHODS = ("forward mode", "forward mode, math attention", "double backward", "central difference")


def directional_derivative(
    module: nn.Module,
    function: Function,
    direction: Direction,
    method: str | None = None,
) -> tuple[Tensor, str]:
    """Return the derivative of ``function(module)``, ``[N]``, along ``direction``, and the method that gave it.

    Args:
        module: whose parameters and buffers move.
        function: from the module to one value per example.
        direction: parameter or buffer name to its rate of change.
        method: one of ``METHODS``, or None for the first that works.
    """
    ways = {
        METHODS[0]: _forward_mode,
        METHODS[1]: _forward_mode_math_attention,
        METHODS[2]: _double_backward,
        METHODS[3]: _central_difference,
    }
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


class _Call(nn.Module):
    """Makes a function of a module the forward pass of a module, for functional_call."""

    def __init__(self, module: nn.Module, function: Function) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self) -> Tensor:
        return self.function(self.module)


def _forward_mode(module: nn.Module, function: Function, direction: Direction) -> Tensor:
    call = _Call(module, function)
    tensors = _tensors(module)
    primal = {f"module.{name}": tensors[name].detach() for name in direction}
    tangent = {f"module.{name}": rate for name, rate in direction.items()}

    def values(state: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(call, state, ())
        return result

    # The fused inference path of nn.MultiheadAttention has no derivative at all.
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            derivative: Tensor = torch.func.jvp(values, (primal,), (tangent,))[1]
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_attention)
    return derivative


def _forward_mode_math_attention(module: nn.Module, function: Function, direction: Direction) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return _forward_mode(module, function, direction)


def _double_backward(module: nn.Module, function: Function, direction: Direction) -> Tensor:
    tensors = _tensors(module)
    moving = [tensors[name] for name in direction]
    flags = [tensor.requires_grad for tensor in moving]
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            for tensor in moving:
                tensor.requires_grad_(True)
            values = function(module)
            # The backward pass is linear in its incoming gradient; its transpose is the derivative along direction.
            probe = torch.zeros_like(values, requires_grad=True)
            gradients = torch.autograd.grad(values, moving, probe, create_graph=True, allow_unused=True)
            pairs = zip(gradients, direction.values(), strict=True)
            products = [(gradient * rate).sum() for gradient, rate in pairs if gradient is not None]
            if not products:
                return torch.zeros_like(values)
            (derivative,) = torch.autograd.grad(torch.stack(products).sum(), probe)
    finally:
        for tensor, flag in zip(moving, flags, strict=True):
            tensor.requires_grad_(flag)
    return derivative


def _central_difference(module: nn.Module, function: Function, direction: Direction) -> Tensor:
    tensors = _tensors(module)
    size = torch.stack([tensors[name].detach().double().norm() for name in direction]).norm()
    rate = torch.stack([tangent.double().norm() for tangent in direction.values()]).norm()
    dtype = next(iter(direction.values())).dtype
    # The cube root of the precision balances truncation against rounding.
    step = torch.finfo(dtype).eps ** (1 / 3) * (1 + size) / torch.where(rate > 0, rate, 1.0)
    with torch.no_grad(), _shifted(tensors, direction, step):
        ahead = function(module)
    with torch.no_grad(), _shifted(tensors, direction, -step):
        behind = function(module)
    derivative: Tensor = (ahead - behind) / (2 * step).to(ahead)
    return derivative


@contextmanager
def _shifted(tensors: dict[str, Tensor], direction: Direction, step: Tensor) -> Iterator[None]:
    """Move the named tensors by ``step`` along ``direction``: new storage inside, the very old one afterwards."""
    kept = {name: tensors[name].data for name in direction}
    try:
        for name, rate in direction.items():
            tensors[name].data = kept[name] + (step * rate.double()).to(kept[name].dtype)
        yield
    finally:
        for name, data in kept.items():
            tensors[name].data = data


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
