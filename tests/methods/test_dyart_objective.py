"""The DyART objective, against its definition written out example by example: values, rows, metrics, costs."""

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from objective_cases import EXAMPLES, assert_all_close, gradients_of, images, labels_of, network
from torch import Tensor, nn

import dyart


def soft_margin(z: Tensor, y: int, beta: float) -> Tensor:
    """Phi of one row of logits, as the paper's equation 8 has it."""
    rivals = torch.cat([z[:y], z[y + 1 :]])
    return z[y] - torch.logsumexp(beta * rivals, dim=0) / beta


class Naive:
    """The objective of one batch in a loop over examples: one search, one cross-entropy, one margin term each."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        labels: Tensor,
        *,
        alpha: float = 3.0,
        r0: float,
        lam: float,
        beta: float = 5.0,
        steps: int = 10,
        norm: str = "linf",
        keep: str = "conditions",
        box_aware: bool = True,
        cost: Callable[[float], tuple[float, float]] | None = None,
    ) -> None:
        h = cost or (lambda margin: (math.exp(-alpha * margin) / alpha, -math.exp(-alpha * margin)))
        n, parameters = len(x), list(model.parameters())
        self.loss, self.used = 0.0, []
        self.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        for i in range(n):
            one, label, y = x[i : i + 1], labels[i : i + 1], int(labels[i])
            z = model(one)
            clean = F.cross_entropy(z, label)
            self._add(float(clean.detach()) / n, torch.autograd.grad(clean, parameters, retain_graph=True), 1 / n)
            if soft_margin(z[0], y, beta) <= 0:
                continue
            found = dyart.DyART(r0=r0, beta=beta, steps=steps, norm=norm).search(model, one, label)
            if not bool(found.found):
                continue
            point = found.points.clone().requires_grad_()
            phi = soft_margin(model(point)[0], y, beta)
            by_input, *by_parameter = torch.autograd.grad(phi, [point, *parameters])
            g, p = by_input.flatten(), point.detach().flatten()
            d = p - one.flatten()
            pinned = ((p < 1e-6) & (g > 0)) | ((p > 1 - 1e-6) & (g < 0))
            margin = float(d.abs().max() if norm == "linf" else d.norm())
            if margin >= r0 or not kept(keep, d, g, ~pinned, float(phi.detach()), norm):
                continue
            self.used.append(i)
            height, slope = h(margin)
            weight = lam / n * slope / steepness(d, g, ~pinned if box_aware else torch.ones_like(pinned), norm)
            self._add(lam / n * height, by_parameter, weight)

    def _add(self, value: float, gradients: tuple[Tensor, ...] | list[Tensor], weight: float) -> None:
        self.loss += value
        self.gradients = [total + weight * g for total, g in zip(self.gradients, gradients, strict=True)]


def kept(keep: str, d: Tensor, g: Tensor, free: Tensor, value: float, norm: str) -> bool:
    """Whether a point takes part, by the definitions in the paper's appendix B and in the design."""
    d, g = d[free], g[free]
    if keep == "found":
        return True
    if abs(value) > 0.1:
        return False
    if norm == "linf":
        alignment = float(-(g @ d) / (g.abs().sum() * d.abs().max()))
        at_full = d.abs() >= 0.8 * d.abs().max()
        against = ((g * d)[at_full] <= 0).double().mean()
    else:
        alignment = float(-(g @ d) / (g.norm() * d.norm()))
    if keep == "optimal":
        return alignment > 0.9
    return bool(against > 0.9) if norm == "linf" else alignment > 0.8


def steepness(d: Tensor, g: Tensor, free: Tensor, norm: str) -> float:
    """The multiplier lambda of the distance problem."""
    if norm == "linf":
        return float(g[free].abs().sum())
    return float(g[free].norm() * d.norm() / d[free].norm())


def assert_equals_naive(model: nn.Module, naive: Naive, loss: Tensor, metrics: dict[str, Tensor]) -> None:
    assert len(naive.used) >= 2  # or the margin term would not be tested
    torch.testing.assert_close(loss.detach().double(), torch.tensor(naive.loss).double(), rtol=1e-5, atol=0)
    assert_all_close(gradients_of(loss, model), naive.gradients, 1e-5)
    torch.testing.assert_close(metrics["used"].double(), torch.tensor(len(naive.used) / EXAMPLES).double())


# Value and gradient


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("normalization", ["group", "batch"])
def test_loss_and_gradient_are_those_of_the_sum_over_examples(normalization, norm, joint):
    model, x = network(normalization), images()
    labels = labels_of(model, x)
    settings = {"r0": 0.02 if norm == "linf" else 0.2, "lam": 50.0, "norm": norm}
    loss, metrics = dyart.DyART(joint=joint, **settings)(model, x, labels)
    assert_equals_naive(model, Naive(model, x, labels, **settings), loss, metrics)


@pytest.mark.parametrize("alpha", [0.5, 30.0])
def test_alpha_is_the_weight_of_small_margins(alpha):
    model, x = network("group"), images()
    labels = labels_of(model, x)
    settings = {"alpha": alpha, "r0": 0.05, "lam": 20.0}
    loss, metrics = dyart.DyART(**settings)(model, x, labels)
    assert_equals_naive(model, Naive(model, x, labels, **settings), loss, metrics)


def test_beta_is_that_of_the_soft_boundary():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    settings = {"beta": 1.0, "r0": 0.05, "lam": 50.0}
    loss, metrics = dyart.DyART(**settings)(model, x, labels)
    assert_equals_naive(model, Naive(model, x, labels, **settings), loss, metrics)
    other, _ = dyart.DyART(r0=0.05, lam=50.0)(model, x, labels)
    assert abs(float(loss.detach() - other.detach())) > 1e-3


def test_the_formula_of_the_paper_without_the_box():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    settings = {"box_aware": False, "r0": 0.05, "lam": 50.0}
    loss, metrics = dyart.DyART(**settings)(model, x, labels)
    assert_equals_naive(model, Naive(model, x, labels, **settings), loss, metrics)
    boxed = gradients_of(dyart.DyART(r0=0.05, lam=50.0)(model, x, labels)[0], model)
    with pytest.raises(AssertionError):
        assert_all_close(gradients_of(dyart.DyART(**settings)(model, x, labels)[0], model), boxed, 1e-3)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("keep", ["conditions", "optimal", "found"])
def test_which_points_take_part(keep, norm):
    # Few steps: some points are not good, and the three rules disagree on which ones are.
    model, x = network("batch"), images()
    labels = labels_of(model, x)
    settings = {"r0": 1.0, "lam": 50.0, "steps": 3, "keep": keep, "norm": norm}
    loss, metrics = dyart.DyART(**settings)(model, x, labels)
    assert_equals_naive(model, Naive(model, x, labels, **settings), loss, metrics)


def test_the_rules_for_points_differ():
    # Or the test above could not tell them apart.
    model, x = network("batch"), images()
    labels = labels_of(model, x)
    disagreements = 0
    for norm in ("linf", "l2"):
        found = dyart.DyART(r0=1.0, steps=3, norm=norm).search(model, x, labels)
        by_conditions = found.conditions.a & found.conditions.b
        assert by_conditions.sum() < found.found.sum()
        assert found.optimal.sum() < found.found.sum()
        disagreements += int((by_conditions != found.optimal).sum())
    assert disagreements > 0


def test_the_points_lie_across_the_soft_boundary_inside_the_box():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    found = dyart.DyART(r0=0.05).search(model, x, labels)
    assert found.found.sum() >= EXAMPLES // 2
    assert not (found.found & ~found.inside).any()
    rows = found.found
    phi = dyart.soft_logit_margin(model(found.points), labels).detach()
    assert (phi[rows] < 0).all()
    torch.testing.assert_close(phi[rows], found.value[rows])
    assert ((found.points >= 0) & (found.points <= 1)).all()
    distance = (found.points - x).flatten(1).abs().amax(dim=1)
    torch.testing.assert_close(distance[rows], found.margin[rows])
    assert torch.equal(found.points[~rows], x[~rows])


def test_the_exact_boundary():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    objective = dyart.DyART(r0=0.05, lam=50.0, boundary="exact", keep="found")
    loss, metrics = objective(model, x, labels)
    found = objective.search(model, x, labels)
    phi = dyart.logit_margin(model(x), labels)
    assert torch.equal(found.inside, phi > 0)
    cost = dyart.ExponentialCost(3.0, 0.05)
    clean = F.cross_entropy(model(x), labels)
    wanted = clean + 50.0 * dyart.margin_loss(model, found, cost)
    torch.testing.assert_close(loss.double(), wanted.double(), rtol=1e-5, atol=0)
    assert_all_close(gradients_of(loss, model), gradients_of(wanted, model), 1e-5)
    assert metrics["used"] > 0


@pytest.mark.parametrize("lam", [0.0, 7.0])
def test_lam_scales_the_margin_term_alone(lam):
    model, x = network("group"), images()
    labels = labels_of(model, x)
    loss, metrics = dyart.DyART(r0=0.05, lam=lam)(model, x, labels)
    assert metrics["margin_loss"] > 0
    torch.testing.assert_close(loss.detach(), metrics["clean_loss"] + lam * metrics["margin_loss"])
    if lam == 0:
        clean = F.cross_entropy(model(x), labels)
        assert_all_close(gradients_of(loss, model), gradients_of(clean, model), 1e-5)


def test_double_precision_is_kept():
    # "Float32 or better": a float64 model must not lose half of its digits in the clean term.
    model, x = network("group"), images()
    labels = labels_of(model, x)
    loss, _ = dyart.DyART(r0=1e-9)(model, x, labels)
    clean = F.cross_entropy(model(x), labels)
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, clean, rtol=1e-12, atol=0)


# Rows that get the clean term alone


def test_a_length_in_pixels_is_not_taken_for_one_in_the_box():
    with pytest.raises(ValueError, match=r"r0 must be a positive, finite number, got '16/255'"):
        dyart.DyART(r0="16/255")
    x = torch.rand(4, 6)
    with pytest.raises(ValueError, match=r"r0 16 is larger than the box of all inputs \(1\): did you mean 16/255\?"):
        dyart.DyART(r0=16)(nn.Linear(6, 3), x, torch.zeros(4, dtype=torch.long))


def test_misclassified_rows_get_the_clean_term_alone():
    model, x = network("group"), images()
    wrong = (model(x).argmax(dim=1) + 1) % 4
    loss, metrics = dyart.DyART(r0=1.0, keep="found")(model, x, wrong)
    clean = F.cross_entropy(model(x), wrong)
    assert metrics["margin_loss"] == 0
    assert metrics["used"] == metrics["found"] == metrics["inside"] == metrics["accuracy"] == 0
    torch.testing.assert_close(loss.double(), clean, rtol=1e-6, atol=0)
    assert_all_close(gradients_of(loss, model), gradients_of(clean, model), 1e-5)
    # Without any margin there is no quantile; the loss must not inherit the nan.
    assert metrics["margin_q50"].isnan()
    assert metrics["phi_shift"] == 0


def test_rows_outside_the_soft_boundary_have_no_margin_though_classified_correctly():
    model, x = network("group"), images()
    labels = model(x).argmax(dim=1)
    beta = 0.3  # so soft that Phi is negative for many examples with positive phi
    found = dyart.DyART(r0=1.0, beta=beta).search(model, x, labels)
    phi = dyart.soft_logit_margin(model(x), labels, beta=beta)
    outside = (phi < 0) & found.correct
    assert 0 < outside.sum() < EXAMPLES
    assert not found.found[outside].any()
    assert found.found[~outside].all()
    assert found.correct.all()


@pytest.mark.parametrize("keep", ["conditions", "found"])
def test_rows_beyond_r0_get_the_clean_term_alone(keep):
    model, x = network("group"), images()
    labels = labels_of(model, x)
    loss, metrics = dyart.DyART(r0=1e-9, keep=keep)(model, x, labels)
    clean = F.cross_entropy(model(x), labels)
    assert metrics["margin_loss"] == 0
    assert metrics["used"] == 0
    assert metrics["found"] > 0.5
    torch.testing.assert_close(loss.double(), clean, rtol=1e-6, atol=0)
    assert_all_close(gradients_of(loss, model), gradients_of(clean, model), 1e-5)


# Metrics


KEYS = {
    "clean_loss",
    "margin_loss",
    "accuracy",
    "inside",
    "found",
    "optimal",
    "used",
    "margin_q10",
    "margin_q50",
    "margin_q90",
    "phi_shift",
}


@pytest.mark.parametrize("training", [False, True])
def test_metrics_are_what_they_say(training):
    model, x = network("batch").train(training), images()
    labels = labels_of(model, x)
    objective = dyart.DyART(r0=0.02, lam=50.0)
    reference = copy.deepcopy(model)  # the forward pass in training mode moves the running statistics
    found = objective.search(model, x, labels)
    loss, metrics = objective(model, x, labels)
    assert set(metrics) == KEYS
    for name, value in metrics.items():
        assert value.shape == (), name
        assert not value.requires_grad, name
    phi = dyart.soft_logit_margin(copy.deepcopy(reference).eval()(x), labels)
    both = reference(torch.cat([found.points, x])).detach()
    at_points, at_inputs = both[:EXAMPLES], both[EXAMPLES:]
    used = found.conditions.a & found.conditions.b & (found.margin < 0.02)
    assert 0 < used.sum() < found.found.sum()
    margins = found.margin[found.found].sort().values
    wanted = {
        "clean_loss": F.cross_entropy(at_inputs, labels),
        "margin_loss": (torch.exp(-3 * found.margin[used]) / 3).sum() / EXAMPLES,
        "accuracy": (at_inputs.argmax(dim=1) == labels).double().mean(),
        "inside": (phi > 0).double().mean(),
        "found": found.found.double().mean(),
        "optimal": found.optimal.double().mean(),
        "used": used.double().mean(),
        "margin_q10": margins.quantile(0.1),
        "margin_q50": margins.quantile(0.5),
        "margin_q90": margins.quantile(0.9),
        "phi_shift": (dyart.soft_logit_margin(at_points, labels) - found.value)[used].mean(),
    }
    for name, value in wanted.items():
        torch.testing.assert_close(metrics[name].double(), value.detach(), rtol=1e-5, atol=1e-6, msg=name)
    torch.testing.assert_close(loss.detach(), metrics["clean_loss"] + 50.0 * metrics["margin_loss"])


def test_phi_shift_shows_that_batch_norm_has_another_boundary_in_training():
    model, x = network("batch"), images()
    labels = labels_of(model, x)
    in_eval = dyart.DyART(r0=0.02)(model, x, labels)[1]["phi_shift"]
    in_training = dyart.DyART(r0=0.02)(model.train(), x, labels)[1]["phi_shift"]
    assert abs(in_eval) < 1e-6
    assert abs(in_training) > 0.1
    group = network("group").train()
    assert abs(dyart.DyART(r0=0.02)(group, x, labels_of(group, x))[1]["phi_shift"]) < 1e-6


# Costs of one's own


def squared_hinge(margin: Tensor) -> Tensor:
    return (0.03 - margin).clamp(min=0).square() * 100


def test_a_cost_of_ones_own():
    model, x = network("group"), images()
    labels = labels_of(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective = dyart.DyART(r0=0.015, lam=50.0, cost=squared_hinge)

    def by_hand(margin: float) -> tuple[float, float]:
        left = max(0.03 - margin, 0.0)
        return 100 * left**2, -200 * left

    loss, metrics = objective(model, x, labels)
    # The threshold is still r0, although this cost is positive beyond it.
    naive = Naive(model, x, labels, r0=0.015, lam=50.0, cost=by_hand)
    beyond = dyart.DyART(r0=0.03).search(model, x, labels).margin.gt(0.015).sum()
    assert beyond > 0
    assert_equals_naive(model, naive, loss, metrics)


@pytest.mark.parametrize(
    ("cost", "message"),
    [(lambda margin: margin, "increases with the margin"), (lambda margin: -margin.square(), "not convex")],
)
def test_a_bad_cost_warns(cost, message):
    with pytest.warns(UserWarning, match=message):
        dyart.DyART(cost=cost)
