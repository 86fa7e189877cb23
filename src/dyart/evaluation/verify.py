"""Whether a point that an attack found counts: judged by the user's own model, in plain float32, on that very point."""

import torch
from torch import Tensor

from dyart.boundary.model import Model
from dyart.boundary.norms import Norm, flat
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.validation import Bounds, as_bounds


def found_distance(model: Model, inputs: Tensor, labels: Tensor, points: Tensor, norm: Norm, bounds: Bounds) -> Tensor:
    """Return how far every point is that is classified otherwise than labelled, float64 ``[N]``; inf for the others.

    A point outside the box, or with a coordinate that is not finite, is not found. Where the model returns NaN, it does
    not classify as labelled. Cost: one forward pass.

    Args:
        model: the user's own, in plain float32 (``View``).
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        points: like inputs, exactly as they are to be kept.
        norm: of the distance, which is taken in float64.
        bounds: the box.
    """
    with torch.no_grad():
        logits = model(points)
    fooled = (logits.argmax(dim=1) != labels) | logits.isnan().any(dim=1)
    lower, upper = as_bounds(bounds, points, check=False)
    inside = flat(points).isfinite().all(dim=1)
    if lower is not None and upper is not None:
        inside &= flat((points >= lower) & (points <= upper)).all(dim=1)
    distance = norm_of(points.double() - inputs.double(), norm)
    return torch.where(fooled & inside, distance, torch.inf)
