"""Small classifiers whose margins are known, for the tests of the boundary search.

A problem is a module from inputs to logits and a function that returns the truth, computed in float64 by another way
than the search: closed forms, roots of monotone equations in one variable, scipy's solvers, brute force in the plane.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor, nn


class Truth(NamedTuple):
    """What is known of a batch, in float64."""

    margin: Tensor
    """``[N]``; inf where the boundary cannot be reached, nan where the method does not know."""
    points: Tensor
    """``[N, D]``: a closest point; the only one unless the problem says otherwise."""
    rival: Tensor
    """``[N]``: the class on the other side."""


def two_logits(phi: Tensor) -> Tensor:
    """Return logits of two classes whose margin for class 0 is ``phi``, and ``-phi`` for class 1."""
    return torch.stack([phi / 2, -phi / 2], dim=1)


def uniform(shape, seed, low=0.0, high=1.0, dtype=torch.float32) -> Tensor:
    """Return numbers drawn evenly between ``low`` and ``high``, the same in every dtype up to rounding."""
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (low + (high - low) * draws).to(dtype)


def distance(points, inputs, norm) -> Tensor:
    """Return the p-norm of the difference of every example, ``[N]``, in float64."""
    order = {"linf": math.inf, "l2": 2, "l1": 1}[norm]
    return torch.linalg.vector_norm((points.double() - inputs.double()).flatten(1), ord=order, dim=1)


# Linear classifiers: the margin is the distance to the nearest of K - 1 hyperplanes.


def linear_model(classes, features, seed=0, dtype=torch.float32) -> nn.Linear:
    """Return a linear classifier of vectors with random weights."""
    model = nn.Linear(features, classes, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(uniform((classes, features), seed, -1, 1, torch.float64))
        model.bias.copy_(uniform((classes,), seed + 1, -0.3, 0.3, torch.float64))
    return model


def linear_truth(model, inputs, labels, norm) -> Truth:
    """Return |z_y - z_k| / ||w_y - w_k||_q for the nearest class k; the distance counts from either side.

    The distance to the label's region is the one to the hyperplane only for two classes or from inside.
    """
    x, normals, offsets = _differences(model, inputs, labels)
    dual = torch.linalg.vector_norm(normals, ord={"linf": 1, "l2": 2, "l1": math.inf}[norm], dim=2)
    margins = torch.where(dual > 0, offsets.abs() / torch.where(dual > 0, dual, 1.0), torch.inf)
    margin, rival = margins.min(dim=1)
    rows = torch.arange(len(x))
    normal, side = normals[rows, rival], offsets[rows, rival].sign()
    # The direction of unit p-norm that the affine function rises along fastest.
    steepest = nn.functional.one_hot(normal.abs().argmax(dim=1), x.shape[1])
    units = {"linf": normal.sign(), "l2": normal / dual[rows, rival][:, None], "l1": normal.sign() * steepest}
    return Truth(margin, x - (side * margin)[:, None] * units[norm], rival)


def linear_truth_in_box(model, inputs, labels, norm, low, high) -> Truth:
    """Return the margins inside a box, from inside the class: per rival a linear program (linf, l1) or SLSQP (l2).

    Across the boundary is the union of K - 1 half-spaces, so that the nearest of them counts. For linf the closest
    point is not unique: coordinates with a zero weight may be anywhere, others too where the box ends the motion.
    """
    x, normals, offsets = _differences(model, inputs, labels)
    low, high = (torch.as_tensor(bound, dtype=torch.float64).expand(x.shape[1]).numpy() for bound in (low, high))
    solve = {"linf": _half_space_linf, "l2": _half_space_l2, "l1": _half_space_l1}[norm]
    margin, points, rival = [], [], []
    for row, label in enumerate(labels.tolist()):
        others = [k for k in range(normals.shape[1]) if k != label]
        solved = [solve(x[row].numpy(), normals[row, k].numpy(), float(offsets[row, k]), low, high) for k in others]
        best = int(np.argmin([distance for distance, _ in solved]))
        margin.append(solved[best][0])
        points.append(solved[best][1])
        rival.append(others[best])
    return Truth(torch.tensor(margin, dtype=torch.float64), torch.tensor(np.array(points)), torch.tensor(rival))


def _differences(model, inputs, labels):
    """Return the flat inputs, and for every class k normal and value of z_y - z_k, in float64."""
    x = inputs.double().reshape(len(inputs), -1)
    weight, bias = model.weight.detach().double(), model.bias.detach().double()
    logits = x @ weight.T + bias
    return x, weight[labels][:, None] - weight[None], logits.gather(1, labels[:, None]) - logits


def _half_space_linf(x, normal, offset, low, high):
    # Variables: the displacement d, and t >= |d_i|.
    size = len(x)
    eye, ones = np.eye(size), np.ones((size, 1))
    rows = np.vstack([np.hstack([eye, -ones]), np.hstack([-eye, -ones]), np.append(normal, 0.0)[None]])
    limits = np.concatenate([np.zeros(2 * size), [-offset]])
    bounds = [*zip(low - x, high - x, strict=True), (0, None)]
    solved = linprog(np.append(np.zeros(size), 1.0), A_ub=rows, b_ub=limits, bounds=bounds)
    return (solved.x[-1], x + solved.x[:-1]) if solved.status == 0 else (math.inf, x)


def _half_space_l1(x, normal, offset, low, high):
    # Variables: how far every coordinate goes up, and how far down.
    room = [*zip(np.zeros_like(x), high - x, strict=True), *zip(np.zeros_like(x), x - low, strict=True)]
    rows = np.concatenate([normal, -normal])[None]
    solved = linprog(np.ones(2 * len(x)), A_ub=rows, b_ub=[-offset], bounds=room)
    return (solved.fun, x + solved.x[: len(x)] - solved.x[len(x) :]) if solved.status == 0 else (math.inf, x)


def _half_space_l2(x, normal, offset, low, high):
    if offset + np.where(normal > 0, normal * (low - x), normal * (high - x)).sum() > 0:
        return math.inf, x
    # Scaled to a unit normal, so that the solver's tolerances mean distances.
    size = np.linalg.norm(normal)
    normal, offset = normal / size, offset / size
    solved = minimize(
        lambda d: d @ d / 2,
        np.clip(-offset * normal, low - x, high - x),
        jac=lambda d: d,
        method="SLSQP",
        bounds=list(zip(low - x, high - x, strict=True)),
        constraints={"type": "ineq", "fun": lambda d: -offset - normal @ d, "jac": lambda d: -normal},
        options={"ftol": 1e-16, "maxiter": 500},
    )
    assert abs(offset + normal @ solved.x) < 1e-9, solved
    return np.linalg.norm(solved.x), x + solved.x


# Two classes divided by an ellipsoid: curved, with a closest point known to machine precision.


class Ellipsoid(nn.Module):
    """Class 0 inside: phi = scale (1 - sum_i ((x_i - center_i) / axes_i)^2)."""

    def __init__(self, center, axes, scale=1.0) -> None:
        super().__init__()
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float64))
        self.register_buffer("axes", torch.as_tensor(axes, dtype=torch.float64).expand(self.center.shape))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        ratio = (x.flatten(1) - self.center.to(x)) / self.axes.to(x)
        return two_logits(self.scale * (1 - (ratio**2).sum(dim=1)))


def ball(center, radius) -> Ellipsoid:
    """Return the classifier with phi = radius^2 - |x - center|^2."""
    return Ellipsoid(center, radius, scale=radius**2)


def ellipsoid_truth(model: Ellipsoid, inputs, norm, bounds=None) -> Truth:
    """Return the margins of inputs on either side of an ellipsoid, with or without a box, for linf and l2."""
    a = inputs.double().flatten(1) - model.center
    low, high = (-math.inf, math.inf) if bounds is None else bounds
    low, high = (torch.as_tensor(bound, dtype=torch.float64) - model.center for bound in (low, high))
    low, high = low.expand_as(a), high.expand_as(a)
    inside = ((a / model.axes) ** 2).sum(dim=1) < 1
    solve = _ellipsoid_linf if norm == "linf" else _ellipsoid_l2
    # Both answers for all rows, and the right one of each: the batch is small.
    outward, inward = (solve(a, model.axes, low, high, leaving) for leaving in (True, False))
    z = torch.where(inside[:, None], outward, inward)
    margin = distance(z, a, norm)
    nearest = torch.minimum(torch.maximum(torch.zeros_like(low), low), high)
    extreme = torch.where(inside[:, None], torch.maximum(low.abs(), high.abs()), nearest)
    unreachable = (((extreme / model.axes) ** 2).sum(dim=1) < 1) == inside
    return Truth(torch.where(unreachable, math.inf, margin), z + model.center, inside.long())


def _ellipsoid_linf(a, axes, low, high, leaving):
    """Grow a cube around ``a``, cut by the box, until its extreme of a separable function reaches the ellipsoid.

    That extreme is the sum of the extremes over every side, so that one equation in the half-side is left; it is
    monotone. From inside the point is unique unless the centre lies in the middle of a side; from outside coordinates
    that reach 0 early may stop anywhere nearer, and the one returned stays as close to 0 as it can.
    """

    def reached(half_side):
        down = torch.maximum(a - half_side[:, None], low)
        up = torch.minimum(a + half_side[:, None], high)
        if leaving:
            return torch.where(up.abs() >= down.abs(), up, down)
        return torch.minimum(torch.maximum(torch.zeros_like(a), down), up)

    farthest = a.abs().amax(dim=1) + axes.max()
    half_side = _root(lambda t: ((reached(t) / axes) ** 2).sum(dim=1) - 1, torch.zeros_like(farthest), farthest)
    return reached(half_side)


def _ellipsoid_l2(a, axes, low, high, leaving):
    """Solve the secular equation: z_i = a_i / (1 + m / axes_i^2), cut to the box, with m such that z is on it.

    The Lagrangian |z - a|^2 + m (sum (z_i / axes_i)^2 - 1) is convex in z for m > -min(axes)^2 and separable, so that
    a root in that range is the global optimum by duality, also when leaving the ellipsoid, where the problem is not
    convex. Without a root there (centres, and boxes that cut deep) the result is nan: not for this method.
    """

    def reached(multiplier):
        z = a / (1 + multiplier[:, None] / axes**2)
        return torch.minimum(torch.maximum(z, low), high)

    zero = torch.zeros(len(a), dtype=torch.float64)
    smallest = float((axes**2).min())
    end = -smallest * (1 - 1e-12) if leaving else 1e9
    return reached(_root(lambda m: ((reached(m) / axes) ** 2).sum(dim=1) - 1, zero, zero + end))


def _root(function, start, end):
    """Return where a monotone function of one number per row changes sign, by bisection; nan where it does not."""
    first, changes = function(start).sign(), function(start).sign() != function(end).sign()
    for _ in range(200):
        middle = (start + end) / 2
        before = function(middle).sign() == first
        start, end = torch.where(before, middle, start), torch.where(before, end, middle)
    return torch.where(changes, (start + end) / 2, torch.nan)


# One feature or two, with more than one boundary.


class Xor(nn.Module):
    """Class 0 in two opposite quadrants around (1/2, 1/2): phi = 4 (x_1 - 1/2) (x_2 - 1/2)."""

    def forward(self, x: Tensor) -> Tensor:
        return two_logits(4 * (x[:, 0] - 0.5) * (x[:, 1] - 0.5))


def xor_truth(inputs) -> Tensor:
    """Return the margins, the same in every p-norm: the nearer of the two lines."""
    return (inputs.double() - 0.5).abs().amin(dim=1)


class Strip(nn.Module):
    """Class 0 between two parallel planes: phi = width^2 - (unit normal . x - middle)^2."""

    def __init__(self, normal, middle, width) -> None:
        super().__init__()
        normal = torch.as_tensor(normal, dtype=torch.float64)
        self.register_buffer("normal", normal / normal.norm())
        self.middle, self.width = middle, width

    def forward(self, x: Tensor) -> Tensor:
        return two_logits(self.width**2 - (x @ self.normal.to(x) - self.middle) ** 2)

    def truth(self, inputs, norm) -> Tensor:
        """Return the margins of inputs between the planes or beyond: the nearer plane."""
        height = inputs.double() @ self.normal - self.middle
        return (height.abs() - self.width).abs() / (self.normal.abs().sum() if norm == "linf" else 1.0)


class Wave(nn.Module):
    """Classes that take turns along a line, for inputs without any feature axis: phi = cos(pi x)."""

    def forward(self, x: Tensor) -> Tensor:
        return two_logits(torch.cos(math.pi * x))


def wave_truth(inputs) -> Tensor:
    """Return the margins: the distance to the nearest half-odd number."""
    x = inputs.double()
    return (x - (torch.floor(x) + 0.5)).abs()


# Margin functions with a difficult shape along the way.


class Shaped(nn.Module):
    """Class 0 below the plane mean(x) = edge: phi = shape(edge - mean(x)), with shape(0) = 0 and increasing."""

    def __init__(self, edge, shape) -> None:
        super().__init__()
        self.edge, self.shape = edge, shape

    def forward(self, x: Tensor) -> Tensor:
        return two_logits(self.shape(self.edge - x.flatten(1).mean(dim=1)))

    def truth(self, inputs, norm) -> Tensor:
        """Return the margins without bounds."""
        x = inputs.double().flatten(1)
        return (self.edge - x.mean(dim=1)).abs() * (1.0 if norm == "linf" else x.shape[1] ** 0.5)


def kinked(gentle, steep):
    """Return a shape with slope ``gentle`` inside the class and ``steep`` outside, like a ReLU network's."""
    return lambda height: gentle * height - (steep - gentle) * torch.relu(-height)


def flattened(slope):
    """Return a shape whose slope at the boundary is ``slope`` and whose mean slope up to height 1 is 1."""
    return lambda height: (1 - slope) * height**3 + slope * height


class Constant(nn.Module):
    """Always class 0, though not flat: phi = 1 + |x|^2."""

    def forward(self, x: Tensor) -> Tensor:
        return two_logits(1 + (x.flatten(1) ** 2).sum(dim=1))


def smooth_network(features, classes, seed=0, width=32, gain=3.0, dtype=torch.float32) -> nn.Sequential:
    """Return a network without kinks and with random weights, whose margins nobody knows."""
    layers = [nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, classes)]
    model = nn.Sequential(*layers).to(dtype)
    with torch.no_grad():
        for number, layer in enumerate(model[::2]):
            spread = gain / layer.in_features**0.5
            layer.weight.copy_(uniform(layer.weight.shape, 10 * seed + 2 * number, -spread, spread, torch.float64))
            layer.bias.copy_(uniform(layer.bias.shape, 10 * seed + 2 * number + 1, -0.5, 0.5, torch.float64))
    return model


class Watched(nn.Module):
    """Wraps a model and counts what is asked of it."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        self.forward_sizes: list[int] = []
        self.backward_passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forward_sizes.append(len(x))
        logits = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.backward_passes += 1
