"""Results made by hand or moved along the boundary, for the tests of optimality."""

import dataclasses

import torch
from problems import distance, uniform

from dyart.boundary import optimality
from dyart.boundary.margins import boundary_value
from dyart.boundary.points import BoundaryPoints, Passes
from dyart.boundary.validation import as_bounds

NORMS = ["linf", "l2"]
DOUBLE = torch.float64


def by_hand(inputs, points, gradient, norm="linf", value=0.0, input_value=1.0, bounds=None, found=True):
    """Return BoundaryPoints made of given rows, with margin and alignment as the search would report them."""
    inputs, points, gradient = (torch.as_tensor(rows, dtype=DOUBLE) for rows in (inputs, points, gradient))
    count = len(inputs)
    value, input_value = (torch.as_tensor(x, dtype=DOUBLE).expand(count) for x in (value, input_value))
    found = torch.as_tensor(found).expand(count)
    inside = input_value > 0
    orientation = torch.where(inside, 1.0, -1.0).to(DOUBLE)
    free = optimality.free_coordinates(points - inputs, points, gradient, orientation, *as_bounds(bounds, inputs))
    alignment = optimality.alignment(points - inputs, gradient, orientation, free, norm)
    return BoundaryPoints(
        inputs=inputs,
        labels=torch.zeros(count, dtype=torch.long),
        norm=norm,
        boundary="exact",
        beta=5.0,
        bounds=bounds,
        points=points,
        margin=torch.where(found, orientation * distance(points, inputs, norm), torch.nan),
        value=value,
        gradient=gradient,
        correct=inside,
        inside=inside,
        found=found,
        alignment=torch.where(found, alignment, torch.nan),
        rival=torch.where(found, 1, -1),
        input_value=input_value,
        cost=Passes(1, 0),
    )


def moved(found, model, points):
    """Return ``found`` with other points: value, gradient, margin and alignment measured anew."""
    leaf = points.clone().requires_grad_()
    value = boundary_value(model(leaf), found.labels, found.boundary, found.beta)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    margin = distance(points, found.inputs, found.norm).to(found.margin) * found.orientation
    changed = dataclasses.replace(found, points=points, value=value.detach(), gradient=gradient, margin=margin)
    alignment = optimality.alignment(changed.displacement, gradient, changed.orientation, changed.free, changed.norm)
    return dataclasses.replace(changed, alignment=alignment)


def at_many_bounds(shape, seed, dtype=torch.float32):
    """Return inputs in the unit box, half of whose features lie at a bound, as the pixels of many images do."""
    inputs = uniform(shape, seed, dtype=dtype)
    return torch.where(uniform(shape, seed + 1) < 0.5, inputs.round(), inputs)
