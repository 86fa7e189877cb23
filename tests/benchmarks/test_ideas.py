"""Variants of DyART that were tried: their terms are taken where they say."""

import pytest
import torch
from bench_cases import module
from torch import nn

import dyart
from dyart.data.loader import Batch

ideas = module("ideas")


class Seen(nn.Module):
    """A linear network that keeps the inputs of its last call."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 20, generator=generator))

    def forward(self, inputs):
        self.last = inputs.detach()
        return inputs.flatten(1) @ self.weight.T


@pytest.fixture
def batch():
    inputs = 0.3 + 0.4 * torch.rand(64, 20, generator=torch.Generator().manual_seed(1))
    return inputs, torch.arange(64) % 3


def far(points, inputs):
    return (points - inputs).abs().amax(1)


def test_cross_entropy_is_that_of_images_at_a_distance(batch):
    model = Seen()
    loss, _ = ideas.Aside(clean_radius=0.04)(model, *batch)
    loss.backward()
    assert torch.allclose(far(model.last[64:], batch[0]), torch.tensor(0.04), atol=1e-6), "also of wrong classes"
    assert model.weight.grad.isfinite().all()


def test_near_points_are_moved_out_to_the_reach(batch):
    model = Seen()
    plain, moved = ideas.Aside(), ideas.Aside(reach=0.04)
    plain(model, *batch)
    before = far(model.last[:64], batch[0])
    moved(model, *batch)
    after = far(model.last[:64], batch[0])
    near = (before > 0) & (before < 0.04)
    assert near.any()
    assert (before > 0.04).any()
    assert torch.allclose(after[near], torch.tensor(0.04), atol=1e-6)
    assert torch.equal(after[~near], before[~near])


def test_friendly_points_are_just_beyond_the_boundary_or_at_the_radius(batch):
    model = Seen()
    plain = ideas.Aside().search(model, *batch)
    loss, metrics = ideas.Friendly(kl_radius=0.04, beyond=0.01)(model, *batch)
    loss.backward()
    points, aside, _ = model.last.split(64)
    distance = far(aside, batch[0])
    near = plain.found & (plain.margin < 0.03)
    assert near.any()
    assert (plain.margin > 0.03).any()
    assert torch.allclose(distance[near], plain.margin[near] + 0.01, atol=1e-6)
    assert torch.allclose(distance[plain.found & ~near], torch.tensor(0.04), atol=1e-6)
    assert torch.allclose(distance[~plain.found], torch.tensor(0.01), atol=1e-6)
    assert torch.allclose(points[plain.found], plain.points[plain.found], atol=1e-6)
    assert metrics["kl"] > 0
    assert model.weight.grad.isfinite().all()


def test_examples_outside_are_pulled_back_as_far_as_they_are_near(batch):
    """For a linear network the signed margin is exact: the term is its mean, and only those near take part."""
    model = Seen()
    inputs, labels = batch
    points = ideas.Signed().search(model, inputs, labels)
    plain, _ = ideas.Aside(lam=250.0)(model, inputs, labels)
    loss, metrics = ideas.Signed(outside=0.5, depth=0.05)(model, inputs, labels)
    value = dyart.soft_logit_margin(model(inputs), labels)
    (slope,) = torch.autograd.grad(
        dyart.soft_logit_margin(model(leaf := inputs.clone().requires_grad_()), labels).sum(), leaf
    )
    signed = value / slope.abs().sum(1)
    lost = ~points.inside & (signed > -0.05)
    assert lost.any()
    assert (~points.inside & (signed < -0.05)).any()
    assert metrics["lost"] == lost.float().mean()
    assert torch.allclose(loss - plain, -250 * 0.5 * signed[lost].sum() / len(inputs), rtol=1e-3)
    loss.backward()
    assert model.weight.grad.isfinite().all()


def test_the_divergence_of_examples_outside_is_taken_where_they_come_back(batch):
    model = Seen()
    inputs, labels = batch
    inside = ideas.Changing().search(model, inputs, labels).inside
    ideas.Changing(kl_radius=0.04)(model, inputs, labels)[0].backward()
    aside = model.last[64:128]
    assert torch.allclose(far(aside, inputs), torch.tensor(0.04), atol=1e-6)
    change = dyart.soft_logit_margin(model(aside), labels) - dyart.soft_logit_margin(model(inputs), labels)
    assert (change[inside] < 0).all()
    assert (change[~inside] > 0).all()


def test_a_random_start_is_another_at_every_call_and_finds_points_as_good(batch):
    model = Seen()
    inputs, labels = batch
    margins = {}
    for key in (1, 2):
        here = Batch(inputs, labels, torch.arange(64), torch.tensor(key))
        margins[key] = ideas.RandomStart(start_radius=0.05).crafted(model, here)
    plain = ideas.Aside().search(model, inputs, labels)
    assert torch.equal(margins[1].found, plain.found)
    assert not torch.equal(margins[1].points, margins[2].points)
    ratio = margins[1].margin[plain.found] / plain.margin[plain.found]
    assert ratio.mean() < 1.05


def test_the_bump_is_a_cost_with_its_slope():
    cost = ideas.Bump(0.04, 0.02)
    margin = torch.linspace(0, 0.1, 50, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(cost(margin).sum(), margin)
    assert torch.allclose(slope, cost.derivative(margin.detach()))
    assert slope.argmin() == (margin - 0.04).abs().argmin()
    assert ideas.MiddleFirst().cost.centre == pytest.approx(10 / 255)


@pytest.mark.parametrize("boundary", ["exact", "soft"])
def test_the_margin_term_does_not_change_with_the_scale_of_the_logits(batch, boundary):
    inputs, labels = batch

    def seen(cls):
        """Return the loss and the slope of its margin term along the scale of all logits, boundaries moved away."""
        model, method = Seen(), cls(lam=250, steps=8, boundary=boundary, beta=50.0)
        here = Batch(inputs, labels, torch.arange(64), torch.tensor(0))
        points = method.craft(model, here)
        scale = torch.ones((), requires_grad=True)

        def moved(x):
            return scale * (model(x) - 0.1 * torch.nn.functional.one_hot(labels.repeat(2), 3))

        loss, metrics = method.loss(moved, here, points)
        clean = torch.nn.functional.cross_entropy(moved(torch.cat([inputs, inputs]))[:64], labels)
        (slope,) = torch.autograd.grad(loss - clean, scale)
        return float(loss.detach()), float(slope), float(metrics["used"])

    loss, slope, used = seen(ideas.DyART)
    same, none, _ = seen(ideas.ScaleFree)
    assert used > 0.2
    assert same == pytest.approx(loss, rel=1e-5)
    assert abs(slope) > 0.1
    assert abs(none) < 0.02 * abs(slope)
