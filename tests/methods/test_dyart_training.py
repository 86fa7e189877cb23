"""The DyART objective in use: passes and modes, a training run, and bad calls."""

import copy
import math
import types

import pytest
import torch
import torch.nn.functional as F
from networks import plain_kernels, small_resnet
from objective_cases import EXAMPLES, assert_all_close, gradients_of, images, labels_of, network
from torch import Tensor, nn

import dyart

# Passes and modes


class Counting(nn.Module):
    """Notes every forward pass (its inputs) and every backward pass through a network."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen, self.backward_passes = inner, [], 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        output = self.inner(x)
        if output.requires_grad:
            output.register_hook(self._count)
        return output

    def _count(self, gradient: Tensor) -> None:
        self.backward_passes += 1

    def reset(self) -> None:
        self.seen, self.backward_passes = [], 0


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("steps", [2, 7])
def test_number_of_passes(steps, joint):
    model, x = Counting(network("group")), images()
    labels = labels_of(model.inner, x)
    objective = dyart.DyART(r0=0.05, steps=steps, joint=joint)
    loss, _ = objective(model, x, labels)
    # The first call checks the batch with one more forward pass, and says so.
    assert len(model.seen) == 1 + steps + (1 if joint else 2)
    model.reset()
    loss, _ = objective(model, x, labels)
    assert [len(seen) for seen in model.seen] == [EXAMPLES] * steps + ([2 * EXAMPLES] if joint else [EXAMPLES] * 2)
    assert model.backward_passes == steps
    loss.backward()
    assert model.backward_passes == steps + (1 if joint else 2)
    # Boundary points first, then the clean images, in both versions.
    points = objective.search(model, x, labels).points
    last = torch.cat(model.seen[steps : steps + (1 if joint else 2)])
    assert torch.equal(last, torch.cat([points, x]))


def test_the_search_model_searches_and_the_model_learns():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    searching = copy.deepcopy(model)
    with torch.no_grad():
        searching.head.weight.mul_(0.8)
        searching.stem.weight.mul_(1.1)  # another network, so that it shows whose points they are
    learns, searches = Counting(model), Counting(searching)
    objective = dyart.DyART(r0=0.05, lam=50.0, steps=6, search_model=searches, keep="found")
    objective(learns, x, labels)
    learns.reset()
    searches.reset()
    loss, _ = objective(learns, x, labels)
    assert [len(seen) for seen in learns.seen] == [2 * EXAMPLES]
    assert [len(seen) for seen in searches.seen] == [EXAMPLES] * 6
    found = dyart.DyART(r0=0.05, steps=6).search(searching, x, labels)
    assert torch.equal(learns.seen[0][:EXAMPLES], found.points)
    wanted = F.cross_entropy(model(x), labels) + 50.0 * dyart.margin_loss(
        model, found, dyart.ExponentialCost(3.0, 0.05)
    )
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-5)
    loss, _ = objective(learns, x, labels)
    loss.backward()
    assert all(parameter.grad is None for parameter in searching.parameters())
    assert (model.head.weight.grad != 0).any()


@pytest.mark.parametrize("joint", [True, False])
def test_batch_norm_statistics_move_with_the_loss_alone(joint):
    model, x = network("batch").train(), images()
    labels = labels_of(model, x)
    objective = dyart.DyART(r0=0.02, joint=joint)
    points = objective.search(model, x, labels).points
    reference = copy.deepcopy(model)
    objective(model, x, labels)
    for batch in [torch.cat([points, x])] if joint else [points, x]:
        reference(batch)
    for (name, got), wanted in zip(model.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, msg=name)


def test_modes_flags_gradients_and_random_state_are_left_alone():
    model, x = network("batch").train(), images()
    labels = labels_of(model, x)
    model.block2.eval()
    model.stem.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(4, dtype=torch.float64)
    modes = [module.training for module in model.modules()]
    state = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    random_state = torch.get_rng_state()
    dyart.DyART(r0=0.02)(model, x, labels)
    assert [module.training for module in model.modules()] == modes
    assert not model.stem.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(parameter, state[name]) for name, parameter in model.named_parameters())
    assert (model.head.bias.grad == 1).all()
    assert model.head.weight.grad is None


def test_joint_and_separate_forwards_agree_without_batch_norm_and_differ_with_it():
    x = images()
    for normalization, agree in (("group", True), ("batch", False)):
        model = network(normalization).train()
        labels = labels_of(model, x)
        (one, _), (other, _) = (dyart.DyART(r0=0.02, joint=j)(copy.deepcopy(model), x, labels) for j in (True, False))
        assert torch.isclose(one, other, rtol=1e-5) == agree


def test_the_search_is_the_same_in_both_modes():
    # Eval mode for the search: BatchNorm uses running statistics, whatever the mode of the model.
    model, x = network("batch"), images()
    labels = labels_of(model, x)
    objective = dyart.DyART(r0=0.02)
    in_eval = objective.search(model, x, labels)
    in_training = objective.search(model.train(), x, labels)
    assert torch.equal(in_eval.points, in_training.points)
    assert in_eval.cost == (10, 10)


def test_bfloat16_autocast_gives_a_float32_loss():
    model, x = small_resnet("group"), images(torch.float32)
    labels = labels_of(model, x)
    exact = gradients_of(dyart.DyART(r0=0.05, lam=50.0, keep="found")(model, x, labels)[0], model)
    dtypes = []
    model.head.register_forward_hook(lambda *args: dtypes.append(args[-1].dtype))
    with plain_kernels():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, metrics = dyart.DyART(r0=0.05, lam=50.0, keep="found")(model, x, labels)
        rough = gradients_of(loss, model)
    assert set(dtypes) == {torch.bfloat16}
    assert loss.dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in metrics.values())
    assert loss.isfinite()
    one, other = (torch.cat([g.flatten() for g in gradients]) for gradients in (rough, exact))
    # The searches differ by rounding, so that this is about direction and size, not digits.
    assert torch.cosine_similarity(one, other, dim=0) > 0.8
    assert 0.5 < one.norm() / other.norm() < 2


def test_a_callable_with_logits_in_its_output():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    wrapped = lambda inputs: types.SimpleNamespace(logits=model(inputs))  # noqa: E731
    got = dyart.DyART(r0=0.05)(wrapped, x, labels)[0]
    wanted = dyart.DyART(r0=0.05)(model, x, labels)[0]
    assert_all_close(gradients_of(got, model), gradients_of(wanted, model), 1e-9)


# Training


def moons(examples: int = 80) -> tuple[Tensor, Tensor]:
    """Two interleaved half circles in the unit square."""
    angle = math.pi * torch.linspace(0, 1, examples // 2)
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
    noise = 0.05 * torch.randn(examples, 2, generator=torch.Generator().manual_seed(0))
    x = (torch.cat([upper, lower]) + noise + torch.tensor([1.3, 0.9])) / torch.tensor([3.6, 2.3])
    return x.clamp(0, 1), torch.arange(2).repeat_interleave(examples // 2)


class Moons(nn.Module):
    """A small network for them, with the scaling of the inputs inside."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(8 * (x - 0.5))


def lowest_margins(model: nn.Module, x: Tensor, labels: Tensor, norm: str) -> float:
    """The 10 % quantile of the margins to the exact boundary; misclassified examples count as negative."""
    found = dyart.closest_boundary_points(model, x, labels, norm=norm, steps=40, tol=1e-6, signed=True)
    return float(found.margin.nanquantile(0.1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_training_raises_the_smallest_margins(norm):
    x, labels = moons()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = Moons()

    def train(model: nn.Module, objective: dyart.DyART | None, steps: int, lr: float) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        for _ in range(steps):
            loss = F.cross_entropy(model(x), labels) if objective is None else objective(model, x, labels)[0]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model

    burnt_in = train(start, None, 200, lr=0.2)
    assert (burnt_in(x).argmax(dim=1) == labels).all()
    before = lowest_margins(burnt_in, x, labels, norm)
    natural = lowest_margins(train(copy.deepcopy(burnt_in), None, 40, lr=0.02), x, labels, norm)
    objective = dyart.DyART(alpha=5.0, r0=0.15, lam=100.0, steps=10, norm=norm)
    robust = lowest_margins(train(copy.deepcopy(burnt_in), objective, 40, lr=0.02), x, labels, norm)
    # Measured: 15 to 25 % above, and natural training changes less than 1 %.
    assert robust > 1.08 * before
    assert robust > 1.08 * natural


# Bad calls


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "l7"}, r"norm must be one of.*'l7'"),
        ({"boundary": "fuzzy"}, r"boundary must be one of.*'fuzzy'"),
        ({"keep": "all"}, r"keep must be one of.*'all'"),
        ({"beta": 0.0}, r"beta must be positive.*0\.0"),
        ({"steps": 1}, r"steps must be an integer of at least 2.*1"),
        ({"steps": 2.5}, r"steps must be an integer.*2\.5"),
        ({"lam": -1.0}, r"lam must be at least 0.*-1"),
        ({"lam": float("nan")}, r"lam must be at least 0.*nan"),
        ({"lam": "a"}, r"lam must be at least 0.*'a'"),
        ({"r0": "8/255"}, r"r0 must be a positive, finite number, got '8/255': write it without quotes"),
        ({"alpha": -1.0}, r"alpha must be.*-1"),
        ({"r0": 0.0}, r"r0 must be positive.*0\.0"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        dyart.DyART(**settings)


def test_a_bad_first_batch_raises():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    with pytest.raises(ValueError, match="outside the bounds"):
        dyart.DyART()(model, 2 * x, labels)
    with pytest.raises(ValueError, match="label 9 at index 0 is out of range"):
        dyart.DyART()(model, x, torch.full_like(labels, 9))
    with pytest.raises(TypeError, match="integer class indices"):
        dyart.DyART()(model, x, labels.double())
    with pytest.raises(ValueError, match=r"labels must have shape \(12,\)"):
        dyart.DyART()(model, x, labels[:5])
    with pytest.raises(ValueError, match="at least one example"):
        dyart.DyART()(model, x[:0], labels[:0])
    with pytest.raises(ValueError, match="NaN"):
        dyart.DyART()(model, x * torch.nan, labels)


def test_a_batch_that_failed_the_check_does_not_switch_the_check_off():
    model, x = network("group"), images()
    objective, labels = dyart.DyART(), labels_of(model, x)
    for _ in range(2):
        with pytest.raises(ValueError, match="outside the bounds"):
            objective(model, 2 * x, labels)
