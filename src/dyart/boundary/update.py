"""The direction theta' in which a training step moves a model, without taking the step."""

import copy
import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dyart.boundary.model import unchanged, underlying


def update_direction(
    model: nn.Module,
    *,
    loss: Callable[[], Tensor] | None = None,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    buffers: bool = False,
) -> dict[str, Tensor]:
    """Return theta' by parameter name: the negative gradient of a loss, or an optimizer's true next step.

    Nothing changes: not the parameters, their ``.grad``, the buffers (BatchNorm statistics that the loss updates are
    put back) nor the optimizer's state, which is stepped as a copy. Step hooks run on the copy. What a hook does to
    anything else, such as the model, stays done, but parameters are put back; what it does to them is not part of the
    returned step.

    Cost: the loss's forward pass and one backward pass; with an optimizer, two copies of its parameters and gradients
    and one of its state. One host synchronisation, to look for gradients that are not finite.

    Args:
        model: the model, in the mode in which the step would be taken.
        loss: computes a scalar loss of the model, e.g. ``lambda: cross_entropy(model(x), y)``; None: use the
            gradients that ``backward()`` has left in ``.grad`` (needs an optimizer); those that a ``GradScaler`` has
            scaled after its ``unscale_(optimizer)``.
        optimizer: None: theta' = -grad, the paper's continuous time. Otherwise the difference that its next
            ``step()`` makes, with momentum, decay and everything else in its state and settings.
        clip_norm: clip the global norm of the gradient first, as ``clip_grad_norm_`` does.
        buffers: with a loss and an optimizer, include how the loss's forward pass moves float buffers (BatchNorm
            running statistics).

    Raises:
        ValueError: a gradient is not finite, or there is none; or the arguments do not go together.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"update_direction needs an nn.Module, whose parameters can move, got {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        what = "the class" if isinstance(optimizer, type) else "an object of"
        name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise TypeError(f"optimizer is an optimizer of torch that holds the model's parameters, got {what} {name}")
    if loss is None and optimizer is None:
        raise ValueError("update_direction needs a loss, an optimizer with gradients in place, or both")
    if loss is not None and not callable(loss):
        raise TypeError(
            "loss is a function without arguments that returns the loss, e.g. loss=lambda: cross_entropy(model(x), y); "
            f"got {type(loss).__name__}"
        )
    if buffers and (loss is None or optimizer is None):
        raise ValueError("buffers=True needs both a loss, which moves them, and an optimizer, whose step it goes with")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive or None, got {clip_norm}")
    module = underlying(model)
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not named:
        raise ValueError("the model has no parameter that requires a gradient: nothing can move")
    moved: dict[str, Tensor] = {}
    if loss is None:
        named = dict(module.named_parameters())  # a frozen parameter with a gradient left over moves too
        gradients = {name: p.grad.detach() for name, p in named.items() if p.grad is not None}
        if not gradients:
            raise ValueError("no parameter has a gradient: call loss.backward() first, or pass loss=")
    else:
        gradients, moved = _gradients(module, named, loss, buffers)
    if strange := _not_finite(gradients):
        raise ValueError(
            f"the gradient of {strange[0]!r} is not finite"
            + (f", nor are those of {len(strange) - 1} more parameters" if len(strange) > 1 else "")
            + ": the loss is NaN or infinite, or a step to it overflows; there is no direction to take"
        )
    if clip_norm is not None:
        gradients = _clipped(gradients, clip_norm)
    if optimizer is None:
        return {name: -gradient for name, gradient in gradients.items()}
    step = _next_step(named, gradients, optimizer)
    return {**step, **moved}


def _gradients(
    module: nn.Module, named: dict[str, nn.Parameter], loss: Callable[[], Tensor], buffers: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the loss's gradients and, if asked for, how computing it moved the float buffers (which are put back)."""
    floats = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()} if buffers else {}
    before = {name: buffer.detach().clone() for name, buffer in floats.items()}
    device = next(iter(named.values())).device
    with unchanged(module, device), torch.inference_mode(False), torch.enable_grad():
        value = loss()
        if not isinstance(value, Tensor):
            raise TypeError(f"loss must return a tensor with its graph, got {type(value).__name__}: leave out .item()")
        if value.numel() != 1:
            raise ValueError(f"loss must return a scalar, got shape {tuple(value.shape)}")
        if not value.requires_grad:
            raise ValueError("the loss does not depend on the model's parameters")
        found = torch.autograd.grad(value.reshape(()), list(named.values()), allow_unused=True)
        if all(gradient is None for gradient in found):
            raise ValueError("the loss does not depend on the model's parameters: is it of another model?")
        after = dict(module.named_buffers())
        kept = [name for name, buffer in before.items() if name in after and after[name].shape == buffer.shape]
        moved = {name: after[name].detach() - before[name] for name in kept}
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}, moved


def _not_finite(tensors: dict[str, Tensor]) -> list[str]:
    """Return the names of those with an entry that is not finite: one host synchronisation."""
    device = next(iter(tensors.values())).device
    finite = torch.stack([tensor.isfinite().all().to(device) for tensor in tensors.values()]).tolist()
    return [name for name, fine in zip(tensors, finite, strict=True) if not fine]


def _clipped(gradients: dict[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    total = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    factor = (clip_norm / (total + 1e-6)).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def _next_step(named: dict[str, nn.Parameter], gradients: dict[str, Tensor], optimizer: Optimizer) -> dict[str, Tensor]:
    """Return what ``optimizer.step()`` would add to every parameter, by stepping a copy of it."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(f"{type(optimizer).__name__}.step() needs a closure: its step is no function of the gradients")
    originals = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    twin = object.__new__(type(optimizer))
    # All of its attributes and hooks, not only what a checkpoint keeps; a scheduler's patch of step() stays behind.
    twin.__dict__ = copy.deepcopy({name: value for name, value in vars(optimizer).items() if name != "step"})
    copies = [parameter for group in twin.param_groups for parameter in group["params"]]
    twins = {id(original): other for original, other in zip(originals, copies, strict=True)}
    stepped = {name: twins[id(parameter)] for name, parameter in named.items() if id(parameter) in twins}
    if not stepped:
        raise ValueError("the optimizer holds none of the model's parameters: was it built for another model?")
    for other in copies:
        other.grad = None
    for name, other in stepped.items():
        if name in gradients:
            other.grad = gradients[name].detach().clone()
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    twin.step()
    for name, parameter in named.items():  # a hook may have reached for it
        parameter.data.copy_(before[name])
    return {name: other.detach() - before[name] for name, other in stepped.items()}
