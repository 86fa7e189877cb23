"""Passes as CUDA graphs, with stand-ins on a CPU that write over their results: what attacks get is right even so."""

import pytest
import torch
from torch import Tensor, nn

from dyart.engine import capture
from dyart.evaluation.replayed import Replayed
from dyart.evaluation.views import Count, View


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, place):
        place.replays += 1
        with torch.enable_grad():
            place.leaf = x.detach().clone().requires_grad_()
            place.inner = place.function(place.leaf)
        place.logits.copy_(place.inner.detach())
        ctx.place = place
        return place.logits.detach()

    @staticmethod
    def backward(ctx, slope):
        place = ctx.place
        place.gradient.copy_(torch.autograd.grad(place.inner, place.leaf, slope)[0])
        return place.gradient.detach(), None


class Place:
    """One memory for all calls, as a graph has it."""

    def __init__(self, function, sample):
        self.function, self.gradient, self.replays = function, torch.zeros_like(sample), 0
        self.logits = torch.zeros_like(function(sample)).detach()
        self.shape = sample.shape

    def __call__(self, x):
        assert x.shape == self.shape
        return _Both.apply(x, self)


class Alone:
    def __init__(self, function):
        self.function, self.result = function, function()

    def replay(self):
        self.result.copy_(self.function())


@pytest.fixture
def places(monkeypatch):
    made: list[Place] = []

    def make(function, samples):
        (sample,) = samples
        assert sample.is_leaf
        assert sample.requires_grad
        made.append(Place(function, sample))
        return made[-1]

    def record(function, pool=None):
        graph = Alone(function)
        return graph, graph.result

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    monkeypatch.setattr(capture, "record", record)
    return made


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)).requires_grad_(False)


def pair(size=8):
    model = network()
    return View(model, Count()), View(model, Count(), fast=model, size=size, record=True)


def images(count, seed=1) -> Tensor:
    return torch.rand(count, 1, 5, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 3, 8, 11, 20])
def test_values_and_gradients_are_the_networks(places, count):
    plain, view = pair()
    for seed in (1, 2):
        results = []
        for one in (plain, view):
            x = images(count, seed).requires_grad_()
            logits = one(x)
            results.append((logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0], one(x.detach())))
        for wanted, got in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted)
    # Below a quarter of a batch, and what is divided, is not replayed.
    assert [place.replays for place in places] == ([2] if count in (3, 8) else [])
    assert (view.count.forward, view.count.backward) == (4 * count, 2 * count)


@pytest.mark.usefixtures("places")
def test_what_was_returned_stays():
    plain, view = pair()
    kept, wanted = [], []
    for one, results in ((view, kept), (plain, wanted)):
        for seed in range(3):
            x = images(8, seed).requires_grad_()
            logits = one(x)
            results += [logits.detach(), torch.autograd.grad(logits.sum(), x)[0], one(x.detach())]
    for got, right in zip(kept, wanted, strict=True):
        torch.testing.assert_close(got, right)


def test_a_backward_pass_after_another_forward_pass_does_its_own_again(places):
    plain, view = pair()
    gradients = []
    for one in (plain, view):
        first, second = (images(8, seed).requires_grad_() for seed in (1, 2))
        values = [one(x).square().sum() for x in (first, second)]
        one(second.detach())
        gradients.append([torch.autograd.grad(value, x)[0] for value, x in zip(values, (first, second), strict=True)])
    for wanted, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)
    # The second one's was written over by then, too.
    assert places[0].replays == 4
    assert view.count.forward == 5 * 8


def test_without_gradients_nothing_is_written_over(places):
    _, view = pair()
    x = images(8).requires_grad_()
    logits = view(x)
    view(images(8, 2))
    torch.autograd.grad(logits.sum(), x)
    assert places[0].replays == 1


def test_what_cannot_be_recorded_runs_as_it_is(monkeypatch):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    monkeypatch.setattr(capture, "record", fail)
    plain, view = pair()
    results = []
    for one in (plain, view):
        x = images(8).requires_grad_()
        results.append((one(x.detach()), torch.autograd.grad(one(x).sum(), x)[0]))
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_too_little_memory_is_the_callers_business(monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    with pytest.raises(torch.OutOfMemoryError):
        Replayed(lambda x: x)(images(8).requires_grad_())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    model = network().cuda()
    plain, view = View(model, Count()), View(model, Count(), fast=torch.compile(model), size=8, record=True)
    for seed in range(3):
        results = []
        for one in (plain, view):
            x = images(8, seed).cuda().requires_grad_()
            logits = one(x)
            results.append((logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0], one(x.detach())))
        for wanted, got in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert view.replayed is not None
    assert len(view.replayed._replays) == 2
    assert view.replayed.function not in view.replayed._replays.values(), "it was not recorded"
