"""The plane: three classes with smooth curved boundaries, solved by brute force."""

import math

import torch
from problems import Truth
from torch import Tensor, nn

from dyart.boundary.margins import boundary_value


class Patches(nn.Module):
    """Three classes in the unit square: quadratic scores around three places, with ripples on the boundaries."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([[0.25, 0.30], [0.80, 0.35], [0.45, 0.85]]))
        self.register_buffer("shapes", torch.tensor([[1.0, 1.6], [1.8, 0.9], [0.8, 1.2]]))
        self.register_buffer("waves", torch.tensor([[7.0, -3.0], [2.0, 8.0], [-5.0, 6.0]]))

    def forward(self, x: Tensor) -> Tensor:
        places, shapes, waves = (buffer.to(x) for buffer in (self.places, self.shapes, self.waves))
        squares = (shapes * (x[:, None] - places) ** 2).sum(dim=2)
        return -6 * squares + 0.35 * torch.sin((waves * x[:, None]).sum(dim=2))


def plane_truth(model, inputs, labels, norm, bounds=None, boundary="exact", beta=5.0, reach=1.0) -> Truth:
    """Return the margins of examples in the plane by brute force, to about 1e-5; inf beyond ``reach``, nan if outside.

    A ball around the input, cut by the box, grows until the margin function is negative somewhere on its rim: first in
    120 sizes on a coarse rim, then by bisection on a rim of 1,024 points, corners and ends of arcs among them. The
    closest point is such a corner or end, or the distance is stationary along the rim there: its error is of second
    order in the spacing, R / 2 (pi / 1024)^2 = 5e-6 R for a straight boundary and l2. A region so thin that the
    coarse rim steps over it would be missed: the boundaries here are smoother than that.
    """
    rows = [_plane_row(model, x, y, norm, bounds, boundary, beta, reach) for x, y in zip(inputs, labels, strict=True)]
    margins, points = zip(*rows, strict=True)
    points = torch.stack(points)
    with torch.no_grad():
        logits = model(points).scatter(1, labels[:, None], -math.inf)
    return Truth(torch.tensor(margins, dtype=torch.float64), points, logits.argmax(dim=1))


def _plane_row(model, x, label, norm, bounds, boundary, beta, reach):
    x = x.double()
    coarse, fine = _rim(norm, 128), _rim(norm, 1024)

    def value(points):
        with torch.no_grad():
            return boundary_value(model(points), label.expand(len(points)), boundary, beta)

    def crosses(size):
        return bool((value(_ball_in_box(x, size, fine, norm, bounds)) <= 0).any())

    if float(value(x[None])) <= 0:
        return math.nan, x
    sizes = torch.linspace(0, reach, 121, dtype=torch.float64)
    rims = _into_box(x + sizes[:, None, None] * coarse, bounds)
    across = (value(rims.flatten(0, 1)).reshape(rims.shape[:2]) <= 0).any(dim=1)
    if not bool(across.any()):
        return math.inf, x
    crossed = int(across.double().argmax())
    # One size more below: the fine rim may cross before the coarse one.
    inner, outer = float(sizes[max(crossed - 2, 0)]), float(sizes[crossed])
    assert not crosses(inner)
    while outer - inner > 1e-7:
        middle = (inner + outer) / 2
        inner, outer = (inner, middle) if crosses(middle) else (middle, outer)
    rim = _ball_in_box(x, outer, fine, norm, bounds)
    return outer, rim[value(rim).argmin()]


def _rim(norm, count):
    """Return points of the unit sphere in the plane, ``[count, 2]``, with its corners for linf and l1."""
    if norm == "l2":
        angle = 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
        return torch.stack([angle.cos(), angle.sin()], dim=1)
    along = torch.linspace(-1, 1, count // 4 + 1, dtype=torch.float64)
    ends = torch.ones_like(along)
    square = torch.cat([torch.stack(pair, dim=1) for s in (ends, -ends) for pair in ((along, s), (s, along))])
    # Turned by 45 degrees and shrunk to size, the square is the sphere of l1.
    return square if norm == "linf" else torch.stack([square.sum(dim=1), square.diff(dim=1)[:, 0]], dim=1) / 2


def _into_box(points, bounds):
    if bounds is None:
        return points
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in bounds)
    return torch.minimum(torch.maximum(points, low), high)


def _ball_in_box(x, size, rim, norm, bounds):
    """Return the rim of the ball cut by the box: points beyond the box slide onto it, which only shortens them."""
    points = _into_box(x + size * rim, bounds)
    if bounds is None or norm == "linf":
        return points
    low, high = (torch.as_tensor(bound, dtype=torch.float64).expand(2) for bound in bounds)
    # Where the circle leaves the box the clipped arc has a corner, which the spacing of the rim misses.
    ends = []
    for axis, (center, sideways) in enumerate(zip(x.tolist(), x.flip(0).tolist(), strict=True)):
        for bound in (float(low[axis]), float(high[axis])):
            left = max(size - abs(bound - center), 0.0)
            half_chord = left if norm == "l1" else math.sqrt(left * (size + abs(bound - center)))
            pair = [(bound, sideways - half_chord), (bound, sideways + half_chord)] if half_chord else []
            ends += [end[:: 1 - 2 * axis] for end in pair]
    ends = torch.tensor(ends, dtype=torch.float64).reshape(-1, 2)
    within = ((ends >= low) & (ends <= high)).all(dim=1)
    return torch.cat([points, ends[within]])
