"""The closed-form speed of the decision boundary (the paper's equation 4).

    s(x) = dR/dt = (grad_theta phi(x_hat, theta) . theta') / lambda

For a whole batch the numerator is one Jacobian-vector product: no per-sample gradients, any normalisation layer.
"""

import difflib
import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dyart.boundary.derivative import METHODS, directional_derivative
from dyart.boundary.margins import boundary_value
from dyart.boundary.model import evaluation_mode, ieee_float32, logits_of, ordinary, tensors_of, unchanged, underlying
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.validation import check_choice, check_count

# Of its margin: a point that lies off the boundary by more was not found on it.
ELSEWHERE = 0.5


def boundary_speed(
    model: nn.Module,
    found: BoundaryPoints,
    update: dict[str, Tensor],
    box_aware: bool = True,
    batch_size: int | None = None,
    derivative: str | None = None,
) -> Tensor:
    """Return how fast the margin of every example grows under an update of the model, ``[N]``.

    Positive: the boundary moves away from the example. For an optimizer's step the unit is distance per step; for
    theta' = -grad, distance per unit of time. nan where no point was found, and everywhere if the update is
    not finite. For signed margins it is the speed of the signed margin.

    The model runs in eval mode (BatchNorm with its running statistics; an update of those counts too), in plain
    float32, and is left as it was.

    Cost: one forward pass with tangents, about the time of one forward and backward pass over the found points. Its
    values tell whether the points are on this model's boundary: where most are not, there is a warning. How far off
    they are is judged by the slopes they were found with, so that a much flatter model's may pass.

    Args:
        model: the module that the points belong to.
        found: from ``closest_boundary_points``.
        update: theta', by parameter or float buffer name; names left out do not move. See ``update_direction``.
        box_aware: divide by the multiplier that leaves out coordinates pinned at a bound; False: the paper's
            ||grad_x phi||_q.
        batch_size: examples per pass; None: all at once.
        derivative: ``"forward mode"``, ``"forward mode, math attention"``, ``"double backward"`` or ``"central
            difference"``; None: the first of these that the model's layers support.

    Returns:
        A tensor whose attribute ``derivative`` names the method that was used.
    """
    if derivative is not None:
        check_choice("derivative", derivative, METHODS)
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    if not isinstance(model, nn.Module):
        raise TypeError(f"boundary_speed needs an nn.Module, whose parameters it can move, got {type(model).__name__}")
    if not isinstance(found, BoundaryPoints) or not isinstance(update, dict):
        raise TypeError(
            "boundary_speed(model, found, update) takes BoundaryPoints and a dictionary of tensors by name, as "
            f"update_direction returns it; got {type(found).__name__} and {type(update).__name__}"
        )
    module = underlying(model)
    direction, size = _checked(module, update)
    _check_dtype(module, found)
    rows = found.found.nonzero()[:, 0]
    rates, values_now, used = [], [], derivative
    device = found.points.device
    with ieee_float32(device), evaluation_mode(module), unchanged(module, device):
        for chunk in rows.split(batch_size or max(len(rows), 1)):
            points, labels = found.points[chunk], found.labels[chunk]

            def values(
                net: nn.Module, dtype: torch.dtype | None, points: Tensor = points, labels: Tensor = labels
            ) -> Tensor:
                logits = logits_of(net(points.to(dtype or points.dtype)))
                return boundary_value(logits, labels, found.boundary, found.beta)

            if direction and len(chunk):
                (value, rate), used = directional_derivative(module, values, direction, used)
            else:
                value, rate = found.value[chunk], torch.zeros_like(found.margin[chunk])
            values_now.append(value.detach())
            rates.append(rate.detach().to(found.margin) * size)
    if used == METHODS[-1] and derivative is None:
        warnings.warn(
            "a layer of this model has neither forward-mode nor double-backward derivatives; the speed is a central "
            "difference, less exact where the network has kinks",
            stacklevel=2,
        )
    speed = torch.full_like(found.margin, torch.nan)
    multiplier = found.multiplier(box_aware)[rows]
    speed[rows] = torch.cat(rates) / multiplier
    if len(rows):
        off = (torch.cat(values_now).to(speed) - found.value[rows]).abs() / multiplier
        _warn_of_others(off, found.margin[rows].abs())
    speed.derivative = used or METHODS[0]  # type: ignore[attr-defined]
    return speed


def _warn_of_others(off: Tensor, margin: Tensor) -> None:
    """Warn where the boundary lies elsewhere than when most of the points were found: by ``off`` or so."""
    share = (off > ELSEWHERE * margin).float().mean().item()
    if share > 0.5:
        warnings.warn(
            f"{share:.0%} of the points are no boundary points of this model, by more than half of their margins: the "
            "speed at them means nothing; search again where the weights have changed, and with the model in question",
            stacklevel=3,
        )


def _check_dtype(module: nn.Module, found: BoundaryPoints) -> None:
    """Raise where one of points and parameters is float64 and the other is not: the model does not take such points."""
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    if dtypes and found.points.dtype not in dtypes and torch.float64 in {*dtypes, found.points.dtype}:
        dtype = str(next(iter(dtypes))).removeprefix("torch.")
        raise ValueError(
            f"the points are {str(found.points.dtype).removeprefix('torch.')}, the model is {dtype}: were they found "
            f"with a copy in another precision? Search with this model and inputs.to(torch.{dtype})"
        )


def _checked(module: nn.Module, update: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
    """Return the update by the module's own names, after checking names, shapes and dtypes, and what to multiply by.

    The derivative is linear in it: where float16 is among the dtypes, which holds nothing below 6e-8, the largest entry
    is brought to 1.
    """
    tensors = tensors_of(module)
    plain = {name.replace("_orig_mod.", ""): name for name in tensors}
    named: dict[str, Tensor] = {}
    for given, rate in update.items():
        stripped = given.replace("_orig_mod.", "")
        name = given if given in tensors else plain.get(stripped) or plain.get(stripped.removeprefix("module."))
        if name is None:
            near = difflib.get_close_matches(given, tensors, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise KeyError(f"update names {given!r}, which is no parameter or buffer of the model{hint}")
        tensor = tensors[name]
        if not isinstance(rate, Tensor):
            raise TypeError(f"update of {given!r} must be a tensor, got {type(rate).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"update names {given!r}, a buffer of {tensor.dtype}: only floating-point tensors can move")
        if rate.shape != tensor.shape:
            raise ValueError(
                f"update of {given!r} has shape {tuple(rate.shape)}, the model's has {tuple(tensor.shape)}"
            )
        named[name] = rate
    size = _size(named.values()) if any(tensors[name].dtype == torch.float16 for name in named) else 1.0
    with torch.inference_mode(False):
        cast = {name: ordinary(rate) if size == 1 else ordinary(rate).float() / size for name, rate in named.items()}
        return {name: rate.to(tensors[name]) for name, rate in cast.items()}, size


def _size(rates: Iterable[Tensor]) -> float:
    """Return the largest entry of all; 1 where that is no number to divide by."""
    size = max((rate.abs().max().item() for rate in rates if rate.numel()), default=1.0)
    return size if math.isfinite(size) and size > 0 else 1.0
