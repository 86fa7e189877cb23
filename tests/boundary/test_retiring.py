"""Examples that leave a search: who leaves, what is found for them, and that the others notice nothing."""

import pytest
import torch
from networks import small_resnet
from torch import nn

from dyart.boundary.problem import Problem
from dyart.boundary.retiring import Retiring
from dyart.boundary.solvers.fast import fast_search_from

EXAMPLES, STEPS = 24, 12


class Counting(nn.Module):
    """How many examples every call has."""

    def __init__(self, model):
        super().__init__()
        self.model, self.sizes = model, []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.model(x)


def searched(norm="linf", limit=None, model=None, steps=STEPS, wrong=True, outside=None):
    model = Counting(small_resnet().double().eval() if model is None else model)
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(EXAMPLES, 3, 8, 8, dtype=torch.float64, generator=generator)
    labels = model.model(x).argmax(dim=1)
    if wrong:
        labels[::4] = (labels[::4] + 1) % 3
    box = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    problem = Problem(model, x, labels, norm, "soft", 5.0, *box)
    retiring = None if limit is None else Retiring(problem, limit, outside)
    best, first = fast_search_from(problem, problem.origin, steps, retiring=retiring)
    return best.where(first.value > 0, problem.nothing()), first.value > 0, model.sizes, retiring


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_those_who_stay_have_the_points_of_the_whole_batch(norm):
    whole, inside, sizes, _ = searched(norm)
    part, _, fewer, retiring = searched(norm, limit=1e9)
    assert sizes == [EXAMPLES] * STEPS
    assert fewer[0] == EXAMPLES
    assert fewer[1] <= int(inside.sum()) < EXAMPLES  # the others have no margin, and leave at once
    assert fewer == sorted(fewer, reverse=True)
    stayed = torch.zeros(EXAMPLES, dtype=torch.bool)
    stayed[retiring.rows] = True
    assert not stayed[~inside].any()
    assert torch.equal(part.found, whole.found)
    # Other batch sizes round differently, and a search goes its own way from there: few digits.
    torch.testing.assert_close(part.points[stayed], whole.points[stayed], rtol=0, atol=1e-6)
    torch.testing.assert_close(part.gradient[stayed], whole.gradient[stayed], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_is_settled_is_right_to_a_few_per_cent(norm):
    whole, inside, _, _ = searched(norm, steps=30)
    part, _, sizes, retiring = searched(norm, limit=1e9, steps=30)
    assert len(retiring.rows) < inside.sum() / 2
    assert sum(sizes) < 0.9 * 30 * inside.sum()
    ratio = (part.distance / whole.distance)[inside & whole.found]
    assert float(ratio.max()) < 1.1
    assert float(ratio.mean()) < 1.02
    assert (part.value[part.found] < 0).all()


def test_who_is_surely_beyond_the_limit_leaves_and_nobody_nearer():
    whole, inside, _, _ = searched()
    limit = float(whole.distance[inside].median()) / 4
    part, _, sizes, _ = searched(limit=limit)
    near = inside & (whole.distance < limit)
    assert 0 < near.sum() < inside.sum() / 2
    assert sizes[-1] < inside.sum() / 2
    assert (part.distance[near] < limit).all()


def test_a_linear_boundary_is_settled_as_soon_as_it_is_crossed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double().eval()
    part, inside, sizes, retiring = searched(model=model, limit=1e9, wrong=False, steps=8)
    assert inside.all()
    assert len(retiring.rows) == 0
    assert len(sizes) < 8  # and the search ends when nobody is left
    whole, *_ = searched(model=model, wrong=False, steps=50)
    assert ((part.distance / whole.distance) < 1.02 / 0.98).all()


def test_who_is_known_to_be_outside_leaves_after_the_start():
    outside = torch.arange(EXAMPLES) < 10
    part, _, sizes, _ = searched(limit=1e9, outside=outside)
    assert sizes[1] <= EXAMPLES - 10
    assert not part.found[:10].any()
    assert part.found[10:].any()


def test_passes_are_counted_to_the_end():
    _, _, sizes, retiring = searched(limit=1e9)
    assert retiring.problem.forward == retiring.problem.backward == len(sizes)
