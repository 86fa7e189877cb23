"""What the options that save passes leave as it is: examples that retire, plain and warm starts, the kept gradient."""

import copy

import pytest
import torch
from objective_cases import images, labels_of, network
from torch import nn

from dyart.boundary import retiring
from dyart.boundary.margins import soft_logit_margin
from dyart.boundary.solvers import fast
from dyart.data.loader import Batch
from dyart.methods.dyart import DyART

X = images()
KEY = torch.tensor(0)
CPU = torch.device("cpu")


class Counting(nn.Module):
    """Examples in forward passes, and in backward passes through the output."""

    def __init__(self, model):
        super().__init__()
        self.model, self.forwards, self.backwards = model, [], []

    def forward(self, x):
        self.forwards.append(len(x))
        logits = self.model(x)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self.backwards.append(len(gradient)))
        return logits


def batch_of(model, rows=slice(None)):
    return Batch(X[rows], labels_of(model, X)[rows], torch.arange(len(X))[rows], KEY)


# The gradient that the search keeps


@pytest.mark.parametrize("keep", ["conditions", "optimal", "found"])
@pytest.mark.parametrize("joint", [True, False])
def test_weights_and_conditions_cost_no_pass(keep, joint):
    model = network("group")
    method, batch = DyART(r0=0.05, steps=7, keep=keep, joint=joint), batch_of(model)
    search, update = Counting(copy.deepcopy(model).eval().requires_grad_(False)), Counting(model)
    found = method.craft(search, batch)
    assert search.forwards == search.backwards == [len(X)] * 7
    loss, metrics = method.loss(update, batch, found)
    loss.backward()
    assert metrics["used"] > 0
    assert update.forwards == update.backwards == ([2 * len(X)] if joint else [len(X)] * 2)
    assert len(search.forwards) == 7
    # And yet it is the gradient at the point itself.
    points = found.points.clone().requires_grad_()
    (true,) = torch.autograd.grad(soft_logit_margin(model.eval()(points), batch.labels, 5.0).sum(), points)
    torch.testing.assert_close(found.gradient[found.found], true[found.found], rtol=1e-5, atol=1e-7)


# Examples that leave


def test_who_leaves_changes_the_loss_by_little_and_saves_passes():
    model = network("group")
    batch = batch_of(model)
    plain = DyART(r0=0.05, steps=10)
    counted = Counting(model)
    found, fewer = plain.crafted(model, batch), DyART(r0=0.05, steps=10, retire=True).crafted(counted, batch)
    assert sum(counted.forwards) < 0.8 * 10 * len(X)
    assert counted.forwards[0] == len(X)
    assert torch.equal(fewer.inside, found.inside)
    assert torch.equal(fewer.correct, found.correct)
    near = found.found & (found.margin < 0.05)
    assert near.sum() > 3
    ratio = (fewer.margin / found.margin)[near]
    assert (ratio < 1.03).all()
    one, two = (plain.loss(model, batch, points)[0].item() for points in (found, fewer))
    assert one == pytest.approx(two, rel=0.02)


def test_who_left_because_it_is_far_counts_as_far():
    model, r0 = network("group"), 0.003
    batch = batch_of(model)
    plain, method = DyART(r0=r0, steps=10), DyART(r0=r0, steps=10, retire=True)
    found, fewer = plain.crafted(model, batch), method.crafted(model, batch)
    assert (fewer.inside & ~fewer.found).sum() > len(X) / 4
    (_, all_of_them), (_, some) = plain.loss(model, batch, found), method.loss(model, batch, fewer)
    assert all_of_them["margin_q50"] > r0
    assert some["margin_q50"] >= r0
    assert some["margin_q90"] <= all_of_them["margin_q90"]


def test_without_retirement_of_what_settles_or_is_far_the_points_are_the_same(monkeypatch):
    monkeypatch.setattr(retiring, "SETTLED", -1.0)
    monkeypatch.setattr(retiring, "FAR", torch.inf)
    model = network("batch")
    batch, counted = batch_of(model), Counting(model)
    found = DyART(r0=0.05, steps=8).crafted(model, batch)
    fewer = DyART(r0=0.05, steps=8, retire=True).crafted(counted, batch)
    inside = int(found.inside.sum())
    assert counted.forwards == [len(X)] + [inside] * 7
    assert torch.equal(found.found, fewer.found)
    torch.testing.assert_close(fewer.points, found.points, rtol=0, atol=1e-7)


@pytest.mark.parametrize("switch", ["static", "compiled"])
def test_where_shapes_are_static_nobody_leaves(monkeypatch, switch):
    monkeypatch.setattr(fast, "compiled", lambda function: function)
    monkeypatch.setattr("dyart.boundary.problem.compiled", lambda function: function)
    model = network("group")
    batch, counted = batch_of(model), Counting(model)
    method = DyART(r0=0.05, steps=6, retire=True)
    setattr(method, switch, True)
    found = method.crafted(counted, batch)
    assert counted.forwards == [len(X)] * 6
    torch.testing.assert_close(found.points, DyART(r0=0.05, steps=6).crafted(model, batch).points)


# Where an example starts


def warm(steps=6, **options):
    method = DyART(r0=0.05, steps=steps, warm_start=True, **options)
    method.prepare(len(X), CPU)
    return method


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_first_visit_is_the_plain_search(norm):
    model = network("group")
    batch = batch_of(model)
    first = warm(norm=norm).crafted(model, batch)
    plain = DyART(r0=0.05, steps=6, norm=norm).crafted(model, batch)
    assert torch.equal(first.found, plain.found)
    torch.testing.assert_close(first.points, plain.points, rtol=0, atol=1e-8)


def test_in_one_batch_some_begin_anew_and_some_go_on():
    model = network("group")
    method, half = warm(), slice(0, 6)
    method.loss(model, batch_of(model, half), method.crafted(model, batch_of(model, half)))
    known = method.ways.known(batch_of(model))
    assert known[:6].any()
    assert not known[6:].any()
    both = method.crafted(model, batch_of(model))
    fresh, again = DyART(r0=0.05, steps=6).crafted(model, batch_of(model)), method.crafted(model, batch_of(model, half))
    torch.testing.assert_close(both.points[6:], fresh.points[6:], rtol=0, atol=1e-7)
    torch.testing.assert_close(both.points[:6], again.points, rtol=0, atol=1e-7)
    assert not torch.allclose(both.points[:6], fresh.points[:6], atol=1e-6)


def test_warm_starts_and_retirement_together():
    model = network("group")
    method, batch = warm(retire=True), batch_of(model)
    method.loss(model, batch, method.crafted(model, batch))
    counted = Counting(model)
    found = method.crafted(counted, batch)
    plain = DyART(r0=0.05, steps=20).crafted(model, batch)
    near = plain.found & (plain.margin < 0.05)
    assert found.found[near].all()
    assert ((found.margin / plain.margin)[near] < 1.1).all()
    assert counted.forwards[:2] == [len(X)] * 2  # the inputs, the starts
    assert max(counted.forwards[2:]) < len(X)
