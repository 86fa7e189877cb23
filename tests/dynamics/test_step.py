"""Margins and speeds of one step of several methods: right, on the right examples, and without a trace."""

import copy

import pytest
import torch
from networks import small_resnet, smooth_network
from torch import nn

from dyart.boundary.search import closest_boundary_points
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.dynamics.step import measure, method_update
from dyart.methods.at import AT
from dyart.methods.base import find
from dyart.methods.dyart import DyART
from dyart.methods.mma import MMA
from dyart.methods.natural import Natural


def a_batch(model: nn.Module, count: int, shape: tuple[int, ...], seed: int = 0, dtype=torch.float32) -> Batch:
    """Random inputs, labelled as the model sees them but for every tenth."""
    inputs = draws.uniform(draws.key(seed, "test"), torch.arange(count), shape).to(dtype) * 0.6 + 0.2
    with torch.no_grad():
        labels = copy.deepcopy(model).eval()(inputs).argmax(dim=1)
    labels[::10] = (labels[::10] + 1) % 4
    return Batch(inputs, labels, torch.arange(count) + 100 * seed, torch.tensor(draws.key(seed, "step")))


@pytest.fixture(scope="module")
def smooth():
    model = smooth_network()
    return model, a_batch(model, 24, (12,), dtype=torch.float64)


@pytest.mark.parametrize(
    "method", [Natural(), AT(0.05, 3, 0.02), DyART(r0=0.3, lam=2.0, steps=6)], ids=lambda m: m.name
)
def test_speeds_are_the_derivatives_of_margins_solved_again(smooth, method):
    model, batch = smooth
    measured = measure(model, [batch], {"it": method}, norm="l2", steps=200)
    update = method_update(model, method, batch)
    step = 1e-5 / max(float(value.abs().max()) for value in update.values())
    margins = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter.add_(sign * step * update[name])
        found = closest_boundary_points(
            moved, batch.inputs, batch.labels, norm="l2", steps=200, start=measured.found.points, tol=1e-12
        )
        margins.append(found.margin)
    difference = (margins[0] - margins[1]) / (2 * step)
    rows = measured.counted & (measured.found.alignment > 0.9999)
    assert rows.sum() >= 12
    torch.testing.assert_close(measured.speeds["it"][rows], difference[rows], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("adaptive", [False, True])
def test_an_update_that_is_not_taken_leaves_no_state_behind(smooth, adaptive):
    model, batch = smooth
    method = DyART(r0=0.3, lam=2.0, steps=6, warm_start=True, adaptive_steps=adaptive)
    method.prepare(200, torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method_update(model, method, batch)
    assert method.ways is None
    after = method.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_the_update_is_minus_the_gradient_on_the_very_batch(smooth):
    model, batch = smooth
    update = method_update(model, Natural(), batch)
    loss = nn.functional.cross_entropy(model(batch.inputs), batch.labels)
    named = dict(model.named_parameters())
    for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(update[name], -gradient, msg=name)


def test_the_optimizers_step_has_momentum_decay_and_clipping(smooth):
    model, batch = smooth
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(2):  # so that there is a momentum
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(batch.inputs), batch.labels).backward()
        optimizer.step()
    update = method_update(twin, Natural(), batch, optimizer=optimizer, clip_norm=0.05)
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    optimizer.zero_grad()
    nn.functional.cross_entropy(twin(batch.inputs), batch.labels).backward()
    nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
    optimizer.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(update[name], value - before[name], msg=name)


def test_two_batches_are_two_updates(smooth):
    model, batch = smooth
    other = a_batch(model, 24, (12,), 1, torch.float64)
    both = measure(model, [batch, other], {"natural": Natural()}, steps=20)
    alone = measure(model, [other], {"natural": Natural()}, steps=20)
    torch.testing.assert_close(both.speeds["natural"][24:], alone.speeds["natural"], equal_nan=True)
    assert both.batch.tolist() == [0] * 24 + [1] * 24
    assert both.index.tolist() == [*range(24), *range(100, 124)]


def test_wrong_and_doubtful_examples_are_counted_apart(smooth):
    model, batch = smooth
    measured = measure(model, [batch], {"natural": Natural()}, steps=30)
    counts = measured.counts
    assert counts["examples"] == 24
    assert counts["wrong"] == 3
    assert counts["wrong"] + counts["not_found"] + counts["not_optimal"] + counts["counted"] == 24
    assert not measured.counted[::10].any()
    assert (measured.found.alignment[measured.counted] > 0.9).all()


@pytest.mark.parametrize(
    "name", ["natural", "at", "trades", "mart", "mma", "gairat", "mail-at", "fat", "dyart", "at-awp"]
)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_the_model_changes(name, training):
    model = small_resnet("batch")
    model(torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)))  # statistics that are not the first ones
    model.train(training)
    model.stem.eval()
    batch = a_batch(model, 8, (3, 8, 8))
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    method = find(name)()
    method.prepare(16, torch.device("cpu"))
    kept = {key: value.clone() for key, value in method.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    measured = measure(model, [batch], {name: method}, steps=4, optimizer=optimizer, clip_norms={name: 1.0})
    assert measured.speeds[name].isfinite().sum() == measured.found.found.sum() > 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(next(model.parameters()).grad, torch.ones_like(next(model.parameters())))
    assert torch.equal(torch.get_rng_state(), random)
    assert not optimizer.state
    assert all(torch.equal(kept[key], value) for key, value in method.state_dict().items())


def test_the_loss_is_taken_in_training_mode_and_points_in_eval_mode():
    model = small_resnet("batch").eval()
    batch = a_batch(model, 16, (3, 8, 8))
    update = method_update(model, Natural(), batch)
    twin = copy.deepcopy(model).train()
    loss = nn.functional.cross_entropy(twin(batch.inputs), batch.labels)
    gradient = torch.autograd.grad(loss, twin.head.weight)[0]
    torch.testing.assert_close(update["head.weight"], -gradient)
    loss = nn.functional.cross_entropy(model(batch.inputs), batch.labels)
    assert not torch.allclose(update["head.weight"], -torch.autograd.grad(loss, model.head.weight)[0], rtol=0.01)


def test_statistics_of_batch_norm_move_with_the_optimizers_step_only():
    model = small_resnet("batch").eval()
    batch = a_batch(model, 16, (3, 8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "norm.running_mean" in method_update(model, Natural(), batch, optimizer=optimizer)
    assert "norm.running_mean" not in method_update(model, Natural(), batch)


def test_the_same_seeds_give_the_same_numbers(smooth):
    model, batch = smooth
    methods = {"at": AT(0.05, 2, 0.02), "mma": MMA()}
    for method in methods.values():
        method.prepare(24, torch.device("cpu"))
    first, second = (measure(model, [batch], methods, steps=10) for _ in range(2))
    for name in methods:
        torch.testing.assert_close(first.speeds[name], second.speeds[name], rtol=0, atol=0, equal_nan=True)


def test_no_batches_or_no_methods_is_an_error(smooth):
    model, batch = smooth
    with pytest.raises(ValueError, match="need batches and methods"):
        measure(model, [], {"natural": Natural()})
    with pytest.raises(ValueError, match="need batches and methods"):
        measure(model, [batch], {})


def test_progress_is_reported_to_the_end(smooth):
    model, batch = smooth
    seen: list[tuple[int, int]] = []
    measure(
        model, [batch] * 2, {"natural": Natural()}, steps=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (4, 4)


def test_a_method_that_begins_to_remember_forgets_again(smooth):
    model, batch = smooth
    method = DyART(r0=0.3, lam=2.0, steps=4, warm_start=True)
    method.prepare(24, torch.device("cpu"))
    first, second = (method_update(model, method, batch) for _ in range(2))
    assert not method.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_pairs_are_batches_numbered_as_they_come(smooth):
    model, batch = smooth
    half = len(batch) // 2
    pairs = [(batch.inputs[:half], batch.labels[:half]), (batch.inputs[half:], batch.labels[half:])]
    measured = measure(model, pairs, {"natural": Natural()}, steps=10)
    assert measured.index.tolist() == list(range(len(batch)))
    assert measured.batch.tolist() == [0] * half + [1] * (len(batch) - half)


def test_inputs_in_another_box_are_measured_in_it(smooth):
    model, batch = smooth
    wide = [(2 * batch.inputs - 1, batch.labels)]
    measured = measure(model, wide, {"natural": Natural()}, steps=10, bounds=(-1.0, 1.0))
    assert measured.found.bounds == (-1.0, 1.0)
    with pytest.raises(ValueError, match="bounds"):
        measure(model, wide, {"natural": Natural()}, steps=10)


def test_what_is_no_method_is_named(smooth):
    model, batch = smooth
    with pytest.raises(TypeError, match=r"dyart\.methods\.AT.*'at' is of type str"):
        measure(model, [batch], {"at": "at"})
