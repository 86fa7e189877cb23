"""The search's own work traced as one graph: whole, the same numbers, and once for all steps."""

from collections import defaultdict
from functools import cache

import pytest
import torch
from networks import small_resnet

from dyart.boundary import problem as problem_module
from dyart.boundary.problem import Problem
from dyart.boundary.solvers import fast
from dyart.boundary.validation import as_bounds


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
    for module in (fast, problem_module):
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
