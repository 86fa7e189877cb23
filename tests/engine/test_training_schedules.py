"""Rates and momenta as functions of the step."""

import math

import pytest
import torch

from dyart.engine.schedules import one_cycle, rates
from dyart.recipes.config import Optim

# Of the released code's schedule, peak 0.1.
ANCHORS_200 = {
    0: 0.0040,
    1: 0.01806,
    2: 0.0520,
    3: 0.08594,
    4: 0.1000,
    50: 0.08689,
    100: 0.05121,
    150: 0.01479,
    199: 4e-7,
}
ANCHORS_100 = {0: 0.0040, 1: 0.0760, 2: 0.09999, 50: 0.05040}


@pytest.mark.parametrize(("epochs", "anchors"), [(200, ANCHORS_200), (100, ANCHORS_100)])
def test_one_cycle_at_its_anchors(epochs, anchors):
    for epoch, lr in anchors.items():
        # The anchors have four digits.
        assert one_cycle(0.1, epoch, epochs).lr == pytest.approx(lr, rel=1e-3)


def test_one_cycle_momentum_runs_against_the_rate():
    found = {epoch: one_cycle(0.1, epoch, 200).momentum for epoch in (0, 4, 100, 199)}
    assert found == pytest.approx({0: 0.95, 4: 0.85, 100: 0.899, 199: 0.95}, abs=5e-4)


@pytest.mark.parametrize("epochs", [41, 60, 100, 200, 313])
def test_one_cycle_is_torchs(epochs):
    """Torch divides by zero for 40 epochs and fewer."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs, pct_start=0.025)
    for epoch in range(epochs):
        group, ours = optimizer.param_groups[0], one_cycle(0.1, epoch, epochs)
        assert ours.lr == pytest.approx(group["lr"], rel=1e-9, abs=1e-12), epoch
        assert ours.momentum == pytest.approx(group["momentum"], rel=1e-9), epoch
        optimizer.step()
        if epoch < epochs - 1:
            theirs.step()


@pytest.mark.parametrize("epochs", [1, 2, 3, 10, 39, 40])
def test_one_cycle_of_few_epochs_begins_at_the_peak_and_falls(epochs):
    lrs = [one_cycle(0.1, epoch, epochs).lr for epoch in range(epochs)]
    assert all(math.isfinite(lr) and lr > 0 for lr in lrs)
    assert lrs[0] == pytest.approx(0.1)
    assert lrs == sorted(lrs, reverse=True)
    if epochs > 1:
        assert lrs[-1] == pytest.approx(4e-7)


def test_one_cycle_changes_between_epochs_only():
    optim = Optim(lr=0.1, schedule="one-cycle")
    found = [rates(optim, step, 1000, 5) for step in range(1000)]
    assert [rate.lr for rate in found[10:15]] == [found[10].lr] * 5
    assert found[15].lr != found[14].lr
    assert found[10] == one_cycle(0.1, 2, 200)


def test_cosine_rises_linearly_and_reaches_zero():
    optim, steps = Optim(lr=0.2, schedule="cosine", warmup=0.025), 400
    lrs = [rates(optim, step, steps, 10).lr for step in range(steps)]
    assert lrs[:10] == pytest.approx([0.02 * (step + 1) for step in range(10)])
    assert lrs[10] == pytest.approx(0.2)
    assert lrs[10:] == sorted(lrs[10:], reverse=True)
    assert lrs[205] == pytest.approx(0.1)
    assert 0 <= lrs[-1] < 1e-5
    assert {rates(optim, step, steps, 10).momentum for step in range(steps)} == {0.9}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_cosine_of_a_few_steps(steps):
    for warmup in (0.0, 0.5, 0.99):
        lrs = [rates(Optim(lr=1.0, warmup=warmup), step, steps, 1).lr for step in range(steps)]
        assert all(0 < lr <= 1 for lr in lrs)


def test_step_schedule_falls_at_half_and_three_quarters():
    optim = Optim(lr=1.0, schedule="step", warmup=0.025)
    lrs = [rates(optim, step, 200, 10).lr for step in range(200)]
    assert lrs[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(lrs[5:100]) == {1.0}
    assert lrs[100:150] == pytest.approx([0.1] * 50)
    assert lrs[150:] == pytest.approx([0.01] * 50)


def test_constant_schedule_is_constant_after_the_warm_up():
    lrs = [rates(Optim(lr=0.3, schedule="constant", warmup=0.1), step, 50, 10).lr for step in range(50)]
    assert lrs[:5] == pytest.approx([0.06, 0.12, 0.18, 0.24, 0.3])
    assert set(lrs[5:]) == {0.3}
