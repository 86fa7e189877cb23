"""How good a boundary point is: which coordinates the box pins, residuals, the paper's conditions.

Notation, per example: d the displacement from the input, g the gradient of the (soft) logit margin at the point,
R the distance ||d||_p, F the coordinates that the box does not pin. The orientation is +1 for an input inside its
class and -1 for one outside, where the boundary is approached from the other side.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.norms import Norm, dual_norm, flat, norm, per_row

# A coordinate sits at a bound if it is away from it by at most PIN_TOLERANCE of the box's width (where that is
# infinite: of the example's largest displacement) and by at most PIN_OF_WAY of that displacement, since a box may be
# much wider than the data. PIN_ROUNDING units of rounding are added.
PIN_TOLERANCE, PIN_OF_WAY, PIN_ROUNDING = 1e-6, 1e-4, 4


class Conditions(NamedTuple):
    """The paper's optimality conditions (its appendix C), one boolean per example.

    a: the point lies on the boundary.
    b: p = inf: most coordinates at the full distance moved against the gradient; p = 2: the cosine;
       p = 1: the alignment, against the same threshold.
    c: p = inf: most other coordinates have a small gradient. The threshold is absolute, so that networks with
       large gradients fail it at converged points: reported, not required. Always true for p = 2 and 1.
    """

    a: Tensor
    b: Tensor
    c: Tensor


def free_coordinates(
    displacement: Tensor,
    points: Tensor,
    gradient: Tensor,
    orientation: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
) -> Tensor:
    """Return F, ``[N, D]``: false where a coordinate sits at the bound that it would have to cross to move on."""
    if lower is None or upper is None:
        return torch.ones_like(flat(points), dtype=torch.bool)
    farthest = per_row(norm(displacement, "linf"), points).nan_to_num()
    span = upper - lower
    near = torch.minimum(PIN_TOLERANCE * torch.where(span.isfinite(), span, farthest), PIN_OF_WAY * farthest)
    rounding = PIN_ROUNDING * torch.finfo(gradient.dtype).eps
    slope = flat(gradient) * orientation[:, None]
    at_lower = flat(points <= lower + near + rounding * lower.abs())
    at_upper = flat(points >= upper - near - rounding * upper.abs())
    return ~(((slope > 0) & at_lower) | ((slope < 0) & at_upper))  # a coordinate goes down where the slope is positive


def alignment(displacement: Tensor, gradient: Tensor, orientation: Tensor, free: Tensor, p: Norm) -> Tensor:
    """Return -g_F.d_F / (||g_F||_q ||d_F||_p), ``[N]`` in [-1, 1]: 1 at first-order optimal points.

    For p = 2 this is the paper's cosine. 0 where no free coordinate moved or has a gradient. Coordinates that the box
    pins are left out: it does not see one that has gone to its bound and need not have.
    """
    g = flat(gradient) * free
    d = flat(displacement) * free
    # Scaled by their largest entry first: products of tiny gradients and displacements would underflow.
    g = g / _nonzero(norm(g, "linf"))[:, None]
    d = d / _nonzero(norm(d, "linf"))[:, None]
    product = -(g * d).sum(dim=1) * orientation
    return (product / _nonzero(dual_norm(g, p) * norm(d, p))).clamp(-1, 1)


def multiplier(displacement: Tensor, gradient: Tensor, free: Tensor, p: Norm) -> Tensor:
    """Return lambda, ``[N]``: how fast the margin function falls as the distance grows.

    Speed and margin gradient divide by it. ||g_F||_1 for linf, ||g_F||_2 R / ||d_F||_2 for l2 (R over all
    coordinates), ||g_F||_inf for l1; without pinned coordinates the paper's ||g||_q.
    """
    slope = dual_norm(flat(gradient) * free, p)
    if p != "l2":
        return slope
    moved = norm(flat(displacement) * free, p)
    return torch.where(moved > 0, slope * norm(displacement, p) / _nonzero(moved), slope)


def paper_conditions(
    displacement: Tensor,
    gradient: Tensor,
    value: Tensor,
    orientation: Tensor,
    free: Tensor,
    p: Norm,
    *,
    residual: float = 0.1,
    opposed: float = 0.9,
    cosine: float = 0.8,
    small: float = 0.1,
    small_share: float = 0.8,
    full: float = 0.8,
) -> Conditions:
    """Check the paper's conditions (a), (b), (c), pinned coordinates excluded.

    Args:
        displacement: from the inputs to the points.
        gradient: of the margin function at the points.
        value: of the margin function at the points, ``[N]``.
        orientation: +1 or -1, ``[N]``.
        free: coordinates that take part, ``[N, D]``.
        p: the norm.
        residual: (a) holds where ``|value| <= residual``.
        opposed: (b), p = inf: share of J that must move against the gradient.
        cosine: (b), p = 2: least cosine between displacement and negative gradient; p = 1: least alignment.
        small: (c): gradients below this count as zero.
        small_share: (c): share of coordinates outside J that must have a small gradient.
        full: J holds the coordinates with ``|d_j| >= full R``; exact equality would leave a handful.
    """
    a = value.abs() <= residual
    if p != "linf":
        return Conditions(a, alignment(displacement, gradient, orientation, free, p) > cosine, torch.ones_like(a))
    d, g = flat(displacement), flat(gradient)
    in_j = (d.abs() >= full * norm(displacement, p)[:, None]) & free
    against = (g * d * orientation[:, None] <= 0) & in_j
    off_j = ~in_j & free
    flat_off_j = (g.abs() < small) & off_j
    return Conditions(
        a,
        against.sum(dim=1) > opposed * in_j.sum(dim=1),
        (flat_off_j.sum(dim=1) > small_share * off_j.sum(dim=1)) | ~off_j.any(dim=1),
    )


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, x)
