"""Speed and margin gradient against central differences of margins that were searched again.

Nothing here trusts the closed forms: the network is moved both ways, the closest points are searched anew, and the
difference of the margins is what the formulas must predict.
"""

import copy
import functools
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from networks import random_like, smooth_network, uniform
from torch import Tensor, nn

import dyart

NORMS = ("linf", "l2")
BOUNDARIES = ("exact", "soft")
BOXES = (None, (0.0, 1.0))
EXAMPLES, FEATURES, CLASSES = 48, 12, 4
BETA = 1.0  # soft enough that the soft boundary is not the exact one
STEP = 1e-4  # length of the move in parameter space
DIRECTIONS = ("random 0", "random 1", "random 2")


class Case(NamedTuple):
    norm: str
    boundary: str
    box: tuple[float, float] | None
    signed: bool = False


ALL_CASES = [Case(norm, boundary, box) for norm in NORMS for boundary in BOUNDARIES for box in BOXES]
BOXED = [case for case in ALL_CASES if case.box is not None]
SIGNED = [case._replace(signed=True) for case in ALL_CASES]
L1 = [Case("l1", boundary, box) for boundary in BOUNDARIES for box in BOXES]


def name_of(case: Case) -> str:
    return f"{case.norm}-{case.boundary}-{'box' if case.box else 'no box'}"


over_cases = pytest.mark.parametrize("case", ALL_CASES, ids=name_of)
over_boxed = pytest.mark.parametrize("case", BOXED, ids=name_of)
over_l1 = pytest.mark.parametrize("case", L1, ids=name_of)
over_signed = pytest.mark.parametrize("case", SIGNED, ids=name_of)
over_alpha = pytest.mark.parametrize("alpha", [3.0, 0.0])


@functools.cache
def network() -> nn.Module:
    return smooth_network(FEATURES, CLASSES)


@functools.cache
def inputs() -> Tensor:
    # Stretched and clipped: half of the coordinates sit at 0 or 1, and many of them would have to leave the box.
    return (2 * uniform(EXAMPLES, FEATURES, dtype=torch.float64) - 0.5).clamp(0, 1)


@functools.cache
def labels(signed: bool) -> Tensor:
    """The predictions; for signed margins every other label is the runner-up, so that the example is misclassified."""
    ranked = network()(inputs()).topk(2).indices
    wrong = torch.arange(EXAMPLES) % 2 == 1
    return torch.where(wrong, ranked[:, 1], ranked[:, 0]) if signed else ranked[:, 0]


def search(case: Case, model: nn.Module) -> dyart.BoundaryPoints:
    return dyart.closest_boundary_points(
        model,
        inputs(),
        labels(case.signed),
        norm=case.norm,
        boundary=case.boundary,
        beta=BETA,
        bounds=case.box,
        steps=80,
        tol=1e-11,
        signed=case.signed,
    )


@functools.cache
def solved(case: Case) -> dyart.BoundaryPoints:
    return search(case, network())


@functools.cache
def direction(which: str) -> dict[str, Tensor]:
    if which == "loss":
        # Towards random labels: a step that helps some examples and hurts others.
        targets = torch.arange(EXAMPLES) % CLASSES
        return dyart.update_direction(network(), loss=lambda: F.cross_entropy(network()(inputs()), targets))
    return random_like(network(), seed=int(which.split()[1]))


class Difference(NamedTuple):
    ahead: Tensor
    behind: Tensor
    width: float
    followed: Tensor
    """All three searches converged, to the same local point moved a little."""

    @property
    def rate(self) -> Tensor:
        return (self.ahead - self.behind) / self.width


@functools.cache
def resolved(case: Case, which: str) -> Difference:
    move = direction(which)
    step = STEP / float(torch.stack([rate.norm() for rate in move.values()]).norm())
    found, ends = solved(case), []
    for sign in (1, -1):
        moved = copy.deepcopy(network())
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter += sign * step * move[name]
        ends.append(search(case, moved))
    jumps = torch.stack([(end.points - found.points).abs().amax(dim=1) for end in ends])
    # The closed forms hold at locally closest points where the margin function is differentiable. From outside its
    # class an example's closest point may lie where two rivals tie, a kink: the alignment stays below 1 there.
    converged = torch.stack([points.found & (points.alignment > 0.995) for points in (found, *ends)])
    followed = converged.all(dim=0) & (jumps < 0.01).all(dim=0)
    return Difference(ends[0].margin, ends[1].margin, 2 * step, followed)


def errors(predicted: Tensor, measured: Tensor) -> tuple[float, float]:
    """The correlation and the median relative error."""
    correlation = torch.corrcoef(torch.stack([predicted, measured]))[0, 1]
    return float(correlation), float(((predicted - measured).abs() / measured.abs()).median())


def threshold(case: Case) -> float:
    """A value for r0 in the middle of the margins, in the widest gap there: no margin may cross it on the move."""
    margins = solved(case).margin
    margins = margins[margins.isfinite()].sort().values
    middle = margins[len(margins) * 2 // 5 : len(margins) * 3 // 5]
    widest = middle.diff().argmax()
    return float(middle[widest] + middle[widest + 1]) / 2


def per_example_gradients(case: Case, cost: dyart.ExponentialCost, **options: bool) -> list[tuple[Tensor, ...]]:
    model = network()
    costs = dyart.margin_loss(model, solved(case), cost, reduction="none", **options)
    return [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in costs]


def along(gradient: tuple[Tensor, ...], which: str) -> float:
    return float(sum((g * v).sum() for g, v in zip(gradient, direction(which).values(), strict=True)))


@over_boxed
def test_many_coordinates_are_pinned_in_the_boxed_cases(case):
    # Written out here, not taken from found.free: the other tests are worth little if this does not hold.
    found = solved(case)
    at_bound = (inputs() == 0) | (inputs() == 1)
    assert at_bound.double().mean() > 0.4
    stuck_low = (found.points == 0) & (found.gradient > 0)
    stuck_high = (found.points == 1) & (found.gradient < 0)
    assert (stuck_low | stuck_high).double().mean() > 0.2


@over_cases
def test_soft_and_exact_boundaries_are_different_problems(case):
    other = solved(case._replace(boundary="exact" if case.boundary == "soft" else "soft"))
    both = solved(case).found & other.found
    assert ((solved(case).margin - other.margin).abs()[both] > 1e-3).double().mean() > 0.5


@over_cases
def test_speed_under_a_loss_step(case):
    speed = dyart.boundary_speed(network(), solved(case), direction("loss"))
    difference = resolved(case, "loss")
    rows = difference.followed
    assert rows.sum() >= 0.9 * solved(case).found.sum()
    assert rows.sum() >= 18
    # Both signs occur: an implementation without the sign of the derivative would not pass on one of them alone.
    assert (difference.rate[rows] > 0).any()
    assert (difference.rate[rows] < 0).any()
    correlation, error = errors(speed[rows], difference.rate[rows])
    assert correlation > 0.999
    assert error < 0.01


@over_l1
def test_speed_for_l1(case):
    speed = dyart.boundary_speed(network(), solved(case), direction("loss"))
    difference = resolved(case, "loss")
    rows = difference.followed
    assert rows.sum() >= 0.9 * solved(case).found.sum()
    # One coordinate moves, or none is left that the box does not pin: where two compete, the last digits are lost.
    correlation, error = errors(speed[rows], difference.rate[rows])
    assert correlation > 0.99
    assert error < 0.001


@over_alpha
@over_cases
def test_margin_gradient_of_the_batch_along_random_directions(case, alpha):
    cost = dyart.ExponentialCost(alpha, threshold(case))
    model, found = network(), solved(case)
    predicted, measured = [], []
    for which in DIRECTIONS:
        difference = resolved(case, which)
        rows = difference.followed
        assert rows.sum() >= 0.9 * found.found.sum()
        loss = dyart.margin_loss(model, found, cost, mask=rows)
        predicted.append(along(torch.autograd.grad(loss, list(model.parameters())), which))
        change = torch.where(rows, cost(difference.ahead) - cost(difference.behind), 0.0)
        measured.append(float(change.sum()) / len(found) / difference.width)
    correlation, error = errors(torch.tensor(predicted), torch.tensor(measured))
    assert correlation > 0.999
    assert error < 0.01


@over_alpha
@over_cases
def test_margin_gradient_of_every_example_along_a_random_direction(case, alpha):
    cost = dyart.ExponentialCost(alpha, threshold(case))
    difference = resolved(case, DIRECTIONS[0])
    predicted = torch.tensor([along(gradient, DIRECTIONS[0]) for gradient in per_example_gradients(case, cost)])
    measured = (cost(difference.ahead) - cost(difference.behind)) / difference.width
    below = solved(case).margin < cost.r0
    beyond = difference.followed & ~below
    rows = difference.followed & below
    assert rows.sum() >= 10
    assert beyond.sum() >= 10
    correlation, error = errors(predicted[rows], measured[rows])
    assert correlation > 0.999
    assert error < 0.01
    assert (predicted[beyond] == 0).all()
    assert (measured[beyond] == 0).all()


@over_boxed
def test_the_unboxed_formula_is_measurably_worse_inside_a_box(case):
    difference = resolved(case, "loss")
    rows = difference.followed
    _, error = errors(dyart.boundary_speed(network(), solved(case), direction("loss"))[rows], difference.rate[rows])
    paper = dyart.boundary_speed(network(), solved(case), direction("loss"), box_aware=False)
    _, error_of_paper = errors(paper[rows], difference.rate[rows])
    assert error_of_paper > 10 * error
    assert error_of_paper > 0.02


@over_boxed
def test_the_unboxed_margin_gradient_is_measurably_worse_inside_a_box(case):
    cost = dyart.ExponentialCost(3.0, 10.0)
    difference = resolved(case, DIRECTIONS[0])
    rows = difference.followed
    measured = (cost(difference.ahead) - cost(difference.behind)) / difference.width
    error = {}
    for box_aware in (True, False):
        gradients = per_example_gradients(case, cost, box_aware=box_aware)
        predicted = torch.tensor([along(gradient, DIRECTIONS[0]) for gradient in gradients])
        error[box_aware] = errors(predicted[rows], measured[rows])[1]
    assert error[True] < 0.01
    assert error[False] > 10 * error[True]
    assert error[False] > 0.02


@over_signed
def test_speed_of_signed_margins(case):
    found, difference = solved(case), resolved(case, "loss")
    speed = dyart.boundary_speed(network(), found, direction("loss"))
    outside = difference.followed & ~found.inside
    assert outside.sum() >= 18
    assert (found.margin[outside] < 0).all()
    for rows in (outside, difference.followed & found.inside):
        correlation, error = errors(speed[rows], difference.rate[rows])
        assert correlation > 0.999
        assert error < 0.01


@over_alpha
@over_signed
def test_margin_gradient_of_signed_margins(case, alpha):
    cost = dyart.ExponentialCost(alpha, 10.0)
    difference = resolved(case, DIRECTIONS[0])
    rows = difference.followed & ~solved(case).inside
    assert rows.sum() >= 18
    predicted = torch.tensor([along(gradient, DIRECTIONS[0]) for gradient in per_example_gradients(case, cost)])
    measured = (cost(difference.ahead) - cost(difference.behind)) / difference.width
    correlation, error = errors(predicted[rows], measured[rows])
    assert correlation > 0.999
    assert error < 0.01
