"""Warm starts: the way to every example's boundary point, kept by index from epoch to epoch."""

import pytest
import torch
from engine_cases import CrashAt, CrashError
from objective_cases import images, labels_of, network

from dyart.boundary.margins import soft_logit_margin
from dyart.data.loader import Batch
from dyart.data.placement import drawn, placed
from dyart.engine.run import prepare, train
from dyart.engine.steps import split
from dyart.methods.dyart import DyART
from dyart.methods.ways import Ways
from dyart.recipes.load import check

CPU = torch.device("cpu")
X = images()
INDEX = torch.arange(len(X)) * 5 + 2
KEY = torch.tensor(0)


def batch_of(model, rows=slice(None), placement=None):
    x = X[rows] if placement is None else placed(X[rows], placement)
    return Batch(x, labels_of(model, X)[rows], INDEX[rows], KEY, placement=placement)


def warm(steps=6, **options):
    method = DyART(r0=0.05, steps=steps, warm_start=True, **options)
    method.prepare(int(INDEX.max()) + 1, CPU)
    return method


# What is kept


def test_whoever_does_not_say_whose_examples_these_are_has_no_warm_start():
    model = network("group")
    method, batch = warm(), batch_of(model)
    method.loss(model, batch, method.crafted(model, batch))
    kept = method.ways.steps.clone()
    cold = DyART(r0=0.05, steps=6)
    x, y = batch.inputs, batch.labels
    assert torch.equal(method.search(model, x, y).points, cold.search(model, x, y).points)
    with pytest.warns(UserWarning, match="warm_start: without effect in this loop"):
        loss, _ = method(model, x, y)
    assert torch.equal(loss, cold(model, x, y)[0])
    assert torch.equal(method.ways.steps, kept)
    assert method.warm_start


def test_ways_come_back_as_they_were_to_half_a_level():
    ways = Ways(300, X.shape[1:], CPU)
    model = network("group")
    batch = batch_of(model)
    assert torch.equal(ways.of(batch), torch.zeros_like(X))
    moved = 0.1 * torch.randn_like(X)
    ways.keep(batch, moved, torch.ones(len(X), dtype=torch.bool))
    half = moved.flatten(1).abs().amax(dim=1) / 127 / 2
    assert ((ways.of(batch) - moved).flatten(1).abs().amax(dim=1) <= half * 1.001).all()
    assert ways.steps.dtype == torch.int8
    assert (ways.sizes > 0).sum() == len(X)


def test_ways_follow_the_image_to_another_placement():
    ways, model = Ways(300, X.shape[1:], CPU), network("group")
    first, second = (drawn(INDEX, 0, epoch, 1, True) for epoch in (0, 1))
    assert not torch.equal(first, second)
    whole = torch.randn_like(X)
    known = torch.ones(len(X), dtype=torch.bool)
    ways.keep(batch_of(model, placement=first), placed(whole, first), known)
    seen = ways.of(batch_of(model, placement=second))
    expected = placed(whole, second)
    there = placed(torch.ones_like(X), second) * (seen != 0)
    assert there.mean() > 0.5
    largest = whole.flatten(1).abs().amax(dim=1)[:, None, None, None]
    assert ((seen - expected) * there).abs().div(largest).max() <= 0.51 / 127


def test_what_was_not_found_is_forgotten_and_what_is_not_finite_never_kept():
    ways, model = Ways(300, X.shape[1:], CPU), network("group")
    batch = batch_of(model)
    moved = torch.rand_like(X)
    ways.keep(batch, moved, torch.ones(len(X), dtype=torch.bool))
    moved[1] = torch.nan
    known = torch.ones(len(X), dtype=torch.bool)
    known[0] = False
    ways.keep(batch, moved, known)
    assert ways.of(batch)[:2].abs().max() == 0
    assert ways.of(batch)[2:].abs().amax(dim=(1, 2, 3)).min() > 0


def test_of_an_example_that_is_twice_in_a_batch_the_last_way_counts():
    ways = Ways(9, torch.Size([2]), CPU)
    batch = Batch(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([4, 7, 4]), KEY)
    ways.keep(batch, torch.tensor([[1.0, 0.5], [2.0, 2.0], [-0.3, 0.1]]), torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(ways.of(batch)[2], torch.tensor([-0.3, 0.1]), rtol=0, atol=0.3 / 127)
    assert torch.equal(ways.of(batch)[0], ways.of(batch)[2])


# The search


def test_a_second_visit_starts_from_the_first_ones_points():
    model = network("group")
    method, batch = warm(), batch_of(model)
    first = method.crafted(model, batch)
    assert not method.ways.steps.any()  # crafting writes nothing
    method.loss(model, batch, first)
    again = method.crafted(model, batch)
    both = first.found & again.found
    assert both.sum() > len(X) / 2
    # From rounded points, with as many steps again: shorter on average, and farther by rounding at most.
    ratio = again.margin[both] / first.margin[both]
    assert ratio.mean() < 1
    assert ratio.max() < 1.02
    fresh = DyART(r0=0.05, steps=6).crafted(model, batch)
    assert torch.equal(again.inside, fresh.inside)
    assert torch.equal(again.correct, fresh.correct)
    torch.testing.assert_close(again.input_value, fresh.input_value)


def test_points_are_across_the_boundary_and_passes_are_as_stated():
    model = network("group")
    method, batch = warm(steps=5), batch_of(model)
    method.loss(model, batch, method.crafted(model, batch))
    found = method.crafted(model, batch)
    assert (found.cost.forward, found.cost.backward) == (6, 5)
    values = soft_logit_margin(model.eval()(found.points), batch.labels, 5.0)
    assert (values[found.found] <= 1e-4).all()
    assert not found.found[~found.inside].any()


def test_in_anybodys_loop_nothing_is_known_by_index():
    model = network("group")
    labels = labels_of(model, X)
    method = DyART(r0=0.05, steps=5, warm_start=True)
    with pytest.warns(UserWarning, match="warm_start: without effect in this loop"):
        method(model, X, labels)
    method(model, X, labels)
    assert method.state_dict() == {}
    cold = DyART(r0=0.05, steps=5).search(model, X, labels)
    assert torch.equal(method.search(model, X, labels).points, cold.points)


def test_ways_belong_to_examples_in_whatever_order_they_come():
    model = network("group")
    kept = []
    for order in (torch.arange(len(X)), torch.randperm(len(X), generator=torch.Generator().manual_seed(1))):
        method = warm()
        for rows in order.split(5):
            batch = batch_of(model, rows)
            method.loss(model, batch, method.crafted(model, batch))
        kept.append(method.ways.of(batch_of(model)))
    torch.testing.assert_close(*kept, rtol=0, atol=1e-3)
    assert kept[0].abs().max() > 0.01


def test_ways_are_saved_and_taken_back_in_place():
    model = network("group")
    method, batch = warm(), batch_of(model)
    method.loss(model, batch, method.crafted(model, batch))
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    other = warm()
    other.load_state_dict(state)
    assert torch.equal(other.crafted(model, batch).points, method.crafted(model, batch).points)
    place = other.ways.steps.data_ptr()
    other.load_state_dict(state)
    assert other.ways.steps.data_ptr() == place
    other.load_state_dict({})  # of a checkpoint before the first step
    with pytest.raises(ValueError, match="keeps no state"):
        DyART().load_state_dict(state)
    with pytest.raises(ValueError, match=r"keeps \['sizes', 'steps'\], the checkpoint has \['radii'\]"):
        other.load_state_dict({"radii": torch.zeros(3)})
    with pytest.raises(ValueError, match="ways of 3 examples, the training set"):
        other.load_state_dict({name: tensor[:3] for name, tensor in state.items()})


# In the engine

TREE = {
    "seed": 3,
    "data": {"name": "three-blobs", "limit": 96},
    "model": {"name": "mlp"},
    "method": {"name": "dyart", "r0": 0.2, "lam": 5.0, "steps": 3, "warm_start": True},
    "optim": {"lr": 0.2},
    "train": {"epochs": 3, "burn_in": 4, "batch_size": 32, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 1},
}


def test_a_training_that_is_resumed_is_the_one_that_was_not(tmp_path):
    whole = train(check(TREE | {"out": str(tmp_path / "whole")}))
    config = check(TREE | {"out": str(tmp_path / "broken")})
    with pytest.raises(CrashError):
        train(config, callbacks=[CrashAt(17)])  # in mid-epoch, two epochs after the burn-in
    resumed = train(config, resume=True)
    assert (whole.method.ways.sizes > 0).sum() > 48
    assert torch.equal(whole.method.ways.steps, resumed.method.ways.steps)
    assert torch.equal(whole.method.ways.sizes, resumed.method.ways.sizes)
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name


def test_batches_of_the_engine_say_where_their_images_lie():
    data = {"name": "fashion-mini", "limit": 128, "crop": 2, "flip": True}
    training = prepare(check(TREE | {"data": data, "model": {"name": "cnn"}}))
    batch = next(training.loader.epoch(0))
    originals = torch.from_numpy(training.data.train.images[batch.index.numpy()])
    assert torch.equal(batch.inputs, placed(originals, batch.placement).float() / 255)
    first, second = split(batch, 2)
    assert torch.equal(torch.cat([first.placement, second.placement]), batch.placement)
