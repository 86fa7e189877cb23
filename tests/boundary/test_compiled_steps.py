"""The search's own work traced as one graph: whole, the same numbers, and once for all steps."""

from collections import defaultdict
from functools import cache

import pytest
import torch
from networks import small_resnet

from dyart.boundary import problem as problem_module
from dyart.boundary import search as search_module
from dyart.boundary.problem import Problem
from dyart.boundary.solvers import fast
from dyart.boundary.validation import as_bounds
from dyart.data.loader import Batch
from dyart.methods import dyart as dyart_module
from dyart.methods.dyart import DyART


@pytest.fixture
def graphs(monkeypatch):
    """Trace without generating code, which takes long; return the graphs of every function."""
    made = defaultdict(list)

    @cache
    def traced(function):
        def note(graph, _):
            made[function.__name__].append(graph)
            return graph.forward

        return torch.compile(function, backend=note, dynamic=False, fullgraph=True)

    torch._dynamo.reset()
    for module in (fast, problem_module, search_module, dyart_module):
        monkeypatch.setattr(module, "compiled", traced)
    yield made
    torch._dynamo.reset()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_same_points_from_three_graphs(norm, graphs):
    torch.manual_seed(0)
    model = small_resnet().eval()
    x = torch.rand(6, 3, 8, 8)
    labels = model(x).argmax(dim=1)
    found = []
    for compiled in (False, True, True):
        box = as_bounds((0.0, 1.0), x)
        problem = Problem(model, x, labels, norm, "soft", 5.0, *box, rounds=8, compiled=compiled)
        found.append(fast.fast_search(problem, problem.origin, 7))
    # One graph for the first step (whose point is the input itself), one for the last, one for all others.
    assert {name: len(traced) for name, traced in graphs.items()} == {"_step": 3, "_score": 1}
    assert found[0].found.any()
    for traced in found[1:]:
        assert torch.equal(traced.found, found[0].found)
        torch.testing.assert_close(traced.points, found[0].points, rtol=0, atol=1e-5)
        assert torch.equal(traced.rival, found[0].rival)


def test_for_p_1_no_step_is_compiled(graphs):
    model = small_resnet().eval()
    x = torch.rand(3, 3, 8, 8)
    problem = Problem(model, x, model(x).argmax(dim=1), "l1", "exact", 5.0, *as_bounds((0.0, 1.0), x), compiled=True)
    fast.fast_search(problem, problem.origin, 3)
    assert list(graphs) == ["_score"]


@pytest.mark.parametrize("keep", ["conditions", "optimal", "found"])
@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_a_whole_step_has_one_graph_more_for_the_points_and_one_for_their_quality(keep, norm, graphs):
    torch.manual_seed(0)
    model = small_resnet().eval()
    x = torch.rand(8, 3, 8, 8)
    batch = Batch(x, model(x).argmax(dim=1), torch.arange(8), torch.zeros((), dtype=torch.int64))
    losses = []
    for compiled in (False, True, True):
        method = DyART(r0=0.5, lam=10.0, steps=6, keep=keep, norm=norm)
        method.compiled = compiled
        loss, metrics = method.loss(model, batch, method.craft(model, batch))
        losses.append((loss, *(metrics[name] for name in ("used", "optimal", "margin_loss", "margin_q50"))))
    assert float(losses[0][1]) > 0
    assert {name: len(graphs[name]) for name in ("_signed", "_judged")} == {"_signed": 1, "_judged": 1}
    for traced in losses[1:]:
        torch.testing.assert_close(traced, losses[0], rtol=1e-4, atol=1e-5)
