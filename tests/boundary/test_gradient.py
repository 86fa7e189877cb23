"""margin_loss: its value and its gradient, against closed forms and against the formula written out row by row."""

import dataclasses
import types

import pytest
import torch
from gradient_checks import (
    BOUNDARIES,
    NORMS,
    assert_all_close,
    closed_form_margins,
    gradients_of,
    linear,
    search,
    with_unfound_rows,
)
from networks import plain_kernels, small_resnet, smooth_network, uniform
from torch import Tensor

import dyart

UNIT_BOX = (0.0, 1.0)


@pytest.mark.parametrize("bounds", [None, UNIT_BOX], ids=["no box", "box"])
@pytest.mark.parametrize("alpha", [3.0, 0.0])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_linear_classifiers_have_the_value_and_gradient_of_the_closed_form(norm, boundary, alpha, bounds):
    model = linear()
    # Half of the coordinates at a bound: in the box the closed form differs from the one without.
    x = (2 * uniform(16, 6, seed=1, dtype=torch.float64) - 0.5).clamp(0, 1)
    found = search(model, x, norm=norm, boundary=boundary, bounds=bounds, steps=200)
    assert found.found.sum() >= 10
    margins = closed_form_margins(model, found)
    cost = dyart.ExponentialCost(alpha, r0=float(margins.detach().median()) + 1e-6)
    wanted = cost(margins).sum() / len(x)
    got = dyart.margin_loss(model, found, cost)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-8)
    assert_all_close(gradients_of(got, model), gradients_of(wanted, model))


@pytest.mark.parametrize("norm", NORMS)
def test_coordinates_that_leave_a_bound_are_not_pinned(norm):
    # So close to the boundary that no coordinate gets clear of the bound it starts at: the direction decides.
    model = linear()
    x = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    with torch.no_grad():
        model.bias[1] += (model(x)[0, 0] - model(x)[0, 1]) - 1e-8
    found = search(model, x, torch.tensor([0]), norm=norm, bounds=UNIT_BOX, tol=1e-16)
    assert found.found.all()
    assert found.margin < 1e-7
    normal = (model.weight[0] - model.weight[1]).detach()
    leaving = torch.where(x[0] == 0, normal < 0, normal > 0)
    assert 0 < leaving.sum() < 6
    length = torch.linalg.vector_norm(normal[leaving], ord=1 if norm == "linf" else 2)
    loss = dyart.margin_loss(model, found, lambda margin: -margin)
    by_weight, by_bias = gradients_of(loss, model)
    torch.testing.assert_close(by_bias, torch.stack([-1 / length, 1 / length]), rtol=1e-5, atol=0)
    torch.testing.assert_close(by_weight, torch.stack([-x[0] / length, x[0] / length]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_linear_classifiers_of_many_classes_follow_the_closest_rival(norm):
    model, x = linear(classes=5), uniform(16, 6, seed=2, dtype=torch.float64)
    found = search(model, x, norm=norm, restarts=4)
    logits = model(x)
    margins = []
    for i, y in enumerate(found.labels.tolist()):
        rivals = [k for k in range(5) if k != y]
        apart = torch.linalg.vector_norm(model.weight[y] - model.weight[rivals], ord=1 if norm == "linf" else 2, dim=1)
        margins.append(((logits[i, y] - logits[i, rivals]) / apart).min())
    margins = torch.stack(margins)
    cost = dyart.ExponentialCost(2.0, 10.0)
    got, wanted = dyart.margin_loss(model, found, cost), cost(margins).mean()
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-8)
    assert_all_close(gradients_of(got, model), gradients_of(wanted, model))


def test_gradient_does_not_depend_on_how_the_loss_is_scaled_afterwards():
    # The loss is a number with a hand-made gradient: the chain rule through it must still hold.
    model = linear()
    found = search(model, uniform(8, 6, dtype=torch.float64))
    cost = dyart.ExponentialCost(3.0, 1.0)
    plain = dyart.margin_loss(model, found, cost)
    squared = dyart.margin_loss(model, found, cost).square()
    wanted = [2 * plain.detach() * gradient for gradient in gradients_of(plain, model)]
    assert_all_close(gradients_of(squared, model), wanted, 1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_reductions(norm):
    model, found = with_unfound_rows(norm)
    cost = dyart.ExponentialCost(3.0, 1.0)
    per_row = dyart.margin_loss(model, found, cost, reduction="none")
    assert per_row.shape == (10,)
    torch.testing.assert_close(per_row[found.found].detach(), cost(found.margin[found.found]), rtol=1e-12, atol=0)
    total = dyart.margin_loss(model, found, cost, reduction="sum")
    mean = dyart.margin_loss(model, found, cost, reduction="mean")
    torch.testing.assert_close(total, per_row.sum())
    # Over all ten rows, not over the five that were found.
    torch.testing.assert_close(mean, per_row.sum() / 10)
    torch.testing.assert_close(mean, dyart.margin_loss(model, found, cost))
    wanted = gradients_of(per_row.sum() / 10, model)
    assert_all_close(gradients_of(mean, model), wanted, 1e-9)
    assert_all_close([gradient / 10 for gradient in gradients_of(total, model)], wanted, 1e-9)


def test_a_bad_reduction_raises():
    model, found = with_unfound_rows()
    with pytest.raises(ValueError, match=r"reduction.*'median'"):
        dyart.margin_loss(model, found, dyart.ExponentialCost(), reduction="median")


@pytest.mark.parametrize("norm", NORMS)
def test_a_plain_function_as_cost(norm):
    model, x = linear(), uniform(12, 6, seed=5, dtype=torch.float64)
    found = search(model, x, norm=norm)
    margins = closed_form_margins(model, found)
    reach = float(margins.detach().median())

    def squared_hinge(margin: Tensor) -> Tensor:
        return (reach - margin).clamp(min=0).square()

    got, wanted = dyart.margin_loss(model, found, squared_hinge), squared_hinge(margins).mean()
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-8)
    assert_all_close(gradients_of(got, model), gradients_of(wanted, model))


def test_a_cost_may_bring_its_own_derivative():
    class Doubled:
        """Twice the true slope, so that it shows whose derivative was used."""

        def __call__(self, margin: Tensor) -> Tensor:
            return -margin

        def derivative(self, margin: Tensor) -> Tensor:
            return torch.full_like(margin, -2.0)

    model = linear()
    found = search(model, uniform(6, 6, dtype=torch.float64))
    own = gradients_of(dyart.margin_loss(model, found, Doubled()), model)
    by_autograd = gradients_of(dyart.margin_loss(model, found, lambda margin: -margin), model)
    assert_all_close(own, [2 * gradient for gradient in by_autograd], 1e-9)


def test_a_cost_that_is_infinite_at_zero_does_not_reach_rows_without_a_margin():
    # Rows without a margin stand at zero inside: 1/R and its derivative are infinite there.
    model, found = with_unfound_rows()
    per_row = dyart.margin_loss(model, found, lambda margin: 1 / margin, reduction="none")
    assert (per_row[1::2] == 0).all()
    torch.testing.assert_close(per_row[::2].detach(), 1 / found.margin[::2])
    assert all(gradient.isfinite().all() for gradient in gradients_of(per_row.sum(), model))


def test_a_constant_cost_has_no_gradient():
    model, found = with_unfound_rows()
    loss = dyart.margin_loss(model, found, lambda margin: torch.full_like(margin, 0.5))
    torch.testing.assert_close(loss.detach(), torch.tensor(0.25, dtype=torch.float64))
    assert all((gradient == 0).all() for gradient in gradients_of(loss, model))


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("norm", NORMS)
def test_without_the_box_it_is_the_formula_of_the_paper_written_out(norm, boundary):
    model, cost = smooth_network(), dyart.ExponentialCost(3.0, 0.4)
    x = (2 * uniform(16, 12, seed=4, dtype=torch.float64) - 0.5).clamp(0, 1)
    found = search(model, x, norm=norm, boundary=boundary, bounds=UNIT_BOX, beta=1.0)
    wanted = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for i in found.found.nonzero()[:, 0].tolist():
        point = found.points[i : i + 1].clone().requires_grad_()
        z, y = model(point)[0], int(found.labels[i])
        rivals = torch.cat([z[:y], z[y + 1 :]])
        phi = z[y] - (rivals.max() if boundary == "exact" else torch.logsumexp(rivals, dim=0))
        by_input, *by_parameter = torch.autograd.grad(phi, [point, *model.parameters()])
        dual = by_input.abs().sum() if norm == "linf" else by_input.square().sum().sqrt()
        margin = float((found.points[i] - x[i]).abs().max() if norm == "linf" else (found.points[i] - x[i]).norm())
        weight = -torch.exp(torch.tensor(-3.0 * margin)) / dual if margin < 0.4 else 0.0
        wanted = [total + weight * gradient / len(x) for total, gradient in zip(wanted, by_parameter, strict=True)]
    got = gradients_of(dyart.margin_loss(model, found, cost, box_aware=False), model)
    assert_all_close(got, wanted)
    # And it is not what the default gives: many coordinates are pinned here.
    boxed = gradients_of(dyart.margin_loss(model, found, cost), model)
    assert any((one - other).abs().max() > 0.02 * other.abs().max() for one, other in zip(got, boxed, strict=True))


def test_gradient_flows_to_the_parameters_alone():
    model = smooth_network()
    x = uniform(8, 12, dtype=torch.float64).requires_grad_()
    found = search(model, x)
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        assert not (isinstance(value, Tensor) and value.requires_grad), field.name
    model[0].weight.requires_grad_(False)
    dyart.margin_loss(model, found, dyart.ExponentialCost(3.0, 10.0)).backward()
    assert x.grad is None
    assert model[0].weight.grad is None
    assert (model[0].bias.grad != 0).any()
    assert (model[4].weight.grad != 0).any()


def test_the_search_leaves_no_gradients_behind():
    model = smooth_network()
    search(model, uniform(8, 12, dtype=torch.float64))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_bfloat16_autocast_gives_a_float32_loss(boundary):
    model, x = small_resnet("group"), uniform(8, 3, 8, 8)
    found = dyart.closest_boundary_points(model, x, boundary=boundary, steps=15)
    cost = dyart.ExponentialCost(3.0, 1.0)
    exact = torch.cat([g.flatten() for g in gradients_of(dyart.margin_loss(model, found, cost), model)])
    seen = []
    model.head.register_forward_hook(lambda *args: seen.append(args[-1].dtype))
    with plain_kernels():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = dyart.margin_loss(model, found, cost)
        rough = torch.cat([gradient.flatten() for gradient in gradients_of(loss, model)])
    assert seen == [torch.bfloat16]
    assert loss.dtype == torch.float32
    # The value comes from the margins, not from the rounded logits.
    torch.testing.assert_close(loss.detach(), cost(found.margin[found.found]).sum() / 8)
    assert torch.cosine_similarity(rough, exact, dim=0) > 0.98
    assert 0.9 < rough.norm() / exact.norm() < 1.1


def test_the_batch_norm_mode_is_the_models_own():
    model = small_resnet("batch")
    found = dyart.closest_boundary_points(model, uniform(8, 3, 8, 8), steps=15)
    cost = dyart.ExponentialCost(3.0, 1.0)
    before = model.norm.running_mean.clone()
    in_eval = gradients_of(dyart.margin_loss(model, found, cost), model)
    assert torch.equal(before, model.norm.running_mean)
    model.train()
    in_train = gradients_of(dyart.margin_loss(model, found, cost), model)
    assert model.training
    assert not torch.equal(before, model.norm.running_mean)
    assert any(
        (one - other).abs().max() > 0.1 * other.abs().max() for one, other in zip(in_train, in_eval, strict=True)
    )


def test_a_callable_with_logits_in_its_output():
    model, x = linear(), uniform(6, 6, dtype=torch.float64)

    def wrapped(inputs: Tensor) -> types.SimpleNamespace:
        return types.SimpleNamespace(logits=model(inputs))

    cost = dyart.ExponentialCost(3.0, 1.0)
    got = dyart.margin_loss(wrapped, search(wrapped, x), cost)
    wanted = dyart.margin_loss(model, search(model, x), cost)
    assert_all_close(gradients_of(got, model), gradients_of(wanted, model), 1e-9)


def test_a_mask_is_one_boolean_for_each_row():
    model = linear()
    found = search(model, uniform(6, 6, seed=1, dtype=torch.float64))
    cost = dyart.ExponentialCost(3.0, 1.0)
    for mask in (torch.tensor([0, 2]), found.found.double(), torch.ones(1, dtype=torch.bool)):
        with pytest.raises(ValueError, match="boolean with one entry for each of the 6 rows"):
            dyart.margin_loss(model, found, cost, mask=mask)
