"""PGD that stops after an error, and PGD that counts: on ways that are known, and one example after the other."""

import math

import pytest
import torch
from problems import distance, smooth_network, uniform
from scipy import stats

from dyart.attacks.counted import counted_pgd
from dyart.attacks.early_stopped import early_stopped_pgd
from dyart.attacks.kl import kl_from
from dyart.attacks.pgd import cross_entropy, pgd
from dyart.data import draws

FEATURES, CLASSES, COUNT = 10, 4, 40
MODEL = smooth_network(FEATURES, CLASSES, dtype=torch.float64)
INPUTS = (1.4 * uniform((COUNT, FEATURES), 1, dtype=torch.float64) - 0.2).clamp(0, 1)
LABELS = MODEL(INPUTS).argmax(dim=1)
LABELS[::4] = (LABELS[::4] + 1) % CLASSES
INDEX = torch.arange(COUNT) * 3 + 5
BALL = (0.1, 10, 0.03)


# Ways that are known: one feature that grows by 1 per step, and a class that changes with it


def alternating(x):
    """Class 0 at even places, class 1 at odd ones; the last logit is the place itself, far below the others."""
    side = torch.cos(math.pi * x[:, 0])
    return torch.stack([side, -side, x[:, 0] - 1000], dim=1)


WAY = {"objective": lambda logits, labels: logits[:, 2], "start": "input", "bounds": None}
ORIGIN = torch.zeros(2, 1, dtype=torch.float64)
EVEN_AND_ODD = torch.tensor([0, 1])


@pytest.mark.parametrize("tau", range(7))
def test_the_steps_beyond_the_first_error_need_not_be_in_a_row(tau):
    points, taken = early_stopped_pgd(alternating, ORIGIN, EVEN_AND_ODD, 100.0, 10, 1.0, tau=tau, **WAY)
    # The first is wrong at 1, 3, 5, ..., the second at 0, 2, 4, ...; the tenth point is not looked at.
    wanted = [min(2 * tau + 1, 10), min(2 * tau, 10)]
    assert taken.tolist() == wanted
    assert points[:, 0].tolist() == wanted


def test_every_correct_point_counts_or_those_before_the_first_error():
    for steps, correct, until in ((10, [5, 5], [1, 0]), (7, [4, 3], [1, 0]), (1, [1, 0], [1, 0]), (0, [0, 0], [0, 0])):
        points, kappa = counted_pgd(alternating, ORIGIN, EVEN_AND_ODD, 100.0, steps, 1.0, **WAY)
        assert kappa.tolist() == correct
        assert points[:, 0].tolist() == [steps, steps]
        _, kappa = counted_pgd(alternating, ORIGIN, EVEN_AND_ODD, 100.0, steps, 1.0, count="first-error", **WAY)
        assert kappa.tolist() == until


# The properties that are asked for


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("start", ["uniform", "normal", "input"])
def test_where_nobody_stops_it_is_pgd(norm, start):
    settings = {"norm": norm, "start": start, "key": 9, "index": INDEX}
    wanted = pgd(MODEL, INPUTS, LABELS, *BALL, **settings)
    for tau in (10, 11, 1000):
        points, taken = early_stopped_pgd(MODEL, INPUTS, LABELS, *BALL, tau=tau, **settings)
        assert torch.equal(points, wanted)
        assert (taken == 10).all()
    nine, _ = early_stopped_pgd(MODEL, INPUTS, LABELS, *BALL, tau=9, **settings)
    always = counted_pgd(MODEL, INPUTS, LABELS, *BALL, **settings)[1] == 0
    assert always.any()
    assert not torch.equal(nine[always], wanted[always])
    assert torch.equal(nine[~always], wanted[~always])


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_without_tau_a_batch_that_is_wrong_is_returned_as_it_started(noise):
    wrong = (MODEL(INPUTS).argmin(dim=1)).int()
    start = pgd(MODEL, INPUTS, wrong, 0.01, 0, key=4, index=INDEX)
    points, taken = early_stopped_pgd(MODEL, INPUTS, wrong, 0.01, 10, 0.03, noise=noise, key=4, index=INDEX)
    assert torch.equal(points, start)
    assert not taken.any()


def test_counting_changes_nothing():
    for count in ("correct", "first-error"):
        points, _ = counted_pgd(MODEL, INPUTS, LABELS, *BALL, count=count, key=3, index=INDEX)
        assert torch.equal(points, pgd(MODEL, INPUTS, LABELS, *BALL, key=3, index=INDEX))


# Example by example, as the papers say it


def noise_of(row, step, key):
    return draws.normal(key ^ draws.key(0, "step noise", step), INDEX[row : row + 1], (FEATURES,)).double()


def alone(row, objective, tau, omega, key):
    """One example's way: where it ends, and which of the points that were looked at are classified as labelled."""
    x, y, left, seen = INPUTS[row], int(LABELS[row]), tau, []
    offset = 2 * draws.uniform(key, INDEX[row : row + 1], (FEATURES,))[0].double() - 1
    point = (x + BALL[0] * offset).clamp(0, 1)
    for step in range(BALL[1]):
        point = point.clone().requires_grad_()
        logits = MODEL(point[None])
        seen.append(int(logits.argmax()) == y)
        if not seen[-1]:
            if left == 0:
                break
            left -= 1
        (gradient,) = torch.autograd.grad(objective(logits, row), point)
        move = BALL[2] * gradient.sign() + (omega * noise_of(row, step, key)[0] if omega else 0)
        point = (x + (point.detach() + move - x).clamp(-BALL[0], BALL[0])).clamp(0, 1)
    return point.detach(), seen


def naive_cross_entropy(logits, row):
    return logits.logsumexp(dim=1)[0] - logits[0, LABELS[row]]


def naive_divergence(logits, row):
    clean = MODEL(INPUTS[row : row + 1]).softmax(dim=1).detach()[0]
    return sum(p * (p.log() - q) for p, q in zip(clean, logits.log_softmax(dim=1)[0], strict=True))


OBJECTIVES = {
    "cross-entropy": (cross_entropy, naive_cross_entropy),
    "divergence": (kl_from(MODEL(INPUTS)), naive_divergence),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("omega", [0.0, 0.01])
@pytest.mark.parametrize("tau", [0, 1, 3])
def test_every_example_goes_its_own_way(tau, omega, name):
    objective, naive = OBJECTIVES[name]
    settings = {"objective": objective, "key": 21, "index": INDEX}
    points, taken = early_stopped_pgd(MODEL, INPUTS, LABELS, *BALL, tau=tau, noise=omega, **settings)
    ways = [alone(row, naive, tau, omega, 21) for row in range(COUNT)]
    torch.testing.assert_close(points, torch.stack([point for point, _ in ways]), rtol=0, atol=1e-12)
    errors = [seen.count(False) for _, seen in ways]
    assert taken.tolist() == [len(seen) - (wrong > tau) for (_, seen), wrong in zip(ways, errors, strict=True)]
    # Some stop at once, some on the way, some never: the comparison is worth something.
    assert (taken == tau).any()
    assert ((taken > tau) & (taken < 10)).any()
    assert (taken == 10).any()


def test_every_example_is_counted_by_itself():
    _, correct = counted_pgd(MODEL, INPUTS, LABELS, *BALL, key=21, index=INDEX)
    _, until = counted_pgd(MODEL, INPUTS, LABELS, *BALL, count="first-error", key=21, index=INDEX)
    ways = [alone(row, naive_cross_entropy, 10, 0.0, 21)[1] for row in range(COUNT)]
    assert correct.tolist() == [sum(seen) for seen in ways]
    assert until.tolist() == [[*seen, False].index(False) for seen in ways]
    assert len(set(correct.tolist())) > 3


# The noise


def drift(steps, count=4000, noise=0.02, **settings):
    """Where noise alone leads: an objective without slope, a ball and a box that nothing reaches."""
    centre = torch.full((count, 5), 0.5, dtype=torch.float64)
    flat = {"objective": lambda logits, labels: 0 * logits.sum(dim=1), "start": "input", "bounds": None}
    labels = torch.zeros(count)
    points, _ = early_stopped_pgd(lambda x: x, centre, labels, 9.0, steps, noise=noise, tau=steps, **flat, **settings)
    return points - centre


def test_the_noise_is_normal_and_another_one_at_every_step():
    one, two = drift(1, key=2), drift(2, key=2) - drift(1, key=2)
    for step in (one, two):
        assert stats.kstest(step.flatten().numpy() / 0.02, "norm").pvalue > 1e-4
    assert abs(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]) < 0.03
    assert abs(torch.corrcoef(torch.stack([one.flatten(), drift(1, key=3).flatten()]))[0, 1]) < 0.03


def test_the_noise_belongs_to_key_and_index():
    rows = torch.tensor([30, 2, 17])
    whole = drift(4, key=2)
    torch.testing.assert_close(drift(4, count=3, key=2, index=rows), whole[rows], rtol=0, atol=1e-12)
    assert torch.equal(drift(4, key=torch.tensor(2)), whole)
    assert not drift(4, noise=0.0).any()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("tau", [0, 2, 10])
def test_noise_leads_neither_out_of_the_ball_nor_out_of_the_box(norm, tau):
    points, _ = early_stopped_pgd(MODEL, INPUTS, LABELS, 0.05, 6, noise=0.5, tau=tau, norm=norm)
    assert distance(points, INPUTS, norm).max() <= 0.05 * (1 + 1e-5)
    assert points.min() >= 0
    assert points.max() <= 1


# What may be given


def test_images_labels_of_any_type_and_an_empty_batch():
    def model(x):
        return x.flatten(1)[:, :3] * 2

    images, labels = uniform((6, 2, 3, 3), 2), torch.arange(6) % 3
    wanted, taken = early_stopped_pgd(model, images, labels, 0.3, 4, tau=1, noise=0.01)
    assert wanted.shape == images.shape
    assert wanted.dtype == images.dtype
    assert not wanted.requires_grad
    with torch.no_grad():
        points, again = early_stopped_pgd(model, images, labels.int(), 0.3, 4, tau=1, noise=0.01)
    assert torch.equal(points, wanted)
    assert torch.equal(again, taken)
    points, taken = early_stopped_pgd(model, images[:0], labels[:0], 0.3, 4)
    assert points.shape == (0, 2, 3, 3)
    assert taken.shape == (0,)


def test_the_passes_are_pgds_whatever_tau_is():
    calls = []

    def model(x):
        calls.append(len(x))
        return MODEL(x)

    for tau in (0, 1, 10):
        calls.clear()
        early_stopped_pgd(model, INPUTS, LABELS, *BALL, tau=tau)
        assert calls == [COUNT] * 10


@pytest.mark.parametrize(
    ("attack", "options", "message"),
    [
        (early_stopped_pgd, {"tau": -1}, "tau must be an integer of at least 0, got -1"),
        (early_stopped_pgd, {"tau": 0.5}, "got 0.5"),
        (early_stopped_pgd, {"noise": -0.1}, "noise must be finite and at least 0, got -0.1"),
        (early_stopped_pgd, {"noise": math.nan}, "got nan"),
        (early_stopped_pgd, {"norm": "l1"}, "norm must be one of 'linf', 'l2'; got 'l1'"),
        (counted_pgd, {"count": "wrong"}, "count must be one of 'correct', 'first-error'; got 'wrong'"),
        (counted_pgd, {"steps": -1}, "steps must be an integer of at least 0"),
    ],
)
def test_bad_settings_raise(attack, options, message):
    with pytest.raises(ValueError, match=message):
        attack(MODEL, INPUTS, LABELS, **({"radius": 0.1} | options))
