"""The boundary search as a function from examples to adversarial examples, with the arguments that adv-lib's have."""

import math
from typing import Any

import torch
from torch import Tensor

from dyart.boundary.model import Model
from dyart.boundary.norms import NORMS, Norm, per_row
from dyart.boundary.search import closest_boundary_points

_BY_NUMBER: dict[float, Norm] = {1.0: "l1", 2.0: "l2", math.inf: "linf"}


def dyart_attack(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    norm: float | str = math.inf,
    targeted: bool = False,
    steps: int = 50,
    **search: Any,  # noqa: ANN401
) -> Tensor:
    """Return the closest adversarial examples that a boundary search finds: a minimum-norm attack.

    Every row of the result that differs from its input was seen to be classified otherwise (as its target, if there
    are targets), inside the bounds. A row is the input itself where that is adversarial already, or nothing was found.
    The model runs in eval mode, without TF32 and autocast, and is left as it was. For distances, optimality and
    statistics, call ``dyart.closest_boundary_points``, which this one wraps.

    Cost: about ``steps + 10`` forward and backward passes with ten classes, see ``dyart.closest_boundary_points``.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``, inside the bounds.
        labels: ``[N]``: the true classes; with ``targeted``, the classes to reach.
        norm: 1, 2 or ``math.inf``; or ``"l1"``, ``"l2"``, ``"linf"``.
        targeted: look for the closest point of the class in ``labels``. Where that is at a corner between several
            classes, it comes out too far, or is not found.
        steps: gradient evaluations per restart.
        search: further arguments of ``dyart.closest_boundary_points``: ``restarts``, ``bounds``, ``batch_size``, ...
    """
    found = closest_boundary_points(model, inputs, labels, norm=norm_name(norm), steps=steps, signed=targeted, **search)
    # Searched from within its target, an example leaves it: it is where it should be.
    done = found.inside & targeted
    return torch.where(per_row(done, inputs), found.inputs, found.points)


def norm_name(norm: float | str) -> Norm:
    """Return the norm's name, given that or its number.

    Raises:
        ValueError: there is no search in that norm.
    """
    if norm in NORMS:
        return norm
    if isinstance(norm, str) or norm not in _BY_NUMBER:
        raise ValueError(f"no search in the norm {norm!r}: use 1, 2, math.inf, 'l1', 'l2' or 'linf'")
    return _BY_NUMBER[float(norm)]
