"""Variants of DyART that were tried: their terms are taken where they say."""

import pytest
import torch
from bench_cases import module
from torch import nn

import dyart
from dyart.boundary.gradient import margin_weights
from dyart.boundary.problem import Problem
from dyart.data.loader import Batch

ideas = module("ideas")


class Seen(nn.Module):
    """A linear network that keeps the inputs of its last call."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 20, generator=generator))

    def forward(self, inputs):
        self.last = inputs.detach()
        return inputs.flatten(1) @ self.weight.T


@pytest.fixture
def batch():
    inputs = 0.3 + 0.4 * torch.rand(64, 20, generator=torch.Generator().manual_seed(1))
    return inputs, torch.arange(64) % 3


@pytest.fixture
def several_boundaries():
    """A network, inputs that are all inside their class, and the labels: all pairs of classes have a boundary."""
    model, inputs = Seen(), torch.rand(64, 20, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.weight -= model.weight.mean(dim=1, keepdim=True)  # so that no class has all of the box
        return model, inputs, model(inputs).argmax(dim=1)


def far(points, inputs):
    return (points - inputs).abs().amax(1)


def test_cross_entropy_is_that_of_images_at_a_distance(batch):
    model = Seen()
    loss, _ = ideas.Aside(clean_radius=0.04)(model, *batch)
    loss.backward()
    assert torch.allclose(far(model.last[64:], batch[0]), torch.tensor(0.04), atol=1e-6), "also of wrong classes"
    assert model.weight.grad.isfinite().all()


def test_near_points_are_moved_out_to_the_reach(batch):
    model = Seen()
    plain, moved = ideas.Aside(), ideas.Aside(reach=0.04)
    plain(model, *batch)
    before = far(model.last[:64], batch[0])
    moved(model, *batch)
    after = far(model.last[:64], batch[0])
    near = (before > 0) & (before < 0.04)
    assert near.any()
    assert (before > 0.04).any()
    assert torch.allclose(after[near], torch.tensor(0.04), atol=1e-6)
    assert torch.equal(after[~near], before[~near])


def test_friendly_points_are_just_beyond_the_boundary_or_at_the_radius(batch):
    model = Seen()
    plain = ideas.Aside().search(model, *batch)
    loss, metrics = ideas.Friendly(kl_radius=0.04, beyond=0.01)(model, *batch)
    loss.backward()
    points, aside, _ = model.last.split(64)
    distance = far(aside, batch[0])
    near = plain.found & (plain.margin < 0.03)
    assert near.any()
    assert (plain.margin > 0.03).any()
    assert torch.allclose(distance[near], plain.margin[near] + 0.01, atol=1e-6)
    assert torch.allclose(distance[plain.found & ~near], torch.tensor(0.04), atol=1e-6)
    assert torch.allclose(distance[~plain.found], torch.tensor(0.01), atol=1e-6)
    assert torch.allclose(points[plain.found], plain.points[plain.found], atol=1e-6)
    assert metrics["kl"] > 0
    assert model.weight.grad.isfinite().all()


def test_examples_outside_are_pulled_back_as_far_as_they_are_near(batch):
    """For a linear network the signed margin is exact: the term is its mean, and only those near take part."""
    model = Seen()
    inputs, labels = batch
    points = ideas.Signed().search(model, inputs, labels)
    plain, _ = ideas.Aside(lam=250.0)(model, inputs, labels)
    loss, metrics = ideas.Signed(outside=0.5, depth=0.05)(model, inputs, labels)
    value = dyart.soft_logit_margin(model(inputs), labels)
    (slope,) = torch.autograd.grad(
        dyart.soft_logit_margin(model(leaf := inputs.clone().requires_grad_()), labels).sum(), leaf
    )
    signed = value / slope.abs().sum(1)
    lost = ~points.inside & (signed > -0.05)
    assert lost.any()
    assert (~points.inside & (signed < -0.05)).any()
    assert metrics["lost"] == lost.float().mean()
    assert torch.allclose(loss - plain, -250 * 0.5 * signed[lost].sum() / len(inputs), rtol=1e-3)
    loss.backward()
    assert model.weight.grad.isfinite().all()


class Met:
    """A network's batches with the indices that the engine gives."""

    def __init__(self, method, inputs, labels):
        self.method, self.batch = method, Batch(inputs, labels, torch.arange(64), torch.zeros((), dtype=torch.int64))
        method.prepare(80, inputs.device)

    def losses(self, model, fraction):
        self.method.advance(fraction)
        return self.method.loss(model, self.batch, self.method.crafted(model, self.batch))


def test_labels_are_believed_as_far_as_earlier_outputs_do(batch):
    model, (inputs, labels) = Seen(), batch
    met = Met(ideas.Ensembled(trust=0.5, memory=0.8, begin=0.25), inputs, labels)
    usual = dyart.DyART(lam=250.0, steps=8)(model, inputs, labels)[0]
    first, metrics = met.losses(model, 0.0)
    torch.testing.assert_close(first, usual)
    assert metrics["believed"] == 1
    with torch.no_grad():
        before = model(inputs).softmax(dim=1)
        model.weight.mul_(2)
        after = model(inputs)
    past = met.method.past
    torch.testing.assert_close(past[:64], before)
    assert not past[64:].any(), "no example that was not met"
    # The past is kept from the start, and counts from a quarter of the training on.
    torch.testing.assert_close(met.losses(model, 0.2)[0], dyart.DyART(lam=250.0, steps=8)(model, inputs, labels)[0])
    mixed = 0.8 * before + 0.2 * after.softmax(dim=1)
    torch.testing.assert_close(past[:64], mixed)
    loss, metrics = met.losses(model, 0.25)
    usual, usually = dyart.DyART(lam=250.0, steps=8)(model, inputs, labels)
    targets = 0.5 * nn.functional.one_hot(labels, 3) + 0.5 * mixed
    softer = nn.functional.cross_entropy(after, targets) - usually["clean_loss"]
    torch.testing.assert_close(loss, usual + softer, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["believed"], mixed.gather(1, labels[:, None]).mean())


def test_margins_weigh_as_much_as_earlier_outputs_believe_the_label(batch):
    model, (inputs, labels) = Seen(), batch
    gradients = {}
    for confident in (False, True):
        met = Met(ideas.Ensembled(trust=0.0, confident=confident, begin=0.0), inputs, labels)
        met.losses(model, 0.0)
        met.method.past[:64] = nn.functional.one_hot(labels, 3) * 0.25 + 0.25
        model.weight.grad = None
        met.losses(model, 0.5)[0].backward()
        gradients[confident] = model.weight.grad
    model.weight.grad = None
    nn.functional.cross_entropy(model(inputs), labels).backward()
    clean = model.weight.grad
    torch.testing.assert_close(gradients[True] - clean, 0.5 * (gradients[False] - clean), rtol=1e-3, atol=1e-4)


def test_earlier_outputs_are_a_part_of_a_checkpoint(batch):
    model = Seen()
    met, other = (Met(ideas.Ensembled(begin=0.0), *batch) for _ in range(2))
    assert met.method.state_dict() == {}
    met.losses(model, 0.0)
    other.method.load_state_dict(met.method.state_dict())
    torch.testing.assert_close(met.losses(model, 0.5)[0], other.losses(model, 0.5)[0], rtol=0, atol=0)


def test_both_sides_of_a_boundary_push_alike(several_boundaries):
    """The second step's weights are those of the first, made even by the pushes that the first one saw."""
    model, inputs, labels = several_boundaries
    met = Met(ideas.Balanced(limit=100.0, memory=0.0), inputs, labels)
    met.losses(model, 0.0)
    points = met.method.crafted(model, met.batch)
    used = met.method.kept(points) & (points.margin < met.method.r0)
    weights, used = margin_weights(points, met.method.cost, mask=used)
    pushes = torch.zeros(3, 3).index_put_((labels, points.rival.clamp(min=0)), weights.abs(), accumulate=True)
    torch.testing.assert_close(met.method.pushes, pushes)
    both = (pushes > 0) & (pushes.T > 0)
    assert int(both.sum()) >= 4, "two pairs of classes at least"
    factors = torch.where(both, (pushes + pushes.T) / 2 / pushes.clamp(min=1e-12), 1.0)[
        labels, points.rival.clamp(min=0)
    ]
    even = torch.zeros(3, 3).index_put_((labels, points.rival.clamp(min=0)), weights.abs() * factors, accumulate=True)
    torch.testing.assert_close(even[both], even.T[both])
    loss, metrics = met.losses(model, 0.5)
    loss.backward()
    found, model.weight.grad = model.weight.grad, None
    value = dyart.soft_logit_margin(model(points.points), labels)
    margin = torch.where(used, factors * weights * value, 0.0).sum() / len(labels)
    (nn.functional.cross_entropy(model(inputs), labels) + met.method.lam * margin).backward()
    torch.testing.assert_close(found, model.weight.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(metrics["factor"], factors[used].mean())


@pytest.mark.parametrize("limit", [1.0, 1.1, 100.0])
def test_no_weight_changes_by_more_than_the_limit(several_boundaries, monkeypatch, limit):
    model, inputs, labels = several_boundaries
    met, weighed, usual = Met(ideas.Balanced(limit=limit, memory=0.0), inputs, labels), [], dyart.DyART.loss

    def loss(self, model, batch, crafted):
        weighed.append(crafted)
        return usual(self, model, batch, crafted)

    monkeypatch.setattr(dyart.DyART, "loss", loss)
    for fraction in (0.0, 0.5):
        met.losses(model, fraction)
    points = met.method.crafted(model, met.batch)
    steep, found = (one.gradient.abs().sum(dim=1)[points.found] for one in (points, weighed[-1]))
    factor = steep / found
    assert factor.max() <= limit + 1e-5
    assert factor.min() >= 1 / limit - 1e-5
    assert factor.max() > min(limit, 1.2) - 1e-5, "a smaller limit is met"


def test_the_average_of_what_pushes_is_over_the_steps_and_goes_on_after_a_resume(several_boundaries):
    model, inputs, labels = several_boundaries
    met = Met(ideas.Balanced(memory=0.75), inputs, labels)
    met.losses(model, 0.0)
    first = met.method.pushes.clone()
    with torch.no_grad():
        model.weight.mul_(2)
    now = Met(ideas.Balanced(memory=0.0), inputs, labels)
    now.losses(model, 0.0)
    assert not torch.allclose(now.method.pushes, first)
    again = Met(ideas.Balanced(memory=0.75), inputs, labels)
    again.method.load_state_dict({name: value.clone() for name, value in met.method.state_dict().items()})
    for one in (met, again):
        one.losses(model, 0.5)
        torch.testing.assert_close(one.method.pushes, 0.75 * first + 0.25 * now.method.pushes)


def test_methods_that_couple_a_batch_say_so():
    assert all(method.couples for method in (ideas.Balanced(), ideas.Sloped()))


def test_what_is_kept_by_example_needs_the_engine(batch):
    with pytest.raises(ValueError, match=r"engine alone.*--method\.name ideas:Ensembled"):
        ideas.Ensembled()(Seen(), *batch)


def test_a_search_that_knows_no_examples_begins_at_the_inputs(several_boundaries):
    model, inputs, labels = several_boundaries
    found, usual = (method(steps=8).search(model, inputs, labels) for method in (ideas.Scattered, dyart.DyART))
    torch.testing.assert_close(found.margin, usual.margin)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_steep_examples_weigh_more(several_boundaries, power):
    model, inputs, labels = several_boundaries
    method = ideas.Sloped(power=power)
    method(model, inputs, labels)[0].backward()
    found, model.weight.grad = model.weight.grad, None
    points = method.search(model, inputs, labels)
    used = method.kept(points) & (points.margin < method.r0)
    weights, used = margin_weights(points, method.cost, mask=used)
    slopes = points.multiplier()[used]
    assert slopes.max() > 1.2 * slopes.min()
    steeper = torch.zeros_like(weights)
    steeper[used] = weights[used] * slopes**power / (slopes**power).mean()
    value = dyart.soft_logit_margin(model(points.points), labels)
    margin = torch.where(used, steeper * value, 0.0).sum() / len(labels)
    (nn.functional.cross_entropy(model(inputs), labels) + method.lam * margin).backward()
    torch.testing.assert_close(found, model.weight.grad, rtol=1e-3, atol=1e-3)


def test_a_batch_without_margins_has_the_clean_loss_alone(batch):
    model, (inputs, _) = Seen(), batch
    wrong = model(inputs).argmin(dim=1)
    with pytest.warns(UserWarning, match="0 of 64 examples have a margin"):
        loss, metrics = ideas.Sloped()(model, inputs, wrong)
    assert metrics["used"] == 0
    torch.testing.assert_close(loss, nn.functional.cross_entropy(model(inputs), wrong))


def test_searches_begin_beside_the_inputs(several_boundaries):
    """On a linear network every start leads to points of the same distance; without one it is DyART's."""
    model, inputs, labels = several_boundaries
    points, box = {}, (torch.zeros(()), torch.ones(()))
    for start in (0.0, 0.01):
        met = Met(ideas.Scattered(start=start), inputs, labels)
        begin, warm = met.method._begin(Problem(model, inputs, labels, "linf", "soft", 5.0, *box), met.batch)
        assert not warm
        assert 0.7 * start <= far(begin, inputs).min() <= far(begin, inputs).max() <= start
        points[start] = met.method.crafted(model, met.batch)
    plain = ideas.Aside().search(model, inputs, labels)
    torch.testing.assert_close(points[0.01].margin, plain.margin, rtol=1e-3, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(points[0.0].points, plain.points, rtol=0, atol=1e-6)


def test_the_bump_is_a_cost_with_its_slope():
    cost = module("ideas_weights").Bump(0.04, 0.02)
    margin = torch.linspace(0, 0.1, 50, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(cost(margin).sum(), margin)
    assert torch.allclose(slope, cost.derivative(margin.detach()))
    assert slope.argmin() == (margin - 0.04).abs().argmin()
    assert ideas.MiddleFirst().cost.centre == pytest.approx(10 / 255)


@pytest.mark.parametrize(("boundary", "beta", "left"), [("exact", 5.0, 1e-4), ("soft", 50.0, 0.02), ("soft", 5.0, 0.1)])
def test_the_margin_term_hardly_changes_with_the_scale_of_the_logits(batch, boundary, beta, left):
    inputs, labels = batch

    def seen(cls):
        """Return the loss and the slope of its margin term along the scale of all logits, boundaries moved away."""
        model, method = Seen(), cls(lam=250, steps=8, boundary=boundary, beta=beta)
        here = Batch(inputs, labels, torch.arange(64), torch.tensor(0))
        points = method.craft(model, here)
        scale = torch.ones((), requires_grad=True)

        def moved(x):
            return scale * (model(x) - 0.1 * torch.nn.functional.one_hot(labels.repeat(2), 3))

        loss, metrics = method.loss(moved, here, points)
        clean = torch.nn.functional.cross_entropy(moved(torch.cat([inputs, inputs]))[:64], labels)
        (slope,) = torch.autograd.grad(loss - clean, scale)
        return float(loss.detach()), float(slope), float(metrics["used"])

    loss, slope, used = seen(ideas.DyART)
    same, none, _ = seen(ideas.ScaleFree)
    assert used > 0.2
    assert same == pytest.approx(loss, rel=1e-5)
    assert abs(slope) > 0.1
    assert abs(none) < left * abs(slope)


@pytest.mark.parametrize("name", ideas.__all__)
def test_every_variant_takes_the_settings_of_dyart(name):
    variant = getattr(ideas, name)
    usual, other = variant(), variant(alpha=1.0, r0=0.1, norm="l2", boundary="exact", keep="optimal")
    assert (usual.r0, usual.norm, usual.boundary, usual.keep) == (16 / 255, "linf", "soft", "conditions")
    assert (other.r0, other.norm, other.boundary, other.keep) == (0.1, "l2", "exact", "optimal")
    assert name == "MiddleFirst" or other.cost.alpha == 1.0


def test_defaults_stay_those_of_the_published_runs():
    lams = {name: getattr(ideas, name)().lam for name in ideas.__all__}
    others = {"Friendly": 0.0, "MiddleFirst": 350.0, "ScaleFree": 1000.0}
    assert lams == dict.fromkeys(ideas.__all__, 250.0) | others
    assert {name: getattr(ideas, name)().steps for name in ideas.__all__} == (
        dict.fromkeys(ideas.__all__, 8) | {"ScaleFree": 10}
    )


@pytest.mark.parametrize("name", ["Aside", "Signed", "Scattered", "Ensembled", "Balanced"])
def test_a_variant_refuses_what_it_would_not_keep_or_heed(name):
    with pytest.raises(ValueError, match=f"{name} does not go with warm_start: leave it out"):
        getattr(ideas, name)(warm_start=True)
