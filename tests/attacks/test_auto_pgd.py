"""Auto-PGD: the authors' points from the same start, without waiting for the GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dyart.attacks.auto_pgd import _periods, auto_pgd, random_start
from dyart.attacks.pgd import cross_entropy
from dyart.boundary.norms import norm as norm_of
from dyart.evaluation.authors import targeted_dlr

RADIUS = {"linf": 0.06, "l2": 0.4}
COUNT, CLASSES, SHAPE = 40, 5, (3, 4, 4)


@pytest.fixture
def problem():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(48, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, CLASSES)
    )
    for parameter in model.parameters():
        parameter.data *= 2
    x = torch.rand(COUNT, *SHAPE)
    return model.requires_grad_(False), x, model(x).argmax(dim=1)


def authors(model, x, y, start, norm, targets=None):
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted

    options = {"norm": {"linf": "Linf", "l2": "L2"}[norm], "eps": RADIUS[norm], "n_iter": 100, "device": "cpu"}
    attack = (APGDAttack if targets is None else APGDAttack_targeted)(model, **options)
    attack.init_hyperparam(x)
    attack.y_target = targets
    _, resists, _, found = attack.attack_single_run(x, y, x_init=start)
    return found.detach(), ~resists


@pytest.mark.parametrize("aimed", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_points_are_those_of_the_authors(problem, norm, aimed):
    model, x, y = problem
    radius = torch.full((COUNT,), RADIUS[norm])
    start = random_start(x, radius, norm)
    targets = (y + 1) % CLASSES if aimed else None
    expected, fooled = authors(model, x, y, start, norm, targets)
    objective = (lambda logits, labels: targeted_dlr(logits, labels, targets)) if aimed else cross_entropy
    found, broken = auto_pgd(model, x, y, radius, start, norm=norm, objective=objective)
    assert 0 < broken.sum() < COUNT, "some are broken, some resist"
    assert torch.equal(broken, fooled)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_example_s_way_does_not_depend_on_the_others_or_their_radii(problem, norm):
    model, x, y = problem
    radius = RADIUS[norm] * torch.linspace(0.2, 2.0, COUNT)
    start = random_start(x, radius, norm)
    found, broken = auto_pgd(model, x, y, radius, start, 30, norm=norm, objective=cross_entropy)
    assert (norm_of(found - x, norm) <= radius * (1 + 1e-5)).all()
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(model(found).argmax(dim=1) != y, broken)
    for half in (slice(None, 20), slice(20, None)):
        one, _ = auto_pgd(model, x[half], y[half], radius[half], start[half], 30, norm=norm, objective=cross_entropy)
        torch.testing.assert_close(one, found[half], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_start_is_on_the_sphere(norm):
    x, radius = torch.rand(6, *SHAPE), torch.linspace(0.1, 1.0, 6)
    torch.testing.assert_close(norm_of(random_start(x, radius, norm) - x, norm), radius)


def test_a_start_that_is_fooled_is_found(problem):
    model, x, y = problem
    found, broken = auto_pgd(model, x, (y + 1) % CLASSES, torch.zeros(COUNT), x.clone(), 0, objective=cross_entropy)
    assert broken.all()
    assert torch.equal(found, x)


def test_outputs_of_other_kinds_and_inputs_with_gradients(problem):
    model, x, y = problem
    radius = torch.full((COUNT,), RADIUS["linf"])
    start, dtypes = random_start(x, radius), set()

    def packed(points):
        return SimpleNamespace(logits=model(points).bfloat16())

    def watched(logits, labels):
        dtypes.add(logits.dtype)
        return cross_entropy(logits, labels)

    found, fooled = auto_pgd(packed, x.clone().requires_grad_(), y, radius, start, 20, objective=watched)
    assert not found.requires_grad
    assert dtypes == {torch.float32}
    assert fooled.any()
    with pytest.raises(ValueError, match="norm"):
        auto_pgd(model, x, y, radius, start, 1, norm="l1", objective=cross_entropy)


class NoWaiting(TorchDispatchMode):
    """Refuses what needs a number of the device on the host."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        waits = any(word in name for word in ("nonzero", "_local_scalar_dense", "masked_select", "unique"))
        by_mask = "aten.index" in name and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if waits or by_mask:
            raise AssertionError(name)
        return function(*args, **(kwargs or {}))


def test_nothing_waits_for_the_device(problem):
    model, x, y = problem
    with pytest.raises(AssertionError, match="index"), NoWaiting():
        x[x > 0.5]
    targets, radius = (y + 1) % CLASSES, torch.full((COUNT,), 0.05)
    start = random_start(x, radius)
    with NoWaiting():
        auto_pgd(model, x, y, radius, start, 30, objective=lambda z, labels: targeted_dlr(z, labels, targets))


@pytest.mark.parametrize(("steps", "first"), [(100, [21, 40, 56, 69, 79, 86, 92, 98]), (10, [1, 2, 3]), (1, [0])])
def test_the_periods_grow_shorter(steps, first):
    assert [end for end, _ in _periods(steps)][: len(first)] == first
