"""What counts as an adversarial example: verified on the user's model, at its own distance; and what is left alone."""

import dataclasses

import numpy as np
import pytest
import torch
from evaluate_cases import Mlp, examples, linear, radii_between, short, true_margins
from torch import nn

import dyart
from dyart.attacks.radius import Radius
from dyart.boundary.search import closest_boundary_points
from dyart.evaluation import runner as runner_module
from dyart.evaluation import tiers
from dyart.evaluation.preflight import PreflightError
from dyart.evaluation.verdicts import Status, slack
from dyart.evaluation.verify import found_distance
from dyart.evaluation.views import Count, View

RADII = [0.02, 0.05, 0.1]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    short(monkeypatch)


def with_points(monkeypatch, make):
    """Evaluate a linear model under an attack that returns what ``make`` does, at each of three radii."""
    model = linear(2)
    inputs, labels = examples(model, wrong=0)
    margins = true_margins(model, inputs, labels, "linf")
    direction = torch.sign(model.weight[1 - labels] - model.weight[labels]).detach()
    monkeypatch.setattr(
        runner_module,
        "attacked",
        lambda name, view, x, y, radius, **_: make(x, y, float(radius[0]), direction, margins),
    )
    return dyart.evaluate(model, inputs, labels, RADII, "pgd", batch_size=64), margins


def across(x, direction, distance):
    return x + torch.as_tensor(distance, dtype=x.dtype)[:, None] * direction


def test_points_beyond_the_radius_do_not_count_at_it_but_at_larger_ones(monkeypatch):
    # Whatever the radius, the point lies just across the boundary.
    result, margins = with_points(monkeypatch, lambda x, y, r, d, m: across(x, d[: len(x)], m[: len(x)] * 1.001 + 1e-5))
    assert list(result.robust_accuracy.values()) == [float((margins * 1.001 + 1e-5 > r).mean()) for r in RADII]
    status = result.verdicts.status["pgd"]
    assert np.array_equal(status[:, 0] == Status.BROKEN, margins * 1.001 + 1e-5 <= RADII[0])


def test_points_that_do_not_fool_the_model_do_not_count(monkeypatch):
    result, _ = with_points(
        monkeypatch, lambda x, y, r, d, m: across(x, d[: len(x)], np.minimum(m[: len(x)], r) * 0.99)
    )
    assert list(result.robust_accuracy.values()) == [1.0, 1.0, 1.0]


def test_points_outside_the_box_or_not_finite_do_not_count(monkeypatch):
    def outside(x, y, r, d, m):
        points = x + 0.9 * d[: len(x)]
        return torch.where(points < 0, torch.nan, points)

    result, _ = with_points(monkeypatch, outside)
    assert list(result.robust_accuracy.values()) == [1.0, 1.0, 1.0]


class Marked(torch.autograd.Function):
    """The identity; gradients of some rows are NaN."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(rows)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (rows,) = ctx.saved_tensors
        return torch.where(rows, torch.nan, gradient), None


def breaking(layer, inputs, what, share):
    """Return a linear model whose outputs, or whose gradients, are NaN closer to the boundary than all inputs."""
    with torch.no_grad():
        width = share * float((layer(inputs)[:, 0] - layer(inputs)[:, 1]).abs().min())

    def model(x):
        logits = layer(x)
        near = (logits[:, :1] - logits[:, 1:]).abs() < width
        return torch.where(near, torch.nan, logits) if what == "outputs" else Marked.apply(logits, near)

    return model


@pytest.mark.parametrize(("what", "share"), [("outputs", 0.9), ("gradients", 0.5)])
def test_a_model_with_nan_near_the_boundary_does_not_resist_by_that(what, share):
    layer = linear(2)
    inputs, labels = examples(layer, wrong=0)
    radii = radii_between(true_margins(layer, inputs, labels, "linf"))
    plain = dyart.evaluate(layer, inputs, labels, radii, "pgd")
    broken = dyart.evaluate(breaking(layer, inputs, what, share), inputs, labels, radii, "pgd")
    assert broken.clean_accuracy == 1
    assert plain.robust_accuracy[radii[-1]] < 0.5
    for radius in radii:
        assert broken.robust_accuracy[radius] <= plain.robust_accuracy[radius], (broken, plain)


def test_examples_on_a_tie_are_broken_at_every_radius():
    layer = linear(3)
    with torch.no_grad():
        layer.weight[1], layer.bias[1] = layer.weight[0], layer.bias[0]
    inputs = torch.rand(60, 8, generator=torch.Generator().manual_seed(1))
    labels = layer(inputs).argmax(dim=1)
    tied = (labels == 0).numpy()
    assert 0 < tied.sum() < 60
    result = dyart.evaluate(layer, inputs, labels, [1e-3], "margins")
    assert not result.resisting[1e-3][tied].any()
    assert (result.per_example["margin"][tied] == 0).all()


def test_one_large_feature_does_not_widen_the_radii_and_is_mentioned():
    layer = linear(2, features=8)
    inputs, labels = examples(layer, wrong=0)
    margins = true_margins(layer, inputs, labels, "linf")
    radii = radii_between(margins)
    wide = torch.cat([inputs, torch.full((len(inputs), 1), 1.6e9)], dim=1)
    result = dyart.evaluate(lambda x: layer(x[:, :8]), wide, labels, radii, "margins", bounds=None)
    for radius in radii:
        assert result.robust_accuracy[radius] == pytest.approx(float((margins > radius).mean()), abs=0.02)
    assert any("as large as 1.6e+09" in note and "float64" in note for note in result.notes)
    assert not dyart.evaluate(layer, inputs, labels, radii, "margins").notes


def test_a_point_counts_at_every_radius_from_its_own_distance_on(monkeypatch):
    calls = []

    def once(x, y, r, d, m):
        calls.append(len(x))
        return across(x, d[: len(x)], m[: len(x)] * 1.001 + 1e-5) if len(calls) == 1 else x

    # All are found at the smallest radius: those that lie within the others are not attacked again.
    result, margins = with_points(monkeypatch, once)
    left = [int((margins * 1.001 + 1e-5 > r).sum()) for r in RADII]
    assert list(result.robust_accuracy.values()) == [count / 30 for count in left]
    assert calls == [30, *left[1:]]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_radius_has_room_for_rounding_and_no_more(norm):
    features, radius = 3072, 8 / 255
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, features, generator=generator)
    step = torch.randn(200, features, generator=generator)
    order = {"linf": torch.inf, "l2": 2, "l1": 1}[norm]
    step *= radius / torch.linalg.vector_norm(step, ord=order, dim=1, keepdim=True)
    rounded = torch.linalg.vector_norm((x + step).double() - x.double(), ord=order, dim=1).numpy()
    room = slack([radius], norm, features)[0]
    assert (rounded > radius).any(), "rounding does push points beyond the radius"
    assert (rounded <= radius + room).all()
    assert room < {"linf": 1e-4, "l2": 1e-3, "l1": 2e-2}[norm] * radius


class Rough(Mlp):
    """Rounds to 16 bit where autocast asks for it, by itself: not every processor can."""

    def forward(self, x):
        if not torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.bfloat16().float()).bfloat16()


def test_attacks_in_16_bit_are_verified_in_32_and_tried_again():
    model = Rough()
    inputs, labels = examples(model)
    exact = dyart.evaluate(model, inputs, labels, RADII, "apgd", precision="ieee")
    rough = dyart.evaluate(model, inputs, labels, RADII, "apgd", precision="bf16")
    assert rough.view["precision"] == "bf16"
    assert exact.view["precision"] == "ieee"
    # Both end on the same model: what differs by 16 bit is searched again in 32.
    assert (
        np.abs(np.subtract(list(exact.robust_accuracy.values()), list(rough.robust_accuracy.values()))).max() <= 1 / 30
    )
    both = np.isfinite(exact.verdicts.margin) & np.isfinite(rough.verdicts.margin)
    assert both.sum() >= 26
    assert np.median(rough.verdicts.margin[both] / exact.verdicts.margin[both]) == pytest.approx(1, abs=0.01)


def test_success_on_a_view_that_the_model_does_not_confirm_is_searched_on_the_model(monkeypatch):
    model = linear(2)
    inputs, labels = examples(model, wrong=0)
    margins = true_margins(model, inputs, labels, "linf")
    direction = torch.sign(model.weight[1 - labels] - model.weight[labels]).detach()
    seen = []

    def attacked(name, view, x, y, radius, **_):
        seen.append((view.precision, len(x)))
        # Half way to the boundary, where the view below is fooled already; all the way on the model itself.
        share = 0.5 if view.precision == "bf16" else 1.001
        return across(x, direction[: len(x)], np.minimum(margins[: len(x)] * share + 1e-5, float(radius[0])))

    class Shifted(nn.Module):
        def forward(self, x):
            logits = nn.functional.linear(x, model.weight, model.bias)
            if torch.is_autocast_enabled("cpu"):  # the view: the other class seems always larger
                return -logits
            return logits

    monkeypatch.setattr(runner_module, "attacked", attacked)
    result = dyart.evaluate(Shifted(), inputs, labels, [1 / 3], "pgd", precision="bf16", batch_size=64, preflight=False)
    assert seen == [("bf16", 30), ("ieee", 30)]
    assert list(result.robust_accuracy.values()) == [0.0]


def test_points_of_a_view_that_come_to_nothing_are_searched_for_on_the_model(monkeypatch):
    model = linear(2)
    inputs, labels = examples(model, wrong=0)
    calls = []

    def search(view, x, y, *, start=None, **options):
        found = closest_boundary_points(view, x, y, start=start, **options)
        calls.append((view.precision, len(x), start is not None))
        # From where the view led to, every other example comes to nothing.
        return (
            found if start is None else dataclasses.replace(found, found=found.found & (torch.arange(len(x)) % 2 > 0))
        )

    monkeypatch.setattr(runner_module, "closest_boundary_points", search)
    result = dyart.evaluate(model, inputs, labels, [1 / 3], "margins", precision="bf16", preflight=False)
    assert calls == [("bf16", 30, False), ("ieee", 30, True), ("ieee", 15, False)]
    np.testing.assert_allclose(result.verdicts.margin, true_margins(model, inputs, labels, "linf"), rtol=0.02)


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    model(torch.rand(64, 8))
    model.train()
    model[3].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = torch.rand(12, 8)
    labels = model.eval()(inputs).argmax(dim=1)
    model.train()
    model[3].eval()
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    result = dyart.evaluate(model, inputs, labels, RADII, "apgd")
    assert result.clean_accuracy == 1.0, "evaluated in eval mode"
    assert any("train" in finding.message for finding in result.findings)
    assert [module.training for module in model] == [True, True, True, False, True]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[4].weight.grad is None
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def test_the_same_seed_gives_the_same_verdicts_whatever_was_drawn_before():
    model = Mlp()
    inputs, labels = examples(model)
    first = dyart.evaluate(model, inputs, labels, RADII, "autoattack")
    torch.rand(17)
    second = dyart.evaluate(model, inputs, labels, RADII, "autoattack")
    for name, distances in first.verdicts.distance.items():
        assert np.array_equal(distances, second.verdicts.distance[name])


def test_nothing_is_printed(capfd, caplog):
    model = Mlp()
    inputs, labels = examples(model)
    dyart.evaluate(model, inputs, labels, RADII, "autoattack")
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_a_fatal_finding_stops_before_any_attack():
    model = linear(4)
    inputs, labels = examples(model)
    with pytest.raises(PreflightError):
        dyart.evaluate(model, 255 * inputs, labels, RADII, "pgd")


def test_examples_outside_the_box_stop_an_evaluation_without_preflight():
    model = linear(4)
    inputs, labels = examples(model)
    inputs[7, 3] = 1.5
    with pytest.raises(ValueError, match=r"1\.5"):
        dyart.evaluate(model, inputs, labels, RADII, "pgd", preflight=False)


def test_a_model_that_cannot_be_differentiated_says_so():
    layer = linear(4)
    inputs, labels = examples(layer)
    with pytest.raises(ValueError, match="differentiable"):
        dyart.evaluate(lambda x: layer(x.detach()), inputs, labels, RADII, "pgd", preflight=False)


def test_radii_between_is_sound():
    margins = np.asarray([0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.9])
    assert all(np.abs(margins - radius).min() > 0.01 for radius in radii_between(margins, 2))


@pytest.mark.parametrize("bounds", [(1000.0, 1002.0), None, (0.0, float("inf"))])
def test_rounding_is_that_of_the_inputs_whatever_the_box(bounds):
    """Far from zero a coordinate of float32 is rough, and PGD's points lie on the edge of the ball to that."""
    torch.manual_seed(0)
    net = nn.Linear(20, 2)
    inputs = torch.rand(60, 20) + 1000.5
    net.bias.data -= net(inputs).mean(dim=0).detach()
    labels = net(inputs).argmax(dim=1)
    options = {"bounds": bounds, "preflight": False}
    pgd, found = (dyart.evaluate(net, inputs, labels, [0.03], attack, **options) for attack in ("pgd", "margins"))
    assert list(pgd.robust_accuracy.values()) == pytest.approx(list(found.robust_accuracy.values()), abs=0.05)
    assert 0.1 < pgd.robust_accuracy[Radius("0.03")] < 0.9


def test_a_wide_box_does_not_widen_the_radii():
    """One feature counts, another is a million times as large and does not."""
    torch.manual_seed(0)
    inputs = torch.rand(40, 2, dtype=torch.float64) * torch.tensor([1.0, 1e6])
    net = nn.Linear(2, 2).double()
    net.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
    net.bias.data = torch.tensor([-0.5, 0.5]).double()
    labels = (inputs[:, 0] < 0.5).long()
    bounds = (torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1e6]))
    result = dyart.evaluate(net, inputs, labels, [0.1], "margins", bounds=bounds, preflight=False)
    assert result.robust_accuracy[0.1] == float(((inputs[:, 0] - 0.5).abs() > 0.1).double().mean())


def test_points_that_float32_rounds_out_of_the_box_count():
    """AutoAttack's code knows float32, which has no -0.1."""
    torch.manual_seed(0)
    net = Mlp()
    results = {}
    for dtype in (torch.float32, torch.float64):
        drawn = torch.rand(30, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        inputs = (1.6 * drawn - 0.3).to(dtype).clamp(-0.1, 1.1)
        model = net.to(dtype)
        labels = model(inputs).argmax(dim=1)
        for name in ("apgd-ce", "fab-t"):
            radius = torch.full((30,), 0.5, dtype=dtype)
            options = {"norm": "linf", "bounds": (-0.1, 1.1), "classes": 4, "seed": 0, "index": torch.arange(30)}
            points = tiers.attacked(name, View(model, Count(), dtype=dtype), inputs, labels, radius, **options)
            distance = found_distance(model, inputs, labels, points, "linf", (-0.1, 1.1))
            results[name, dtype] = int((distance <= 0.5 + 1e-6).sum())
    assert results["apgd-ce", torch.float32] > 15
    for name in ("apgd-ce", "fab-t"):
        assert abs(results[name, torch.float64] - results[name, torch.float32]) <= 1


def test_another_precision_is_another_evaluation(tmp_path):
    model = linear(3)
    inputs, labels = examples(model, wrong=0)
    calls = {"radii": [0.05], "attack": "margins", "preflight": False, "folder": tmp_path}
    dyart.evaluate(model, inputs, labels, precision="tf32", **calls)
    again = dyart.evaluate(model, inputs, labels, precision="ieee", **calls)
    alone = dyart.evaluate(model, inputs, labels, precision="ieee", **{**calls, "folder": None})
    assert again.view["precision"] == "ieee"
    assert again.passes == alone.passes


def test_random_starts_go_by_the_example_whatever_batch_it_is_in():
    """With two classes all restarts but the first are random."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 2))
    net[0].weight.data *= 3
    inputs = torch.rand(60, 10)
    net[2].bias.data -= net(inputs).mean(dim=0).detach()
    labels = net(inputs).argmax(dim=1)
    order = torch.randperm(60)
    options = {"attack": "margins", "steps": 10, "restarts": 4, "preflight": False}
    whole, parts = (dyart.evaluate(net, inputs, labels, [0.05], batch_size=n, **options) for n in (60, 20))
    shuffled = dyart.evaluate(net, inputs, labels, [0.05], index=order, **options)
    np.testing.assert_allclose(parts.verdicts.margin, whole.verdicts.margin, rtol=1e-4)
    np.testing.assert_allclose(shuffled.verdicts.margin, whole.verdicts.margin[order], rtol=1e-4)
