"""Checks of user input. Each says what is wrong, with the value, and what to do."""

import math
import numbers
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dyart.boundary.model import Model, logits_of, training_behind

Bound = float | Tensor
Bounds = tuple[Bound, Bound] | None
Start = Tensor | Literal["random"] | None

RANGE_TOLERANCE = 1e-6
SPACINGS = 8  # so many roundings may add up
IN_PLACE = (
    "the model changes its inputs in place, as x.sub_(mean) or a first nn.ReLU(inplace=True) does: the same inputs are "
    "needed again. Write x = x - mean, or begin its forward pass with x = x.clone()"
)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise unless ``value`` is a positive, finite number."""
    if not isinstance(value, numbers.Real) or value == math.inf:
        hint = ": write it without quotes" if isinstance(value, str) and "/" in value else ""
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}{hint}")
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")


def check_count(name: str, value: int, least: int) -> None:
    """Raise unless ``value`` is an integer of at least ``least``."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_weight(name: str, value: float) -> None:
    """Raise unless ``value``, such as the weight of a part of a loss, is finite and not negative."""
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}, which is no number")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_inputs(inputs: Tensor, bounds: Bounds) -> None:
    """Raise unless ``inputs`` is a finite floating-point batch inside the bounds."""
    if not isinstance(inputs, Tensor):
        batches = hasattr(inputs, "__iter__") and not hasattr(inputs, "__array__") and not isinstance(inputs, list)
        advice = "use torch.as_tensor(inputs).float(), for images in 0..255 torch.as_tensor(inputs).float() / 255"
        if batches:
            advice = "search batch by batch and join the results with dyart.concat"
        raise TypeError(f"inputs must be a torch.Tensor, got {type(inputs).__name__}: {advice}")
    if not inputs.is_floating_point():
        raise TypeError(
            f"inputs must be floating point, got {inputs.dtype}; for images in 0..255 pass images.float() / 255, for "
            "tokens their embeddings, to a function from these to logits"
        )
    if inputs.ndim == 0:
        raise ValueError("inputs must be a batch [N, ...], got a single number")
    if 0 in inputs.shape[1:]:
        raise ValueError(f"inputs have shape {tuple(inputs.shape)}: examples without any values have no boundary")
    inputs = inputs.detach()
    lower, upper = as_bounds(bounds, inputs)
    if inputs.numel() == 0:
        return
    if not bool(inputs.isfinite().all()):
        rows = (~inputs.isfinite()).reshape(len(inputs), -1).any(dim=1).nonzero()[:, 0]
        raise ValueError(f"inputs contain NaN or infinity in {len(rows)} examples, the first at index {int(rows[0])}")
    if lower is None or upper is None:
        return
    if beyond := beyond_bounds(inputs, lower, upper):
        least, most = float(inputs.min()), float(inputs.max())
        advice = "if these are normalised images, put the normalisation inside the model and pass images in [0, 1]"
        if least >= 0 and most > 16 and float(upper.max()) <= 1:
            advice = "divide pixels from 0 to 255 by 255"
        raise ValueError(
            f"inputs lie outside the bounds by {beyond:g} (inputs from {least:g} to {most:g}). Margins are "
            f"measured in the space of the inputs: {advice}; if the data has another range, pass bounds=(low, high), "
            "or bounds=None for no bounds"
        )


def beyond_bounds(inputs: Tensor, lower: Tensor, upper: Tensor) -> float:
    """Return how far inputs lie outside a box at most; 0 where that may be rounding.

    Rounding is relative to the larger bound of a coordinate, of which an infinite one counts as 1; where both are 0, to
    the largest of all, 1 at most. In a narrow box far from 0 it is relative to its width, but no less than the numbers
    are spaced there.
    """
    size = torch.maximum(*(torch.where(bound.isfinite(), bound.abs(), 1.0) for bound in (lower, upper)))
    size = torch.where(size > 0, size, size.max().clamp(max=1.0))
    spacing = SPACINGS * torch.finfo(inputs.dtype).eps * size
    width = torch.where((upper > lower) & upper.isfinite() & lower.isfinite(), upper - lower, size)
    rounding = torch.minimum(RANGE_TOLERANCE * size, torch.maximum(RANGE_TOLERANCE * width, spacing))
    beyond = torch.maximum(lower - inputs, inputs - upper)
    return float(torch.where(beyond > rounding, beyond, 0.0).max())


def check_start(start: object, inputs: Tensor, bounds: Bounds, values: bool) -> None:
    """Raise unless ``start`` is None, ``"random"`` or points like ``inputs``; with ``values``, finite and in bounds."""
    if start is None or (isinstance(start, str) and start == "random"):
        return
    if not isinstance(start, Tensor):
        raise TypeError(f"start must be None, 'random' or a tensor of points like inputs, got {start!r}")
    if start.shape != inputs.shape or not start.is_floating_point():
        raise ValueError(
            f"start must be points like inputs, {tuple(inputs.shape)} and floating point, got {tuple(start.shape)} of "
            f"{start.dtype}"
        )
    if start.device != inputs.device:
        raise ValueError(f"start is on {start.device}, inputs on {inputs.device}: move one of them")
    if values:
        try:
            check_inputs(start, bounds)
        except ValueError as error:
            raise ValueError(f"start: {error}") from None


def check_index(index: Tensor, inputs: Tensor, values: bool) -> None:
    """Raise unless ``index`` is one integer per example; with ``values``, none of them negative."""
    if index.shape != inputs.shape[:1] or index.is_floating_point():
        raise ValueError(
            f"index is one integer for each of {len(inputs)} examples, got {index.dtype} {tuple(index.shape)}"
        )
    if values and len(index) and int(index.min()) < 0:
        raise ValueError(f"index counts from 0, got {int(index.min())}")


def check_labels(labels: Tensor, inputs: Tensor) -> None:
    """Raise unless ``labels`` is one integer class per example, on the inputs' device."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a torch.Tensor, got {type(labels).__name__}: use torch.as_tensor")
    if labels.shape != inputs.shape[:1]:
        hint = ""
        if labels.ndim == 2 and len(labels) == len(inputs):
            hint = ": pass labels.squeeze(1)" if labels.shape[1] == 1 else "; for one-hot labels pass labels.argmax(1)"
        elif labels.numel() == 1:
            ways = "inputs[None]" if labels.ndim else "inputs[None] and labels[None]"
            hint = f" for inputs of shape {tuple(inputs.shape)}: if these are one example, pass {ways}"
        raise ValueError(f"labels must have shape ({len(inputs)},), got {tuple(labels.shape)}{hint}")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels must be integer class indices, got {labels.dtype}: use labels.long()")
    if labels.device != inputs.device:
        raise ValueError(f"labels are on {labels.device}, inputs on {inputs.device}: move one of them")


def check_label_range(labels: Tensor, classes: int) -> None:
    """Raise unless every label is in ``0 .. classes-1``."""
    wrong = ((labels < 0) | (labels >= classes)).nonzero()[:, 0]
    if len(wrong):
        raise ValueError(
            f"label {int(labels[wrong[0]])} at index {int(wrong[0])} is out of range: the model has {classes} classes, "
            f"0 to {classes - 1}"
        )


def check_logits(logits: Tensor, examples: int) -> None:
    """Raise on NaN, infinity or a wrong number of rows; warn if the logits look like probabilities.

    A logit of -inf masks a class, and is as good as any where the row has others.
    """
    if len(logits) != examples:
        raise ValueError(f"the model returned {len(logits)} rows of logits for {examples} examples")
    if bool(logits.isnan().any()):
        row = int(logits.isnan().any(dim=1).nonzero()[0, 0])
        raise ValueError(
            f"the model returned NaN logits, first for example {row}: check its weights and the range of its inputs"
        )
    endless = (logits == torch.inf).any(dim=1) | ~logits.isfinite().any(dim=1)
    if bool(endless.any()):
        row = int(endless.nonzero()[0, 0])
        what = "a logit of +inf" if bool((logits[row] == torch.inf).any()) else "no finite logit"
        raise ValueError(
            f"the model returned {what}, first for example {row} (of {int(endless.sum())}): there is no margin in it. "
            "Check its weights, the range of its inputs and whether its numbers are too large for "
            f"{str(logits.dtype).removeprefix('torch.')}; a class is masked with a logit of -inf"
        )
    sums = logits.detach().float().sum(dim=1)
    if bool((logits >= 0).all() & ((sums - 1).abs() < 1e-3).all()):
        warnings.warn(
            "the model seems to return probabilities (non-negative, summing to 1). The exact boundary is the same, "
            "the soft one is not, and gradients vanish where it is confident: return logits (drop the softmax) or "
            "log-probabilities",
            stacklevel=4,
        )


def warn_of_training(model: Model, advice: str, stacklevel: int) -> bool:
    """Warn if the model is a function around a network in training mode: no mode can be set through it.

    Return whether it is.
    """
    behind = training_behind(model)
    if behind:
        warnings.warn(
            f"the model is a function, and {', '.join(behind)} in it is in training mode, with dropout or BatchNorm: "
            f"points would be of other networks than the one that is used later. {advice}",
            stacklevel=stacklevel,
        )
    return bool(behind)


def as_pair(bounds: Iterable[Bound]) -> tuple[Bound, Bound]:
    """Return bounds given as any pair, a tensor of two included, as a tuple."""
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise ValueError(f"bounds must be a pair (low, high) or None, got {bounds!r}") from None
    return low, high


def as_bounds(bounds: Bounds, inputs: Tensor, check: bool = True) -> tuple[Tensor | None, Tensor | None]:
    """Return the box as two tensors that broadcast against ``inputs``, or two Nones; unchecked without host sync."""
    if bounds is None:
        return None, None
    low, high = as_pair(bounds)
    # Rounded to the inputs' dtype first, so that a point inside stays inside when it is rounded itself.
    lower, upper = (_as_tensor(bound, inputs) for bound in (low, high))
    if not check:
        return lower, upper
    for name, bound in (("lower", lower), ("upper", upper)):
        try:
            fits = torch.broadcast_shapes(bound.shape, inputs.shape[1:]) == inputs.shape[1:]
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"the {name} bound has shape {tuple(bound.shape)}; it must be a number or broadcast to one example, "
                f"{tuple(inputs.shape[1:])}"
            )
        if bool(bound.isnan().any()):
            raise ValueError(f"the {name} bound contains NaN")
    if bool((lower > upper).any()):
        raise ValueError("bounds: the lower bound is above the upper one somewhere")
    return lower, upper


def _as_tensor(bound: Bound, inputs: Tensor) -> Tensor:
    if isinstance(bound, (int, float)):  # torch 2.6 compiles no `int | float`
        return inputs.new_full((), bound)  # filled on the device: nothing is copied, nothing waits
    try:
        return torch.as_tensor(bound).detach().to(inputs)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"bounds must be numbers or tensors (inf: no bound on that side), got {bound!r}") from None


def first_logits(model: Model, inputs: Tensor) -> Tensor:
    """Return the logits of ``inputs``, without gradients; a failure says if model and inputs do not match.

    Raises:
        ValueError: the model changes its inputs.
    """
    before = version_of(inputs)
    try:
        with torch.no_grad():
            logits = logits_of(model(inputs))
    except RuntimeError as error:
        hint = mismatch(model, inputs) or _single(model, inputs)
        if hint is not None:
            error.add_note(f"dyart: {hint}")
        raise
    if version_of(inputs) != before:
        raise ValueError(IN_PLACE)
    return logits


def version_of(inputs: Tensor) -> int:
    """Return a number that grows whenever a tensor is changed in place, also through a view of it."""
    return 0 if inputs.is_inference() else inputs._version


def _single(model: Model, inputs: Tensor) -> str | None:
    """Say where the inputs are one example, without a batch dimension."""
    try:
        with torch.no_grad():
            alone = logits_of(model(inputs[None]))
    except Exception:  # whatever goes wrong here, too: then it is not that
        return None
    words = f"inputs of shape {tuple(inputs.shape)} are one example to this model: pass inputs[None]"
    return words if alone.ndim == 2 and len(alone) == 1 else None


def mismatch(model: Model, inputs: Tensor) -> str | None:
    """Say where the model's parameters and the inputs differ in device or dtype."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    parameter = next((p for p in parameters if p.is_floating_point()), None)
    if parameter is None:
        return None
    if parameter.device != inputs.device:
        return f"the model is on {parameter.device}, the inputs are on {inputs.device}; move one of them"
    if parameter.dtype == inputs.dtype:
        return None
    # A model in half precision is measured in the inputs': an evaluation takes no coarser ones than float32.
    half = parameter.dtype.itemsize < torch.float32.itemsize <= inputs.dtype.itemsize
    todo = f"model.to({inputs.dtype})" if half else f"inputs.to({parameter.dtype})"
    return f"the model is {parameter.dtype}, the inputs are {inputs.dtype}; pass {todo}"
