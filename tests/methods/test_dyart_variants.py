"""Variants of the DyART objective: running statistics at boundary points, relative weights, a divergence."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from objective_cases import assert_all_close, gradients_of, images, labels_of, network
from torch import nn

import dyart
from dyart.boundary.gradient import margin_weights

COST = dyart.ExponentialCost(3.0, 0.05)
OPTIONS = {"r0": 0.05, "lam": 20.0, "steps": 6}


def case(normalization: str = "batch"):
    model, x = network(normalization), images()
    return model.train(), x, labels_of(model, x)


def searched(model: nn.Module, x, y):
    found = dyart.DyART(**OPTIONS).search(model, x, y)
    used = found.conditions.a & found.conditions.b & (found.margin < 0.05)
    assert int(used.sum()) >= 3
    return found, used


def test_running_statistics_raise_the_boundary_that_was_searched():
    model, x, y = case()
    found, used = searched(model, x, y)
    other = copy.deepcopy(model)
    loss, _ = dyart.DyART(**OPTIONS, statistics="running")(model, x, y)
    clean = F.cross_entropy(other(x), y)
    wanted = clean + 20.0 * dyart.margin_loss(other.eval(), found, COST, mask=used)
    torch.testing.assert_close(loss, wanted)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, other), 1e-9)
    assert all(module.training for module in model.modules())
    # The boundary points are nearer to the boundary of the network in this mode. (In these random networks one batch
    # changes the running statistics much.)
    shifts = {kind: dyart.DyART(**OPTIONS, statistics=kind) for kind in ("running", "batch")}
    shifts = {kind: abs(float(objective(model, x, y)[1]["phi_shift"])) for kind, objective in shifts.items()}
    assert shifts["running"] < shifts["batch"]


def test_without_batch_norm_the_statistics_are_no_matter():
    model, x, y = case("group")
    one, other = (dyart.DyART(**OPTIONS, statistics=kind)(model, x, y)[0] for kind in ("batch", "running"))
    torch.testing.assert_close(one, other)


def test_statistics_are_of_the_clean_images_alone():
    model, x, y = case()
    dyart.DyART(**OPTIONS, statistics="running")(model, x, y)  # the first call checks the batch
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    dyart.DyART(**OPTIONS, statistics="running")(one, x, y)
    other(x)
    for own, theirs in zip(one.buffers(), other.buffers(), strict=True):
        assert torch.equal(own, theirs)


def test_relative_weights_have_mean_one():
    model, x, y = case("group")
    found, used = searched(model, x, y)
    options = OPTIONS | {"lam": 2.0}
    loss, metrics = dyart.DyART(**options, relative=True)(model, x, y)
    weights, weighed = margin_weights(found, COST, mask=used)
    assert torch.equal(weighed, used)
    weights = weights / weights[used].abs().mean()
    value = dyart.soft_logit_margin(model(found.points), y)
    wanted = F.cross_entropy(model(x), y) + 2.0 * (weights * value)[used].sum() / len(x)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-9)
    plain = dyart.DyART(**options)(model, x, y)[1]
    torch.testing.assert_close(metrics["margin_loss"], plain["margin_loss"])


@pytest.mark.parametrize("relative", [False, True])
def test_relative_weights_do_not_see_how_steep_the_network_is(relative):
    """Ten times the logits at a tenth of beta have the same soft boundary, ten times as steep."""
    model, x, y = case("group")
    weights = []
    for called, beta in ((model, 5.0), (lambda inputs: 10 * model(inputs), 0.5)):
        objective = dyart.DyART(**OPTIONS, beta=beta, relative=relative)
        found = objective.search(called, x, y)
        used = found.found & (found.margin < 0.05)
        factor = objective._scale(found, used, found.multiplier(), None) if relative else 1.0
        weights.append(float((factor * margin_weights(found, COST, mask=used)[0].abs())[used].mean()))
    assert weights[1] == pytest.approx(weights[0] if relative else weights[0] / 10, rel=1e-3)


def test_nothing_used_weighs_nothing():
    model, x, y = case("group")
    loss, _ = dyart.DyART(**OPTIONS | {"r0": 1e-6}, relative=True)(model, x, y)
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients_of(loss, model))


def test_the_divergence_is_of_used_points():
    model, x, y = case("group")
    found, used = searched(model, x, y)
    plain, _ = dyart.DyART(**OPTIONS)(model, x, y)
    loss, metrics = dyart.DyART(**OPTIONS, kl=3.0)(model, x, y)
    clean, moved = F.log_softmax(model(x), dim=1), F.log_softmax(model(found.points), dim=1)
    divergence = (clean.exp() * (clean - moved)).sum(dim=1)[used].sum() / len(x)
    torch.testing.assert_close(loss, plain + 3.0 * divergence)
    torch.testing.assert_close(metrics["kl"], divergence.detach())
    assert_all_close(gradients_of(loss, model), gradients_of(plain + 3.0 * divergence, model), 1e-9)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_divergence_at_a_radius_is_of_all_examples(norm):
    model, x, y = case("group")
    options, radius = OPTIONS | {"norm": norm, "r0": 0.05 if norm == "linf" else 0.5}, 0.03 if norm == "linf" else 0.3
    found = dyart.DyART(**options).search(model, x, y)
    inside = found.found
    assert 3 <= int(inside.sum()) < len(x)
    away = (found.points - x).flatten(1)
    away = away / torch.linalg.vector_norm(away, ord={"linf": torch.inf, "l2": 2}[norm], dim=1, keepdim=True)
    leaf = x.clone().requires_grad_()
    (down,) = torch.autograd.grad(-dyart.soft_logit_margin(model(leaf), y).sum(), leaf)
    down = down.flatten(1)
    down = down.sign() if norm == "linf" else down / down.norm(dim=1, keepdim=True)
    aside = (x + radius * torch.where(inside[:, None], away, down).reshape(x.shape)).clamp(0, 1)
    plain, _ = dyart.DyART(**options)(model, x, y)
    loss, metrics = dyart.DyART(**options, kl=3.0, kl_radius=radius)(model, x, y)
    clean, moved = F.log_softmax(model(x), dim=1), F.log_softmax(model(aside), dim=1)
    divergence = (clean.exp() * (clean - moved)).sum(dim=1).mean()
    torch.testing.assert_close(metrics["kl"], divergence.detach())
    assert_all_close(gradients_of(loss, model), gradients_of(plain + 3.0 * divergence, model), 1e-9)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_the_divergence_at_a_radius_in_every_kind_of_forward_pass(joint, statistics):
    """Without BatchNorm they are all the same."""
    model, x, y = case("group")
    options = OPTIONS | {"kl": 3.0, "kl_radius": 0.03}
    wanted, _ = dyart.DyART(**options)(model, x, y)
    loss, _ = dyart.DyART(**options, joint=joint, statistics=statistics)(model, x, y)
    torch.testing.assert_close(loss, wanted)


def test_an_example_without_a_boundary_point_takes_part_down_the_gradient_at_the_input():
    """Retired because its margin is beyond r0: inside, and nothing found."""
    model, x, y = case("group")
    options = OPTIONS | {"r0": 1e-3, "retire": True, "kl": 3.0}
    objective = dyart.DyART(**options, kl_radius=0.03)
    found = objective.search(model, x, y)
    lost = found.inside & ~found.found
    assert int(lost.sum()) >= 2
    leaf = x.clone().requires_grad_()
    (up,) = torch.autograd.grad(dyart.soft_logit_margin(model(leaf), y).sum(), leaf)
    aside = (x - 0.03 * up.sign()).clamp(0, 1)
    torch.testing.assert_close(objective._aside(found, 0.03)[lost], aside[lost])


def test_a_gradient_that_overflowed_leaves_the_example_where_it_is():
    model, x, y = case("group")
    objective = dyart.DyART(**OPTIONS | {"r0": 0.5, "norm": "l2"}, kl=3.0, kl_radius=0.3)
    found = objective.search(model, x, y)
    row = int((~found.found).nonzero()[0, 0])
    gradient = found.gradient.clone()
    gradient[row, 0, 0, 0] = torch.inf
    aside = objective._aside(dataclasses.replace(found, gradient=gradient), 0.3)
    assert bool(aside.isfinite().all())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"statistics": "eval"}, "statistics"),
        ({"kl": -1.0}, "kl must be"),
        ({"kl": float("inf")}, "kl must be"),
        ({"kl_radius": 0.03}, "kl_radius places"),
        ({"kl": 3.0, "kl_radius": 0.03, "norm": "l1"}, "norm must be"),
        ({"kl": 3.0, "kl_radius": 0.03, "warm_start": True}, "warm_start does without"),
        ({"kl": 3.0, "kl_radius": 0.0}, "kl_radius must be"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        dyart.DyART(**settings)
