"""What the tests of the search on curved boundaries share."""

import torch
from problems import Ellipsoid, uniform

from dyart.boundary.margins import boundary_value

NORMS = ["linf", "l2"]
BOUNDARIES = ["exact", "soft"]


def assert_margins(found, truth, relative, rounding=1e-5):
    """The margin is an upper bound of the true one up to rounding, and a good one."""
    excess = found.margin.double() - truth
    assert bool(found.found.all())
    assert float(excess.min()) >= -rounding
    assert float((excess - relative * truth).max()) <= rounding


def value_at_points(model, found):
    with torch.no_grad():
        return boundary_value(model(found.points), found.labels, found.boundary, found.beta)


def long_ellipsoid(features):
    return Ellipsoid(torch.full((features,), 0.45), torch.linspace(0.25, 1.0, features) * 0.5 * features**0.5)


def around(model, count):
    """Return inputs on rays from the centre, from 0.4 to 1.4 times as far out as the boundary."""
    rays = uniform((count, len(model.axes)), 3, -1, 1, torch.float64)
    share = uniform((count, 1), 4, 0.4, 1.4, torch.float64)
    return model.center + rays * share / (rays / model.axes).norm(dim=1, keepdim=True)
