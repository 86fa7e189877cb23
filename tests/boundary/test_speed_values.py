"""boundary_speed against closed forms, per-sample gradients and real steps, row by row."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import random_like, small_resnet, smooth_network, uniform
from speed_checks import (
    CENTRAL,
    DOUBLE,
    FORWARD,
    MATH,
    assert_close_to_scale,
    assert_same_state,
    search,
    slope_of,
    speed_by_differences,
    state_of,
)
from torch import Tensor, nn

import dyart

NORMS = ("linf", "l2")


# Closed forms


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("norm", NORMS)
def test_linear_classifiers_have_the_speed_of_the_closed_form(norm, classes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(6, classes, dtype=torch.float64)
    found = search(model, uniform(24, 6, dtype=torch.float64), norm=norm, tol=1e-12, restarts=4, steps=50)
    # All weights and biases move at once: the normal turns and the plane shifts.
    update = random_like(model, seed=1)

    def margins(weight: Tensor, bias: Tensor) -> Tensor:
        z = found.inputs @ weight.T + bias
        rows = torch.arange(len(found))
        apart = weight[found.labels] - weight[found.rival]
        length = torch.linalg.vector_norm(apart, ord=1 if norm == "linf" else 2, dim=1)
        return (z[rows, found.labels] - z[rows, found.rival]).abs() / length

    at = (model.weight.detach(), model.bias.detach())
    torch.testing.assert_close(found.margin, margins(*at))
    wanted = torch.func.jvp(margins, at, (update["weight"], update["bias"]))[1]
    speed = dyart.boundary_speed(model, found, update)
    assert speed.shape == (24,)
    torch.testing.assert_close(speed, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("boundary", ["exact", "soft"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("normalization", ["group", "batch"])
def test_speed_equals_per_sample_gradients_times_the_update(normalization, norm, boundary):
    model, x = small_resnet(normalization), uniform(12, 3, 8, 8)
    found = search(model, x, norm=norm, boundary=boundary)
    update = random_like(model, seed=2)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def margin_of_one(state: dict[str, Tensor], point: Tensor, label: Tensor) -> Tensor:
        z = torch.func.functional_call(model, state, (point[None],))
        if boundary == "exact":
            return dyart.logit_margin(z, label[None])[0]
        return dyart.soft_logit_margin(z, label[None], beta=found.beta)[0]

    gradient = torch.func.vmap(torch.func.grad(margin_of_one), in_dims=(None, 0, 0))
    rows = found.found
    per_sample = gradient(parameters, found.points[rows], found.labels[rows])
    products = sum((per_sample[name] * rate).flatten(1).sum(dim=1) for name, rate in update.items())
    speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == FORWARD
    assert_close_to_scale(speed[rows], products / slope_of(found)[rows], 1e-4)


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """A random direction for all float buffers: means and variances."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(buffer.shape, generator=generator, dtype=buffer.dtype)
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point()
    }


@pytest.mark.filterwarnings("ignore:.*central difference")  # allowed here, not required
@pytest.mark.parametrize("derivative", [None, CENTRAL])
@pytest.mark.parametrize("moving", ["statistics", "statistics and parameters", "one mean and the head"])
def test_updates_of_batch_norm_statistics_count(moving, derivative):
    model = small_resnet("batch").double()
    found = search(model, uniform(12, 3, 8, 8, dtype=torch.float64))
    update = statistics_of(model)
    assert len(update) == 2 * 5  # a mean and a variance per layer, and no parameter
    if moving == "statistics and parameters":
        update |= random_like(model)
    if moving == "one mean and the head":
        update = {"norm.running_mean": update["norm.running_mean"], "head.bias": random_like(model)["head.bias"]}
    before = state_of(model)
    speed = dyart.boundary_speed(model, found, update, derivative=derivative)
    assert_close_to_scale(speed, speed_by_differences(model, found, update), 1e-2)
    assert_same_state(model, before)
    assert not any(buffer.requires_grad for buffer in model.buffers())


@pytest.mark.parametrize("derivative", [FORWARD, MATH, DOUBLE])
def test_no_way_ignores_an_update_of_batch_norm_statistics(derivative):
    # A way that cannot differentiate them must say so: a speed of zero would be believed.
    model = small_resnet("batch").double()
    found = search(model, uniform(12, 3, 8, 8, dtype=torch.float64))
    update = statistics_of(model)
    try:
        speed = dyart.boundary_speed(model, found, update, derivative=derivative)
    except (NotImplementedError, RuntimeError):
        pass
    else:
        assert_close_to_scale(speed, speed_by_differences(model, found, update), 1e-4)
    assert not any(buffer.requires_grad for buffer in model.buffers())


@pytest.mark.filterwarnings("ignore:.*central difference")
def test_speed_of_a_real_step_that_also_moves_the_statistics():
    # Float32 and ReLU, as users have it: one SGD step in training mode moves weights, means and variances.
    model, x = small_resnet("batch"), uniform(32, 3, 8, 8)
    found = search(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    update = dyart.update_direction(
        model, loss=lambda: F.cross_entropy(model(x), torch.arange(32) % 4), optimizer=optimizer, buffers=True
    )
    assert (update["norm.running_mean"] != 0).any()
    speed = dyart.boundary_speed(model.eval(), found, update)
    precise = search(copy.deepcopy(model).double(), x.double())
    same = (precise.points - found.points).flatten(1).abs().amax(dim=1) < 1e-5
    assert same.sum() >= 24
    wanted = speed_by_differences(copy.deepcopy(model).double(), precise, update)
    assert float(((speed - wanted).abs() / wanted.abs())[same].median()) < 0.02


def test_partial_updates_leave_the_rest_in_place():
    model, x = smooth_network(), uniform(12, 12, dtype=torch.float64)
    found = search(model, x)
    update = random_like(model)
    parts = [{name: rate} for name, rate in update.items()]
    speeds = [dyart.boundary_speed(model, found, part) for part in parts]
    assert all((speed != 0).any() for speed in speeds)
    torch.testing.assert_close(sum(speeds), dyart.boundary_speed(model, found, update))


def test_no_update_means_no_speed():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    assert (dyart.boundary_speed(model, found, {}) == 0).all()


def test_the_speed_is_linear_in_the_update():
    model = smooth_network()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    one, other = random_like(model, 1), random_like(model, 2)
    mixed = {name: 2 * one[name] - 3 * other[name] for name in one}
    wanted = 2 * dyart.boundary_speed(model, found, one) - 3 * dyart.boundary_speed(model, found, other)
    torch.testing.assert_close(dyart.boundary_speed(model, found, mixed), wanted)


# Rows


@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_chunks_agree_with_one_pass(batch_size):
    model, x = small_resnet("group"), uniform(12, 3, 8, 8)
    labels = model(x).argmax(dim=1)
    labels[::4] = (labels[::4] + 1) % 4  # three rows have no point
    found = search(model, x, labels)
    assert found.found.sum() == 9
    update = random_like(model)
    whole = dyart.boundary_speed(model, found, update)
    sizes = []
    model.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    chunked = dyart.boundary_speed(model, found, update, batch_size=batch_size)
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert max(sizes) <= batch_size
    assert sum(sizes) == found.found.sum()


def test_nan_exactly_where_nothing_was_found():
    model, x = smooth_network(), uniform(20, 12, dtype=torch.float64)
    found = search(model, x, torch.arange(20) % 4)
    assert not found.found.all()
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert torch.equal(speed.isnan(), ~found.found)
    torch.testing.assert_close(
        speed[found.found], dyart.boundary_speed(model, found[found.found], random_like(model)), rtol=1e-9, atol=0
    )


def test_nothing_found_at_all():
    model, x = smooth_network(), uniform(5, 12, dtype=torch.float64)
    found = dyart.closest_boundary_points(model, x, model(x).argmin(dim=1))
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert speed.isnan().all()
    assert speed.shape == (5,)


def test_an_empty_batch():
    model, x = smooth_network(), uniform(5, 12, dtype=torch.float64)
    found = search(model, x)[torch.zeros(5, dtype=torch.bool)]
    assert dyart.boundary_speed(model, found, random_like(model)).shape == (0,)


def test_speed_predicts_the_step_of_an_optimizer():
    # The whole story in one: direction from update_direction, a step really taken, margins searched again.
    model, x = smooth_network(), uniform(24, 12, dtype=torch.float64)
    labels = model(x).argmax(dim=1)
    found = search(model, x, labels, steps=80, tol=1e-11)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, weight_decay=1e-2)
    targets = torch.arange(24) % 4
    update = dyart.update_direction(model, loss=lambda: F.cross_entropy(model(x), targets), optimizer=optimizer)
    speed = dyart.boundary_speed(model, found, update)
    F.cross_entropy(model(x), targets).backward()
    optimizer.step()
    after = search(model, x, labels, steps=80, tol=1e-11)
    same = found.found & after.found & ((after.points - found.points).abs().amax(dim=1) < 0.01)
    assert same.sum() >= 18
    change = after.margin - found.margin
    assert float(((speed - change).abs() / change.abs())[same].median()) < 0.02


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_a_float16_model_has_the_speed_of_an_update_of_any_size(scale):
    model = smooth_network(6, 3, seed=0)
    half = copy.deepcopy(model).half()
    found = dyart.closest_boundary_points(half, uniform(8, 6).half(), steps=40)
    update = {name: rate.float() for name, rate in random_like(model, seed=1).items()}
    wanted = dyart.boundary_speed(half, found, update)
    speed = dyart.boundary_speed(half, found, {name: scale * rate for name, rate in update.items()})
    assert int(found.found.sum()) >= 4
    torch.testing.assert_close(speed / scale, wanted, rtol=2e-2, atol=1e-3, equal_nan=True)
    assert bool((wanted[found.found].abs() > 0.01).any())
