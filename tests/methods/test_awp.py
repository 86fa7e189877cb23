"""AWP around any method: the weights go where the formula says, come back, and nothing else has changed."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from networks import plain_kernels
from objective_cases import assert_all_close, gradients_of, images, labels_of
from objective_cases import network as resnet
from side_effects import assert_same, in_mode, network, settings, snapshot
from side_effects import batch as small_batch
from torch import nn

from dyart.data.loader import Batch
from dyart.engine.callbacks import Callback
from dyart.engine.fabric import make_fabric
from dyart.engine.run import prepare
from dyart.engine.steps import Stepper
from dyart.engine.views import Views
from dyart.methods.at import AT
from dyart.methods.awp import with_awp
from dyart.methods.base import find
from dyart.methods.natural import Natural
from dyart.recipes.load import check

X = images()
WRAPPED = ["natural", "at", "trades", "dyart", "mma"]
MOVED = ["weight" in name and value.ndim > 1 for name, value in resnet("batch").named_parameters()]


def setting(normalization="batch"):
    model = resnet(normalization).train()
    return model, Batch(X, labels_of(model, X), torch.arange(len(X)), torch.tensor(5))


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def by_hand(model, batch, points, gamma):
    """Return gamma v for every parameter of AT's loss, zeros where nothing moves: a network of its own."""
    proxy = copy.deepcopy(model).train()
    loss = F.cross_entropy(proxy(points), batch.labels)
    moves = []
    for (name, weight), gradient in zip(proxy.named_parameters(), gradients_of(loss, proxy), strict=True):
        length = math.sqrt(float((weight.detach() ** 2).sum())) / math.sqrt(float((gradient**2).sum()))
        moves.append(gamma * length * gradient * (weight.ndim > 1 and "weight" in name))
    return moves


# The perturbation


@pytest.mark.parametrize("normalization", ["batch", "group"])
def test_the_weights_go_where_the_formula_says(normalization):
    model, batch = setting(normalization)
    method = find("at-awp")(gamma=0.02)
    crafted = method.crafted(model, batch)
    before, wanted = values(model), by_hand(model, batch, crafted, 0.02)
    with method.perturbed(model, model, batch, crafted):
        after = values(model)
    assert 0 < sum(MOVED) < len(MOVED)
    for old, new, move, moved in zip(before, after, wanted, MOVED, strict=True):
        assert torch.equal(old, new) is not moved
        torch.testing.assert_close(new - old, move, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", WRAPPED)
def test_every_tensor_moves_by_gamma_of_its_length_and_comes_back(name):
    model, batch = setting()
    method = find(f"{name}-awp")(gamma=0.03)
    crafted = method.crafted(model, batch)
    before = values(model)
    loss = method.loss(model, batch, crafted)[0].item()
    with method.perturbed(model, model, batch, crafted):
        for old, new, moved in zip(before, values(model), MOVED, strict=True):
            if moved:
                torch.testing.assert_close((new - old).norm(), 0.03 * old.norm(), rtol=1e-9, atol=0)
        assert method.loss(model, batch, crafted)[0].item() > loss
    assert all(torch.equal(old, new) for old, new in zip(before, values(model), strict=True))


def test_the_weights_come_back_from_an_error_and_from_infinite_gradients():
    model, batch = setting()
    method, before = find("natural-awp")(), values(model)
    with pytest.raises(KeyError), method.perturbed(model, model, batch, None):
        raise KeyError("in the loss")
    assert all(torch.equal(old, new) for old, new in zip(before, values(model), strict=True))
    batch = dataclasses.replace(batch, inputs=torch.full_like(X, math.inf))
    with method.perturbed(model, model, batch, None):
        assert not all(bool(value.isfinite().all()) for value in values(model))
    assert all(torch.equal(old, new) for old, new in zip(before, values(model), strict=True))


def test_the_extra_pass_leaves_everything_as_it_was():
    model, (x, y) = in_mode(network(), "train"), small_batch()  # with dropout, a frozen layer, and gradients
    batch = Batch(x, y, torch.arange(len(x)), torch.tensor(5))
    method = find("at-awp")()
    crafted = method.crafted(model, batch)
    before, world = snapshot(model), settings()
    with method.perturbed(model, model, batch, crafted):
        now = snapshot(model)
    moved = {
        name for name, value in now.items() if isinstance(value, torch.Tensor) and not torch.equal(value, before[name])
    }
    assert moved == {"0.0.weight: value", "5.weight: value"}
    assert_same({k: v for k, v in before.items() if k not in moved}, {k: v for k, v in now.items() if k not in moved})
    assert_same(world, settings())


def test_a_weight_without_gradient_stays():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
            self.dead = nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x) + 0 * self.dead(x)

    model = Idle()
    batch = Batch(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), torch.arange(4), torch.tensor(0))
    before = copy.deepcopy(model.state_dict())
    with find("natural-awp")().perturbed(model, model, batch, None):
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert changed == ["used.weight"]


def test_under_autocast_the_loss_is_that_of_the_moved_weights():
    # Autocast keeps bfloat16 copies of the weights while it lasts, which the engine's step is inside of.
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 4))
    batch = Batch(X.float(), torch.arange(len(X)) % 4, torch.arange(len(X)), torch.tensor(5))
    method = find("natural-awp")(gamma=0.3)
    with plain_kernels(), torch.autocast("cpu", torch.bfloat16):
        still = method.loss(model, batch, None)[0].item()
        with method.perturbed(model, model, batch, None):
            moved = copy.deepcopy(model)
            inside = method.loss(model, batch, None)[0]
            inside.backward()
        back = method.loss(model, batch, None)[0].item()
    with plain_kernels(), torch.autocast("cpu", torch.bfloat16):
        afresh = method.loss(moved, batch, None)[0].item()
    assert inside.item() == afresh
    assert inside.item() > still + 0.1
    assert back == still


def test_through_a_compiled_view():
    model, batch = setting("group")
    twin = copy.deepcopy(model)
    one, other = find("natural-awp")(), find("natural-awp")()
    with (
        one.perturbed(model, model, batch, None),
        other.perturbed(twin, torch.compile(twin, backend="eager"), batch, None),
    ):
        for a, b in zip(values(model), values(twin), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_what_the_wrapped_method_keeps_is_written_once():
    class Counting(Natural):
        name = "counting"

        def __init__(self):
            self.visits = torch.zeros(len(X))

        def state_dict(self):
            return {"visits": self.visits}

        def load_state_dict(self, state):
            self.visits.copy_(state["visits"])

        def loss(self, model, batch, crafted):
            self.visits[batch.index] += 1
            return super().loss(model, batch, crafted)

    model, batch = setting()
    method = with_awp(Counting)()
    with method.perturbed(model, model, batch, None):
        method.loss(model, batch, None)
    assert (method.visits == 1).all()


# A step: craft, perturb, loss and gradient there, restore, optimizer


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_step_of_the_engine_is_the_papers(decay):
    """The released code steps at the moved weights: without weight decay that is the same."""
    model, batch = setting("batch")
    twin = copy.deepcopy(model)
    method, rate = find("at-awp")(gamma=0.05), 0.1
    optimizer = torch.optim.SGD(model.parameters(), rate, weight_decay=decay)
    stepper = Stepper(make_fabric("cpu"), Views(model, compile=False), method)
    stepper.gradients(batch)
    optimizer.step()

    points = AT().crafted(twin, batch)
    moves = by_hand(twin, batch, points, 0.05)
    with torch.no_grad():
        for weight, move in zip(twin.parameters(), moves, strict=True):
            weight += move
    gradients = gradients_of(F.cross_entropy(twin(points), batch.labels), twin)
    with torch.no_grad():
        for weight, gradient, move in zip(twin.parameters(), gradients, moves, strict=True):
            weight -= move
            weight -= rate * (gradient + decay * weight)
    for (name, one), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("name", WRAPPED)
def test_in_anybodys_loop_the_loss_and_its_gradient_are_those_at_the_moved_weights(name):
    model, batch = setting("batch")
    twin = copy.deepcopy(model)
    method, other = (find(f"{name}-awp")(gamma=0.05) for _ in range(2))
    before = values(model)
    loss, metrics = method(model, X, batch.labels)
    got = gradients_of(loss, model)
    assert all(torch.equal(a, b) for a, b in zip(values(model), before, strict=True))
    assert metrics

    seen = {}
    craft = other.craft
    other.craft = lambda model, batch: seen.setdefault("crafted", craft(seen.setdefault("model", model), batch))
    other.loss_alone = lambda model, batch, crafted: (seen.setdefault("batch", batch), {})
    other(twin, X, batch.labels)  # the batch and points that a first call has
    with other.perturbed(twin, twin, seen["batch"], seen["crafted"]):
        wanted, _ = other.loss(twin, seen["batch"], seen["crafted"])
        torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=1e-12)
        assert_all_close(got, gradients_of(wanted, twin), 1e-7)
    for (key, one), (_, two) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(one, two, msg=key)
    # ... and far from those of the method alone.
    plain, _ = find(name)().loss(model, seen["batch"], seen["crafted"])
    assert loss > plain


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_logged_is_of_the_weights_where_they_belong(name):
    model, batch = setting("batch")
    crafted = find(name)().crafted(model, batch)
    wanted = find(name)().loss(copy.deepcopy(model), batch, crafted)[1]
    method = find(f"{name}-awp")(gamma=0.3)
    with method.perturbed(model, model, batch, crafted):
        moved = find(name)().loss(copy.deepcopy(model), batch, crafted)[1]
        got = method.loss(model, batch, crafted)[1]
    assert got.keys() == wanted.keys()
    assert any(not torch.equal(moved[key], wanted[key]) for key in wanted)
    for key, value in wanted.items():
        torch.testing.assert_close(got[key], value, equal_nan=True, msg=key)
    alone = method.loss_alone(model, batch, crafted)[1]
    for key, value in wanted.items():
        torch.testing.assert_close(alone[key], value, equal_nan=True, msg=key)
    after = method.loss(model, batch, crafted)[1]  # nothing of it stays
    assert all(torch.equal(after[key], value) for key, value in wanted.items() if not value.isnan())


def test_without_gradients_the_loss_is_the_same():
    model, batch = setting("group")
    wanted = find("at-awp")()(model, X, batch.labels)[0].item()
    with torch.no_grad():
        loss, _ = find("at-awp")()(model, X, batch.labels)
    assert loss.item() == pytest.approx(wanted, rel=1e-12)
    assert not loss.requires_grad


def test_a_network_without_matrices_has_nothing_to_move():
    model = nn.Sequential(nn.Flatten(), nn.LayerNorm(192))
    batch = Batch(X.float(), torch.arange(len(X)) % 4, torch.arange(len(X)), torch.tensor(5))
    wanted = Natural()(model, batch.inputs, batch.labels)[0]
    assert torch.equal(find("natural-awp")()(model, batch.inputs, batch.labels)[0], wanted)


def test_anybodys_loop_needs_the_module():
    model, batch = setting()
    model.eval()  # in training mode a function is warned of, too
    with pytest.raises(TypeError, match=r"'at-awp' moves the network's weights: it needs the nn\.Module.*function"):
        find("at-awp")()(lambda x: 2 * model(x), X, batch.labels)


# Warm-up


def test_the_perturbation_begins_after_the_warm_up():
    model, batch = setting()
    method = find("natural-awp")(awp_warmup=0.25)
    assert method.awp_active, "without anybody who counts there is no warm-up"
    for fraction, active in [(0.0, False), (0.2, False), (0.25, True), (0.9, True)]:
        method.advance(fraction)
        before = values(model)
        with method.perturbed(model, model, batch, None):
            assert any(not torch.equal(a, b) for a, b in zip(values(model), before, strict=True)) is active


def test_the_wrapped_methods_schedule_goes_on():
    class Staged(Natural):
        name = "staged"
        fraction = -1.0

        def advance(self, fraction):
            self.fraction = fraction

        @property
        def stage(self):
            return self.fraction > 0.5

    method = with_awp(Staged)()
    method.advance(0.75)
    assert method.fraction == 0.75
    assert method.stage == (True, True)


# Trainings

TREE = {
    "seed": 3,
    "data": {"name": "three-blobs", "limit": 96},
    "model": {"name": "mlp"},
    "optim": {"lr": 0.2, "weight_decay": 0.001},
    "train": {"epochs": 3, "batch_size": 32, "log_every": 4, "device": "cpu", "compile": "off", "loggers": []},
    "eval": {"radius": 0.05, "steps": 2},
}
SETTINGS = {
    "natural": {},
    "at": {"steps": 2, "radius": 0.05, "step_size": 0.02},
    "trades": {"steps": 2, "radius": 0.05, "step_size": 0.02, "beta": 2.0},
    "dyart": {"steps": 3, "r0": 0.1, "lam": 5.0},
    "mma": {"steps": 2, "bisections": 4, "hinge": 0.2},
}


def trained(name, callbacks=(), **settings):
    method = {"name": name, **SETTINGS[name.removesuffix("-awp")], **settings}
    return prepare(check(TREE | {"method": method}), callbacks=callbacks).run()


@pytest.mark.parametrize("name", WRAPPED)
def test_gamma_zero_is_the_wrapped_method(name):
    plain, none = trained(name), trained(f"{name}-awp", gamma=0)
    assert plain.model.state_dict().keys() == none.model.state_dict().keys()
    for one, other in zip(plain.model.state_dict().values(), none.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    losses = [[record["loss"] for record in training.history] for training in (plain, none)]
    assert losses[0] == losses[1]
    some = trained(f"{name}-awp", gamma=0.01, awp_warmup=0)
    assert any(
        not torch.equal(one, other)
        for one, other in zip(plain.model.state_dict().values(), some.model.state_dict().values(), strict=True)
    )
    assert some.history[-1]["loss"] < some.history[0]["loss"]
    late = trained(f"{name}-awp", gamma=0.01, awp_warmup=1)
    assert all(
        torch.equal(one, other)
        for one, other in zip(plain.model.state_dict().values(), late.model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_in_anybodys_loop_the_network_keeps_its_modes(statistics):
    """BatchNorm at boundary points is what the wrapped method asks for, and no point gets into its statistics."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)).train()
    for _ in range(5):
        net(2 * torch.rand(64, 3, 4, 4))
    x = torch.rand(16, 3, 4, 4)
    y = net.eval()(x).argmax(dim=1)
    settings = {"lam": 1.0, "r0": 1.0, "keep": "found", "kl": 1.0, "statistics": statistics}
    seen = []
    for method in (find("dyart")(**settings), find("dyart-awp")(gamma=0.0, **settings)):
        own = copy.deepcopy(net).train()
        loss, metrics = method(own, x, y)
        seen.append((loss.item(), metrics["phi_shift"].item(), own[2].num_batches_tracked.item(), own[2].running_mean))
    assert seen[0][:3] == pytest.approx(seen[1][:3], rel=1e-6)
    assert torch.equal(seen[0][3], seen[1][3])


@pytest.mark.parametrize("name", ["at", "dyart"])
def test_listeners_and_averages_see_restored_weights(name):
    seen = []

    class Look(Callback):
        def on_step(self, training):
            seen.extend([values(training.model), values(training.average.model)])

    method = {"name": f"{name}-awp", **SETTINGS[name], "awp_warmup": 0}
    training = prepare(check(TREE | {"method": method, "optim": {"lr": 1e-30}}), callbacks=[Look()])
    before = values(training.model)
    training.run()
    assert len(seen) == 2 * 9
    assert all(torch.equal(old, new) for step in seen for old, new in zip(before, step, strict=True))
