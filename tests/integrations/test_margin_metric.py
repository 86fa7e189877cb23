"""Margins as a metric: over batches and over processes, the same values as over all examples at once."""

import math
import socket
import warnings

import pytest
import torch
from integration_cases import CLASSES, examples, linear, predictions
from torch import multiprocessing

import dyart

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchmetrics = pytest.importorskip("torchmetrics")

from dyart.evaluation.curve import accuracy_from_margins
from dyart.integrations import MarginMetric

RADII = ["1/255", "8/255", 0.1]


def points(count=41, wrong=4):
    """Boundary points of a linear classifier, some labels wrong."""
    model, inputs = linear(), examples(count)
    labels = predictions(model, inputs)
    labels[:wrong] = (labels[:wrong] + 1) % CLASSES
    return dyart.closest_boundary_points(model, inputs, labels, norm="l2", steps=10)


def values(metric):
    return {name: value.item() for name, value in metric.compute().items()}


def test_values_are_those_of_the_search():
    found, metric = points(), MarginMetric(RADII)
    metric.update(found)
    got, margins = values(metric), found.margin[found.found]
    assert got["examples"] == 41
    assert got["accuracy"] == pytest.approx(37 / 41)
    assert got["found"] == pytest.approx(37 / 41)
    assert got["optimal"] == pytest.approx(found.optimal.float().mean().item())
    assert got["margin_mean"] == pytest.approx(margins.mean().item())
    for name, share in (("margin_q05", 0.05), ("margin_q50", 0.5), ("margin_q95", 0.95)):
        assert got[name] == pytest.approx(margins.quantile(share).item(), rel=1e-6)
    for radius, share in accuracy_from_margins(found, metric.radii).items():
        assert got[f"robust_{radius}"] == pytest.approx(share)
    assert [name for name in got if name.startswith("robust")] == ["robust_1/255", "robust_8/255", "robust_0.1"]


def test_batches_add_up_and_a_reset_forgets():
    found, whole, parts = points(), MarginMetric(RADII), MarginMetric(RADII)
    whole.update(found)
    for start in range(0, 41, 10):
        parts.update(found[torch.arange(start, min(start + 10, 41))])
    assert values(parts) == values(whole)
    parts.reset()
    parts.update(found[:3])
    assert parts.compute()["examples"] == 3


def test_a_batch_of_its_own_by_forward():
    found, metric = points(), MarginMetric()
    metric(found[:20])
    batch = metric(found[20:])
    assert batch["examples"] == 21
    assert metric.compute()["examples"] == 41


def test_without_any_margin():
    metric = MarginMetric(["8/255"])
    metric.update(points(4))  # all labels wrong
    got = values(metric)
    assert got["accuracy"] == got["found"] == got["robust_8/255"] == 0
    assert math.isnan(got["margin_mean"])
    assert math.isnan(got["margin_q50"])


def test_signed_margins_of_wrong_examples_are_left_out():
    model, inputs = linear(), examples()
    labels = (predictions(model, inputs) + 1) % CLASSES
    metric = MarginMetric()
    metric.update(dyart.closest_boundary_points(model, inputs, labels, norm="l2", signed=True))
    assert values(metric)["found"] == 0


@pytest.mark.parametrize(("kind", "words"), [({"norm": "linf"}, "linf, exact"), ({"boundary": "soft"}, "l2, soft")])
def test_margins_of_two_kinds_are_not_mixed(kind, words):
    metric = MarginMetric()
    metric.update(points())
    other = dyart.closest_boundary_points(linear(), examples(), **{"norm": "l2", **kind})
    with pytest.raises(ValueError, match=rf"one kind \({words} boundary\) after .* \(l2, exact boundary\)"):
        metric.update(other)
    assert values(metric)["examples"] == 41
    metric.reset()
    metric.update(other)
    assert values(metric)["examples"] == len(other)


def test_one_radius_is_no_list():
    with pytest.raises(TypeError, match=r"write radii=\['8/255'\]"):
        MarginMetric("8/255")


def test_radii_of_the_soft_boundary_are_refused():
    found = dyart.closest_boundary_points(linear(), examples(), norm="l2", boundary="soft")
    with pytest.raises(ValueError, match="exact boundary"):
        MarginMetric(["8/255"]).update(found)
    MarginMetric().update(found)


def test_in_a_collection_and_in_inference_mode():
    collection = torchmetrics.MetricCollection(
        {"near": MarginMetric([0.01]), "far": MarginMetric([0.1])}, prefix="val_"
    )
    model, inputs = linear(), examples()
    with torch.inference_mode():
        collection.update(dyart.closest_boundary_points(model, inputs.clone(), norm="l2", steps=10))
        got = collection.compute()
    assert got["val_near_robust_0.01"] > got["val_far_robust_0.1"]


def _process(rank, port, found, queue):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    metric = MarginMetric(RADII)
    # Shares of different size: 30 examples in two batches, and 11.
    for part in (found[:20], found[20:30]) if rank == 0 else (found[30:],):
        metric.update(part)
    queue.put((rank, values(metric), len(metric.margins)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_two_processes_compute_what_one_does():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    found, alone = points(), MarginMetric(RADII)
    alone.update(found)
    context = multiprocessing.get_context("fork")  # the children add numbers up; to import everything anew takes longer
    queue = context.SimpleQueue()
    processes = [context.Process(target=_process, args=(rank, port, found, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    results = [queue.get() for _ in range(2)]
    for _, got, _ in results:
        assert got == pytest.approx(values(alone))
    # After the computation each process has its own part again.
    assert {rank: batches for rank, _, batches in results} == {0: 2, 1: 1}
