"""What a model does on a few examples: by it a journal knows the model that it is of.

Weights alone do not tell: a callable shows none, and code that was changed does something else with the same ones: at
the examples, beside them, where attacks look, or on the way back.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dyart.attacks.radii import width_of
from dyart.boundary.validation import Bounds, as_bounds
from dyart.evaluation.views import View

Behaviour = dict[str, list[list[float]]]

# How far beside the examples, in sides of the box.
BESIDE = 0.02
# How much each may differ, in its largest number: by rounding, and slopes also where a unit is at its kink.
TOLERANCES = {"logits": 1e-3, "beside": 1e-3, "slopes": 0.05}


def behaviour(view: View, x: Tensor, bounds: Bounds) -> Behaviour:
    """Return logits at some examples and beside them, and slopes there: two forward passes and a backward pass.

    Args:
        view: of the model; these passes are not counted.
        x: the examples.
        bounds: the box; points stay inside.
    """
    way = 2 * torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x) - 1
    width = width_of(bounds)
    beside = x + BESIDE * (width if np.isfinite(width) else 1.0) * way.sign()
    beside = beside if bounds is None else beside.clamp(*as_bounds(bounds, x, check=False))
    before = view.count.forward, view.count.backward
    with torch.no_grad():
        logits = view(x)
    found = {"logits": logits} | dict(zip(("beside", "slopes"), _sloping(view, beside, way), strict=True))
    view.count.forward, view.count.backward = before
    return {name: values.double().nan_to_num().tolist() for name, values in found.items()}


def alike(one: object, other: object) -> bool:
    """Say whether two behaviours are of one model, but for rounding; not if an earlier version wrote one of them."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one == other
    if one.keys() != other.keys():
        return False
    return all(_close(one[name], other[name], TOLERANCES.get(name, 0.0)) for name in one)


def _sloping(view: View, x: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits, and slopes of a mixture of them along ``way``, ``[N, 1]``: none where there are no gradients."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = view(x)
        mixture = torch.arange(1.0, logits.shape[1] + 1).cos().to(logits)
        try:
            (gradient,) = torch.autograd.grad((logits * mixture).sum(), x)
        except (RuntimeError, ValueError):
            return logits.detach(), x.new_zeros(0, 1)
    return logits.detach(), (gradient * way).flatten(1).sum(dim=1, keepdim=True)


def _close(one: object, other: object, tolerance: float) -> bool:
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    scale = float(np.abs(first).max(initial=0))
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=0, atol=tolerance * scale))
