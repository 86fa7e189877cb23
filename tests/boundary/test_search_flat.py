"""Networks that saturate: steep at their boundary alone, and nearly flat on either side of it."""

import pytest
import torch
from problems import smooth_network, two_logits, uniform
from torch import nn

import dyart
from dyart.boundary.problem import Problem
from dyart.boundary.restarts import nearest_rivals
from dyart.boundary.validation import as_bounds

FEATURES, STEEPNESS = 4, 10.0
# Of the distance between two inputs whose mean differs by one, all coordinates moved alike.
LENGTH = {"linf": 1.0, "l2": FEATURES**0.5, "l1": float(FEATURES)}


def saturating(x):
    """Return logits within +-5 whose boundary is where the mean is 1/2."""
    return two_logits(10.0 * torch.tanh(STEEPNESS * (0.5 - x.mean(dim=1))))


def exact(inputs, norm):
    return LENGTH[norm] * (inputs.mean(dim=1) - 0.5).abs()


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("steps", [10, 20, 50])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_margins_of_a_saturating_function_are_right(norm, steps, boundary):
    inputs = uniform((200, FEATURES), 0, 0.0, 0.6)
    found = dyart.closest_boundary_points(saturating, inputs, norm=norm, steps=steps, boundary=boundary)
    assert bool(found.found.all())
    ratio = found.margin / exact(inputs, norm)
    assert float(ratio.min()) > 0.999
    assert float(ratio.max()) < (1.1 if steps == 10 else 1.01)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_without_a_box_the_boundary_is_found_from_far_across_it(norm):
    inputs = uniform((50, FEATURES), 1, 0.0, 0.6)
    found = dyart.closest_boundary_points(saturating, inputs, norm=norm, bounds=None)
    torch.testing.assert_close(found.margin, exact(inputs, norm), rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
def test_no_shorter_way_is_left_on_a_saturated_network(activation):
    """Half-way to the point found nobody is across, and sliding the points back changes nothing."""
    inputs = uniform((100, 8), 2)
    network = trained(activation, inputs, (inputs[:, :4].sum(dim=1) > inputs[:, 4:].sum(dim=1)).long())
    found = dyart.closest_boundary_points(network, inputs)
    half = (inputs + found.points) / 2
    assert torch.equal(network(half).argmax(dim=1), found.labels)
    slid = dyart.closest_boundary_points(network, inputs, tol=1e-3)
    assert float((found.margin / slid.margin).max()) < 1.05


def test_a_search_looks_close_to_the_input_before_it_halves_the_way():
    """On networks of three classes; half-way from the beginning, points are 1.2 % too far on average."""
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        inputs, weights = torch.rand(150, 8), torch.randn(8, 3)
        network = trained(nn.Tanh, inputs, ((inputs - 0.5) @ weights).argmax(dim=1))
        found = dyart.closest_boundary_points(network, inputs, norm="l2", steps=20)
        best = dyart.closest_boundary_points(network, inputs, norm="l2", steps=200, restarts=4, tol=1e-3)
        ratios.append(found.margin / best.margin)
    assert float(torch.cat(ratios).mean()) < 1.01


def trained(activation, inputs, labels):
    torch.manual_seed(0)
    classes = int(labels.max()) + 1
    network = nn.Sequential(nn.Linear(8, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        assert float(network(inputs).softmax(dim=1).amax(dim=1).median()) > 0.999, "it is to be saturated"
    return network.eval()


def test_a_training_on_margins_finds_points_on_a_saturated_network():
    inputs = uniform((100, 8), 2)
    labels = (inputs[:, :4].sum(dim=1) > inputs[:, 4:].sum(dim=1)).long()
    _, metrics = dyart.DyART(r0=0.5, lam=1.0, steps=20)(trained(nn.Tanh, inputs, labels), inputs, labels)
    assert float(metrics["used"]) > 0.7


def test_rivals_are_compared_inside_the_box():
    """As the crow flies class 2 is nearer; inside the box its coordinates run out of room, and class 1 is."""
    weight = torch.tensor([[1.829, -0.22, 0.342], [-1.805, 0.117, 1.136], [0.006, 0.076, -0.135]])
    inputs, labels = torch.tensor([[0.572, 0.375, 0.316]]), torch.tensor([0])
    bias = torch.tensor([0.091, -0.865, -0.202])

    def compared(low, high):
        box = (torch.tensor(low), torch.tensor(high))
        problem = Problem(lambda x: x @ weight.T + bias, inputs, labels, "linf", "exact", 5.0, *box)
        return nearest_rivals(problem, inputs @ weight.T + bias, 9)

    inside, wide = compared(0.0, 1.0), compared(-9.0, 9.0)
    assert inside.classes.tolist() == [[1, 2]]
    assert inside.distance.item() == pytest.approx(0.5577, abs=1e-3)
    assert wide.classes.tolist() == [[2, 1]]
    assert wide.distance.item() == pytest.approx(0.5298, abs=1e-3)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (None, None)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_rival_without_a_gradient_is_no_near_one(norm, bounds):
    inputs, labels = torch.tensor([[0.2, 0.3], [0.6, 0.1]]), torch.tensor([0, 0])

    def flat_against_the_second(x):
        first = 10.0 + 0.0 * x[:, 0]
        return torch.stack([first, torch.zeros_like(first), first - 4 + x.sum(dim=1)], dim=1)

    low, high = (None if bound is None else torch.tensor(bound) for bound in bounds)
    problem = Problem(flat_against_the_second, inputs, labels, norm, "exact", 5.0, low, high)
    compared = nearest_rivals(problem, flat_against_the_second(inputs), 9)
    assert compared.classes.tolist() == [[2, 1], [2, 1]]
    assert bool(compared.distance.isfinite().all())
    assert bool((compared.distance > 0).all())


@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_class_that_is_masked_is_infinitely_far(norm, bounds):
    network, inputs = smooth_network(10, 5, seed=3), uniform((40, 10), 4)

    def masked(x):
        return network(x).masked_fill(torch.arange(5) == 4, -torch.inf)

    labels = masked(inputs).argmax(dim=1)
    box = as_bounds(bounds, inputs)
    problem = Problem(masked, inputs, labels, norm, "exact", 5.0, *box)
    compared = nearest_rivals(problem, masked(inputs).detach(), 9)
    assert bool(compared.distance.isfinite().all())
    assert compared.classes[:, -1].eq(4).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_way_back_from_an_exactly_flat_side_is_found(norm):
    """So steep that the gradient is zero in float32 a little aside of the boundary, on either side."""
    inputs = uniform((100, FEATURES), 5, 0.1, 0.4)
    across = 1.1 - inputs  # the mean is 0.6 and more

    def steep(x):
        return two_logits(torch.tanh(1000.0 * (0.5 - x.mean(dim=1))))

    labels = torch.zeros(len(inputs), dtype=torch.int64)
    found = dyart.closest_boundary_points(steep, inputs, labels, norm=norm, start=across)
    assert bool(found.found.all())
    assert float((found.margin / exact(inputs, norm)).mean()) < 1.02


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_restarts_of_examples_outside_their_class_begin_elsewhere(norm):
    network, inputs = smooth_network(10, 5, seed=3), uniform((60, 10), 4)
    labels = network(inputs).argsort(dim=1)[:, -3]
    once, often = (
        dyart.closest_boundary_points(network, inputs, labels, norm=norm, signed=True, steps=15, restarts=restarts)
        for restarts in (1, 4)
    )
    assert not bool(once.inside.any())
    assert bool((often.margin >= once.margin).all()), "closer, and negative"
    assert int((often.margin > once.margin).sum()) > 5
    assert once.cost == (16, 15), "and one pass to judge the inputs; no rivals are compared"


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_signed_margins_of_examples_inside_their_class_are_the_unsigned_ones(norm):
    network, inputs = smooth_network(10, 5, seed=3), uniform((40, 10), 4)
    labels = network(inputs).argmax(dim=1)
    labels[::4] = (labels[::4] + 1) % 5
    unsigned = dyart.closest_boundary_points(network, inputs, labels, norm=norm)
    signed = dyart.closest_boundary_points(network, inputs, labels, norm=norm, signed=True)
    inside = unsigned.inside
    assert 0 < int((~inside).sum()) < 40
    assert torch.equal(signed.margin[inside], unsigned.margin[inside])
    assert bool((signed.margin[~inside & signed.found] < 0).all())
    assert int(signed.found[~inside].sum()) > 0
