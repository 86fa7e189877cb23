"""Every registered method works in anybody's training loop, and leaves model and process as they were."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from networks import small_resnet
from objective_cases import images, labels_of
from side_effects import assert_same, batch, in_mode, network, settings, snapshot
from torch import nn

from dyart.boundary.points import BoundaryPoints
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.methods.base import accuracy, classification_loss, registered, start_key

METHODS = registered()


def keyed(inputs, labels, key=11, targets=None):
    return Batch(inputs, labels, torch.arange(len(labels)) + 50, torch.tensor(key), targets)


def tensors_in(crafted):
    """Return all tensors that a method crafted, whatever it is made of."""
    if isinstance(crafted, torch.Tensor):
        return [crafted]
    if isinstance(crafted, BoundaryPoints):
        return [crafted.points, crafted.margin, crafted.gradient]
    if isinstance(crafted, tuple | list):
        return [tensor for part in crafted for tensor in tensors_in(part)]
    return []


def assert_identical(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_call_gives_a_loss_and_what_to_log(name, mode):
    model, (x, y) = in_mode(network(), mode), batch()
    model.zero_grad(set_to_none=True)
    loss, metrics = METHODS[name]()(model, x, y)
    assert loss.shape == ()
    assert loss.isfinite()
    assert loss.dtype == torch.float32
    assert metrics
    for key, value in metrics.items():
        assert isinstance(value, torch.Tensor), key
        assert value.shape == (), key
        assert not value.requires_grad, key
    loss.backward()
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in free)
    assert sum(float(parameter.grad.abs().sum()) for parameter in free) > 0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_crafting_changes_nothing(name, mode):
    model, (x, y) = in_mode(network(), mode), batch()
    method = METHODS[name]()
    x.requires_grad_()
    before, world = snapshot(model), settings()
    crafted = method.crafted(model, keyed(x, y))
    assert_same(before, snapshot(model))
    assert_same(world, settings())
    assert x.grad is None
    assert not any(tensor.requires_grad for tensor in tensors_in(crafted))


@pytest.mark.parametrize("name", METHODS)
def test_in_eval_mode_a_call_changes_nothing(name):
    model, (x, y) = in_mode(network(), "eval"), batch()
    before, world = snapshot(model), settings()
    METHODS[name]()(model, x, y)
    assert_same(before, snapshot(model))
    assert_same(world, settings())


@pytest.mark.parametrize("name", METHODS)
def test_in_training_mode_a_call_changes_statistics_and_nothing_else(name):
    model, (x, y) = in_mode(network(), "train"), batch()
    model[1].p = 0.0
    before, world = snapshot(model, buffers=False), settings()
    mean = model[0][1].running_mean.clone()
    METHODS[name]()(model, x, y)
    assert_same(before, snapshot(model, buffers=False))
    assert_same(world, settings())
    assert not torch.equal(model[0][1].running_mean, mean)


class Modes(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(self.training)
        return x


@pytest.mark.parametrize("name", METHODS)
def test_points_are_crafted_in_eval_mode_and_the_loss_is_taken_in_the_models(name):
    modes = Modes()
    model, (x, y) = in_mode(network(modes), "train"), batch()
    method = METHODS[name]()
    crafted = method.crafted(model, keyed(x, y))
    assert not any(modes.seen)
    modes.seen.clear()
    method.loss(model, keyed(x, y), crafted)
    assert modes.seen
    assert all(modes.seen)


@pytest.mark.parametrize("name", METHODS)
def test_crafting_is_a_function_of_key_and_index(name):
    model, (x, y) = in_mode(network(), "eval"), batch()
    method = METHODS[name]()
    first, again = (tensors_in(method.crafted(model, keyed(x, y))) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert_identical(one, other)


@pytest.mark.parametrize("name", METHODS)
def test_two_objects_go_the_same_way(name):
    losses = []
    for _ in range(2):
        model, (x, y) = in_mode(network(), "eval"), batch()
        method = METHODS[name]()
        losses.append([method(model, x, y)[0].item() for _ in range(3)])
    assert losses[0] == losses[1]


class Apply(nn.Module):
    """A function as a module: what moves weights (AWP) needs the module that has them."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("name", METHODS)
def test_labels_of_any_integer_type_and_outputs_with_logits(name):
    model, (x, y) = in_mode(network(), "eval"), batch()

    class Output:
        def __init__(self, logits):
            self.logits = logits

    wanted = METHODS[name]()(model, x, y)[0]
    assert torch.equal(METHODS[name]()(model, x, y.int())[0], wanted)
    outputs = nn.Sequential(model, Apply(Output)) if name.endswith("-awp") else lambda inputs: Output(model(inputs))
    assert torch.equal(METHODS[name]()(outputs, x, y)[0], wanted)


@pytest.mark.parametrize("name", ["natural", "at", "dyart"])
def test_label_distributions_are_used_where_images_were_mixed(name):
    model, (x, y) = in_mode(network(), "eval"), batch()
    hard = F.one_hot(y, 4).float()
    soft = 0.7 * hard + 0.3 * hard.roll(1, 0)
    method = METHODS[name]()
    crafted = method.crafted(model, keyed(x, y))
    plain, same, mixed = (method.loss(model, keyed(x, y, targets=t), crafted)[0] for t in (None, hard, soft))
    torch.testing.assert_close(plain, same)
    at = crafted if name == "at" else x
    log = F.log_softmax(model(at), dim=1)
    wanted = ((hard - soft) * log).sum(dim=1).mean()
    torch.testing.assert_close(mixed - plain, wanted, rtol=1e-3, atol=1e-5)
    assert abs(wanted) > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_most_keep_no_state_and_say_so(name):
    method = METHODS[name]()
    method.load_state_dict(method.state_dict())
    if not method.state_dict():
        with pytest.raises(ValueError, match=rf"method '{name}' keeps no state, the checkpoint has \['margins'\]"):
            method.load_state_dict({"margins": torch.zeros(1)})


@pytest.mark.parametrize("name", METHODS)
def test_under_inference_mode_points_are_ordinary_tensors(name):
    model, (x, y) = in_mode(network(), "eval"), batch()
    method = METHODS[name]()
    wanted = tensors_in(method.crafted(model, keyed(x, y)))
    with torch.inference_mode():
        crafted = method.crafted(model, keyed(x.clone(), y.clone()))
    for one, other in zip(tensors_in(crafted), wanted, strict=True):
        assert_identical(one, other)
        assert not one.is_inference()


@pytest.mark.parametrize("name", METHODS)
def test_a_few_steps_lower_the_loss_on_images(name):
    from networks import small_resnet

    model = small_resnet("batch").train()
    x = images(torch.float32, 16)
    labels = labels_of(model, x)
    method = METHODS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(12):
        loss, _ = method(model, x, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert all(math.isfinite(loss) for loss in losses)
    assert min(losses[6:]) < losses[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_inputs_and_networks_of_another_precision(name, dtype):
    model = small_resnet("batch").to(dtype).train()
    x = images(dtype, 6)
    loss, _ = METHODS[name]()(model, x, torch.arange(6) % 4)
    assert loss.isfinite()
    loss.backward()


# What methods share


def test_random_starts_differ_from_process_to_process(monkeypatch):
    model, (x, y) = in_mode(network(), "eval"), batch()
    losses = []
    for rank in (0, 1, None):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda rank=rank: rank is not None)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        method = METHODS["at"](radius=0.2, steps=1, step_size=0.001)
        losses.append(method(model, x, y)[0].item())
    assert losses[0] != losses[1]
    assert losses[0] == losses[2], "one process alone is the first"


def test_random_starts_differ_from_call_to_call():
    model, (x, y) = in_mode(network(), "eval"), batch()
    method = METHODS["at"](radius=0.2, steps=1, step_size=0.001)
    assert len({method(model, x, y)[0].item() for _ in range(4)}) == 4


def test_start_keys_differ_by_step_and_purpose():
    one, other = keyed(*batch()), keyed(*batch(), key=12)
    keys = {int(start_key(b, purpose)) for b in (one, other) for purpose in ("at", "trades")}
    assert len(keys) == 4
    stream = start_key(one, "at")
    assert stream.shape == ()
    assert stream.dtype == torch.int64
    assert torch.equal(draws.uniform(stream, one.index), draws.uniform(int(stream), one.index))


def test_accuracy_and_classification_loss():
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]], dtype=torch.bfloat16)
    labels = torch.tensor([0, 0, 0], dtype=torch.int32)
    assert accuracy(logits, labels) == pytest.approx(2 / 3)
    loss = classification_loss(logits, keyed(torch.zeros(3, 1), labels))
    assert loss.dtype == torch.float32
    assert loss == pytest.approx((math.log1p(math.exp(-1)) + math.log1p(math.exp(3)) + math.log1p(math.exp(-1))) / 3)


def test_checkpoints_are_ranked_by_robust_accuracy_but_for_natural_training():
    assert METHODS["at"]().rank(0.9, 0.4) > METHODS["at"]().rank(0.95, 0.3)
    assert METHODS["at"]().rank(0.9, 0.4) > METHODS["at"]().rank(0.8, 0.4)
    assert METHODS["natural"]().rank(0.95, 0.0) > METHODS["natural"]().rank(0.9, 0.1)
    assert METHODS["dyart"].needs_burn_in
    assert not METHODS["at"].needs_burn_in


# DyART: the engine's two halves and the call are the same


def test_the_ways_to_dyarts_points_agree():
    model, (x, y) = in_mode(network(), "train"), batch()
    method = METHODS["dyart"](r0=0.3)
    searched, crafted = method.search(model, x, y), method.crafted(model, keyed(x, y))
    direct = method.craft(copy.deepcopy(model).eval(), keyed(x, y))
    for other in (crafted, direct):
        for one, two in zip(tensors_in(searched), tensors_in(other), strict=True):
            assert_identical(one, two)
    model.eval()
    called, _ = method(model, x, y)
    torch.testing.assert_close(method.loss(model, keyed(x, y), crafted)[0], called, rtol=0, atol=0)
