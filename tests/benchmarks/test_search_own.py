"""A boundary search of one's own on the bench: measured beside ours, on the same images."""

import torch
from bench_cases import module

SOURCE = """
def straight(problem, start, steps):
    now = problem.evaluate(start)
    x = problem.into_box(start + 1.001 * problem.project(start, now.gradient, now.value))
    return problem.candidate(x, problem.evaluate(x))
"""


def test_a_search_of_ones_own_is_measured_beside_ours(tmp_path, monkeypatch):
    bench = module("search")
    (tmp_path / "bench_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 4)), torch.rand(8, 3, 4, 4)
    plan = bench.searches("linf", "exact", ["fast"], [10])
    plan |= bench.users_searches("linf", "exact", ["bench_mine:straight"], [5, 10])
    measured = list(bench.measure(model, x, model(x).argmax(dim=1), "linf", "exact", plan))
    records = [record for record, _ in measured]
    bench.compare(records, {bench.name_of(record): distances for record, distances in measured})
    own = [record for record in records if record["solver"] == "straight"]
    assert {record["solver"] for record in records} == {"fast", "straight"}
    assert [record["setting"] for record in own] == ["5 steps", "10 steps"]
    assert all((record["forward"], record["backward"]) == (4, 3) for record in own)
    assert all(record["mean_over_best"] > 0.99 for record in own)
    bench.figure(records, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
