"""AutoAttack's attacks with a radius per example: the authors' own results where the radius is one."""

import logging
import sys

import pytest
import torch
from evaluate_cases import Mlp, examples, short
from torch import nn

import dyart
from dyart.boundary.norms import norm as norm_of
from dyart.evaluation import authors as authors_code
from dyart.evaluation import standard
from dyart.evaluation.views import Count, View

RADIUS = {"linf": 0.03, "l2": 0.2, "l1": 0.8}
NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
SIDE = 6


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    short(monkeypatch, steps=10, queries=40)


def radius_of(name, norm):
    """One at which some examples are broken; Square needs more room in so few queries."""
    return RADIUS[norm] * (4 if name == "square" else 1)


def problem(classes=6, count=16):
    mlp = Mlp(3 * SIDE * SIDE, classes)
    inputs, labels = examples(mlp, count, 3 * SIDE * SIDE, wrong=0)
    inputs[:, ::7] = 0.0  # at the side of the box, where steps are cut off
    inputs[:, 1::7] = 1.0
    labels = mlp(inputs).argmax(dim=1)
    return nn.Sequential(nn.Flatten(), mlp), inputs.reshape(count, 3, SIDE, SIDE), labels


def authors(name, model, x, y, norm, radius):
    """The attack as AutoAttack's standard version sets it up and calls it."""
    from pyautoattack import AutoAttack

    whole = AutoAttack(model, eps=radius, norm=NORMS[norm], seed=3, version="standard", device="cpu")
    attack = {"apgd-ce": whole.apgd, "apgd-t": whole.apgd_targeted, "fab-t": whole.fab, "square": whole.square}[name]
    if name == "fab-t":
        attack.targeted = True
    if hasattr(attack, "n_target_classes"):
        attack.n_target_classes = min(attack.n_target_classes, 5)
    attack.n_iter = attack.n_iter_orig = standard.STEPS
    attack.n_queries = standard.QUERIES
    if "apgd" in name:
        attack.n_iter_2, attack.n_iter_min, attack.size_decr = 2, 1, 1  # as for 10 steps
    return attack.perturb(x.clone(), y.clone()).detach()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", standard.NAMES)
def test_with_one_radius_the_points_are_those_of_the_authors(name, norm):
    model, x, y = problem()
    radius = radius_of(name, norm)
    with torch.random.fork_rng():
        expected = authors(name, model, x, y, norm, radius)
    view = View(model, Count())
    with torch.random.fork_rng():
        points = standard.run(name, view, x, y, torch.full((len(x),), radius), norm=norm, classes=6, seed=3)
    moved = (points != x).flatten(1).any(dim=1)
    assert 0 < moved.sum() < len(x), "some are broken, some resist"
    assert torch.equal(moved, (expected != x).flatten(1).any(dim=1))
    # Square's points are computed in other coordinates, or other batches: equal up to rounding.
    torch.testing.assert_close(points, expected, rtol=0, atol=1e-5 if name == "square" else 0)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", standard.NAMES)
def test_every_example_has_its_own_radius(name, norm):
    model, x, y = problem()
    radius = radius_of(name, norm) * torch.tensor([0.0625, 0.5, 1.0, 8.0]).repeat(4)
    with torch.random.fork_rng():
        points = standard.run(name, View(model, Count()), x, y, radius, norm=norm, classes=6, seed=0)
    distance = norm_of(points - x, norm)
    assert (distance <= radius * (1 + 1e-4)).all()
    assert points.min() >= 0
    assert points.max() <= 1
    moved = distance > 0
    assert (model(points).argmax(dim=1)[moved] != y[moved]).all()
    assert moved[3::4].sum() > moved[0::4].sum(), "larger balls break more"


@pytest.mark.parametrize(("room", "runs"), [(0, 5), (16, 5), (48, 2), (79, 2), (80, 1), (1000, 1)])
def test_several_targets_are_aimed_at_together_as_far_as_there_is_room(monkeypatch, room, runs):
    model, x, y = problem()
    aims, batches, latest = {}, [], {}
    run, loss = authors_code.auto_pgd, authors_code.targeted_dlr

    def recorded(model, x, *others, **options):
        result = run(model, x, *others, **options)
        batches.append(len(x))
        for image, target in zip(x, latest["targets"], strict=True):
            aims.setdefault(image.numpy().tobytes(), []).append(int(target))
        return result

    def noted(logits, labels, targets):
        latest["targets"] = targets
        return loss(logits, labels, targets)

    monkeypatch.setattr(authors_code, "auto_pgd", recorded)
    monkeypatch.setattr(authors_code, "targeted_dlr", noted)
    options = {"norm": "linf", "classes": 6, "seed": 3, "room": room}
    with torch.random.fork_rng():
        points = standard.run("apgd-t", View(model, Count()), x, y, torch.full((16,), 1e-4), **options)
    assert torch.equal(points, x), "all resist"
    assert len(batches) == runs
    assert max(batches) <= max(room, 16)
    for image, label in zip(x, y, strict=True):
        assert sorted(aims[image.numpy().tobytes()]) == sorted({*range(6)} - {int(label)})
    radius = radius_of("apgd-t", "linf")
    with torch.random.fork_rng():
        points = standard.run("apgd-t", View(model, Count()), x, y, torch.full((16,), radius), **options)
    moved = (points != x).flatten(1).any(dim=1)
    assert 0 < moved.sum() < len(x), "some are broken, some resist"
    assert (model(points).argmax(dim=1)[moved] != y[moved]).all()
    assert (norm_of(points - x, "linf") <= radius * (1 + 1e-4)).all()


def test_what_is_misclassified_is_left_alone():
    model, x, y = problem()
    y[:4] = (y[:4] + 1) % 6
    for name in standard.NAMES:
        with torch.random.fork_rng():
            points = standard.run(
                name, View(model, Count()), x, y, torch.full((16,), 0.2), norm="linf", classes=6, seed=0
            )
        assert torch.equal(points[:4], x[:4])


def test_nothing_reaches_the_parameters_gradients():
    model, x, y = problem()
    for name in standard.NAMES:
        with torch.random.fork_rng():
            standard.run(name, View(model, Count()), x, y, torch.full((16,), 0.05), norm="linf", classes=6, seed=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_log_of_others_is_not_silenced_for_good():
    model, x, y = problem()
    with torch.random.fork_rng():
        standard.run("apgd-t", View(model, Count()), x, y, torch.full((16,), 0.05), norm="linf", classes=6, seed=0)
    assert not logging.getLogger("auto-attack").disabled


@pytest.mark.parametrize(
    ("shape", "norm", "runs"),
    [((3, 32, 32), "linf", True), ((1, 4, 4), "linf", True), ((1, 4, 4), "l2", False), ((12,), "linf", False)],
)
def test_square_needs_images(shape, norm, runs):
    assert (standard.left_out("square", shape, norm) is None) == runs
    assert standard.left_out("apgd-t", shape, norm) is None


@pytest.mark.parametrize(
    ("attack", "norm", "runs"),
    [("apgd", "linf", True), ("apgd", "l2", True), ("apgd", "l1", False), ("autoattack", "l2", False)],
)
def test_without_the_authors_package_auto_pgd_runs(monkeypatch, attack, norm, runs):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    monkeypatch.setitem(sys.modules, "pyautoattack.autopgd_base", None)
    model, x, y = problem()
    options = {"radii": [RADIUS[norm]], "norm": norm, "steps": 5, "restarts": 1, "preflight": False}
    if not runs:
        with pytest.raises(ImportError, match="pip install pyautoattack, or use attack="):
            dyart.evaluate(model, x, y, attack=attack, **options)
        return
    result = dyart.evaluate(model, x, y, attack=attack, **options)
    assert 0 < result.resisting[str(RADIUS[norm])].sum() < len(x)


def test_an_input_whose_label_ties_is_attacked():
    """As by the authors: its class is argmax, the first of equal logits, and not the last in order."""
    x = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, 0], y = 0.5, torch.zeros(4, dtype=torch.long)

    def model(x):
        first, none = x[:, 0, 0, 0] - 0.5, 0 * x.flatten(1).sum(dim=1)
        return torch.stack([none, first, none - 1, none - 2], dim=1)

    assert (model(x).argmax(dim=1) == y).all()
    found = standard.run("apgd-ce", model, x, y, torch.full((4,), 0.1), norm="linf", classes=4, seed=0)
    assert (model(found).argmax(dim=1) != y).all()
