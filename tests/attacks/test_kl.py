"""The KL objective is the divergence of the predictions, from the clean ones; PGD on it is what it says."""

import math

import pytest
import torch
from problems import distance, smooth_network, uniform

from dyart.attacks.kl import constant_logits, kl_divergence, kl_from, kl_pgd
from dyart.attacks.pgd import pgd
from dyart.data import draws

FEATURES, CLASSES, COUNT = 10, 4, 12
MODEL = smooth_network(FEATURES, CLASSES).double()
INPUTS = (1.4 * uniform((COUNT, FEATURES), 1) - 0.2).clamp(0, 1).double()
LABELS = torch.arange(COUNT) % CLASSES


def probabilities(row):
    weights = [math.exp(z - max(row)) for z in row]
    return [weight / sum(weights) for weight in weights]


def by_hand(clean, other):
    return [
        sum(a * (math.log(a) - math.log(b)) for a, b in zip(probabilities(p), probabilities(q), strict=True))
        for p, q in zip(clean.tolist(), other.tolist(), strict=True)
    ]


def test_the_divergence_of_every_example():
    clean, other = 4 * uniform((COUNT, CLASSES), 3).double(), 4 * uniform((COUNT, CLASSES), 4).double()
    wanted = torch.tensor(by_hand(clean, other), dtype=torch.float64)
    torch.testing.assert_close(kl_divergence(clean, other), wanted)
    torch.testing.assert_close(kl_from(clean)(other, LABELS), wanted)
    assert wanted.min() > 0
    # The order counts: the clean distribution is the one that is averaged over.
    assert (kl_divergence(other, clean) - wanted).abs().max() > 0.01


def test_a_class_that_is_masked_out_has_no_part():
    clean, other = (4 * uniform((COUNT, CLASSES), seed).double() for seed in (3, 4))
    masked = [torch.cat([part, torch.full((COUNT, 1), -torch.inf)], dim=1).requires_grad_() for part in (clean, other)]
    found = kl_divergence(*masked)
    torch.testing.assert_close(found, kl_divergence(clean, other))
    assert all(part.isfinite().all() for part in torch.autograd.grad(found.sum(), masked))


def test_it_is_zero_with_zero_gradient_at_equal_logits():
    logits = uniform((COUNT, CLASSES), 3).double().requires_grad_()
    value = kl_from(logits)(logits, LABELS)
    torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-15)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient.abs().max() < 1e-15


def test_the_objective_takes_the_clean_logits_as_constants_and_the_divergence_does_not():
    clean = uniform((COUNT, CLASSES), 3).double().requires_grad_()
    other = uniform((COUNT, CLASSES), 4).double().requires_grad_()
    assert torch.autograd.grad(kl_from(clean)(other, LABELS).sum(), clean, allow_unused=True) == (None,)
    one, two = torch.autograd.grad(kl_divergence(clean, other).sum(), (clean, other))
    assert one.abs().max() > 0.01
    torch.testing.assert_close(two, other.softmax(dim=1) - clean.softmax(dim=1))


def test_bfloat16_and_extreme_logits():
    clean = torch.tensor([[200.0, 0.0, -200.0]] * 2, dtype=torch.bfloat16)
    other = torch.tensor([[0.0, 200.0, -200.0], [200.0, 0.0, -200.0]], dtype=torch.bfloat16, requires_grad=True)
    value = kl_divergence(clean, other)
    assert value.dtype == torch.float32
    assert value.tolist() == pytest.approx([200.0, 0.0])
    (gradient,) = torch.autograd.grad(value.sum(), other)
    assert gradient.isfinite().all()


def pgd_by_hand(radius, steps, step, offset):
    rows = []
    for row in range(COUNT):
        x = INPUTS[row : row + 1]
        point = (x + offset[row]).clamp(x - radius, x + radius).clamp(0, 1)
        for _ in range(steps):
            point = point.detach().requires_grad_()
            p = MODEL(x).softmax(dim=1)[0].detach()
            q = MODEL(point).softmax(dim=1)[0]
            total = sum(p[k] * (p[k].log() - q[k].log()) for k in range(CLASSES))
            (gradient,) = torch.autograd.grad(total, point)
            point = (point.detach() + step * gradient.sign()).clamp(x - radius, x + radius).clamp(0, 1)
        rows.append(point)
    return torch.cat(rows).detach()


@pytest.mark.parametrize("start", ["normal", "uniform"])
def test_pgd_on_the_divergence(start):
    index, key = torch.arange(COUNT) * 3, 17
    if start == "normal":
        offset = 0.001 * draws.normal(key, index, (FEATURES,)).double()
    else:
        offset = 0.1 * (2 * draws.uniform(key, index, (FEATURES,)).double() - 1)
    got = kl_pgd(MODEL, INPUTS, LABELS, 0.1, 6, 0.03, start=start, key=key, index=index)
    torch.testing.assert_close(got, pgd_by_hand(0.1, 6, 0.03, offset), rtol=0, atol=1e-7)
    objective = kl_from(MODEL(INPUTS))
    same = pgd(MODEL, INPUTS, LABELS, 0.1, 6, 0.03, objective=objective, start=start, key=key, index=index)
    assert torch.equal(got, same)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_raises_the_divergence_within_the_ball_whatever_the_labels(norm):
    points = kl_pgd(MODEL, INPUTS, LABELS, 0.1, 10, 0.025, norm=norm)
    clean = MODEL(INPUTS)
    start = kl_pgd(MODEL, INPUTS, LABELS, 0.1, 0, norm=norm)
    assert (kl_divergence(clean, MODEL(points)) > 10 * kl_divergence(clean, MODEL(start))).all()
    assert distance(points, INPUTS, norm).max() <= 0.1 * (1 + 1e-6)
    assert torch.equal(points, kl_pgd(MODEL, INPUTS, (LABELS + 1) % CLASSES, 0.1, 10, 0.025, norm=norm))


def test_it_costs_one_pass_more_than_its_steps():
    calls = []

    def model(x):
        calls.append(x.requires_grad)
        return MODEL(x)

    kl_pgd(model, INPUTS, LABELS, 0.1, 4)
    assert calls == [False] + 4 * [True]


def test_a_start_at_the_input_is_refused():
    with pytest.raises(ValueError, match="start must be one of 'uniform', 'normal'; got 'input'"):
        kl_pgd(MODEL, INPUTS, LABELS, 0.1, start="input")


def test_constant_logits_are_computed_with_gradients_on():
    # Under a caller's autocast the weights' copies outlive the call; older releases of torch make them without history
    # where those are off, and the caller's next pass then has none.
    modes = []

    def model(x):
        modes.append(torch.is_grad_enabled())
        return MODEL(x)

    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            assert not constant_logits(model, INPUTS).requires_grad
    assert modes == [True, True]
