"""Everything is as before also when the model, a gradient or the check of the inputs fails on the way."""

import math
from functools import cache, partial

import pytest
import torch
from side_effects import (
    CLASSES,
    DIRECTIONS,
    Counter,
    FailureError,
    assert_intact_after_failure,
    assert_same,
    batch,
    direction,
    failing,
    in_mode,
    loss_of_margins,
    modes,
    network,
    over,
    search,
    settings,
    snapshot,
    speed,
    train,
)
from torch import Tensor, nn

import dyart
from dyart.boundary.derivative import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:the model has BatchNorm layers in training mode")


class FailingGradient(nn.Module):
    """Passes its input on, and fails at the n-th gradient that is taken through it."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients, self.fail_at = 0, None

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(self._hook)
        return x

    def _hook(self, gradient: Tensor) -> None:
        self.gradients += 1
        if self.gradients == self.fail_at:
            raise FailureError(f"gradient {self.gradients}")


@cache
def calls_of_a_search() -> int:
    model = failing("eval", 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        search(model)
    return model[-1].calls


# From the first pass over the inputs to the last of the polish; the draws decide how many that takes.
@modes
@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.3, 0.5, 0.8, 1])
def test_all_is_as_before_when_the_search_fails(mode, share):
    fail_at = math.ceil(1 + share * (calls_of_a_search() - 1))
    torch.manual_seed(0)
    assert_intact_after_failure(search, failing(mode, fail_at))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("fail_at", [1, 6])
def test_all_is_as_before_when_the_search_is_stopped_by_any_error(fail_at, error):
    assert_intact_after_failure(search, failing("mixed", fail_at, error), error)


@modes
@pytest.mark.parametrize(
    ("derivative", "fail_at"), [(None, 1), *((name, 1) for name in METHODS), ("central difference", 2)]
)
def test_all_is_as_before_when_the_speed_fails(mode, derivative, fail_at):
    assert_intact_after_failure(partial(speed, derivative=derivative), failing(mode, fail_at, counts=False))


def test_all_is_as_before_when_every_derivative_fails():
    class Never(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no derivative of any kind")

    model = in_mode(network(Counter(), Never()), "mixed")
    assert_intact_after_failure(partial(speed, derivative=None), model, RuntimeError)


@modes
@over(DIRECTIONS)
def test_all_is_as_before_when_the_loss_of_an_update_fails(mode, call):
    assert_intact_after_failure(call, failing(mode, 1))


def test_all_is_as_before_when_the_loss_of_an_update_is_refused():
    model, (inputs, _) = network(Counter()).train(), batch()

    def call(model: nn.Module) -> None:
        dyart.update_direction(model, loss=lambda: model(inputs))

    assert_intact_after_failure(call, model, ValueError)


@modes
def test_modes_and_flags_are_as_before_when_margin_loss_fails(mode):
    model = failing(mode, 1)
    before = snapshot(model, buffers=False)
    with pytest.raises(FailureError):
        loss_of_margins(model)
    assert_same(before, snapshot(model, buffers=False))


# Calls of the objective: the check (1), three steps (2 to 4), the loss (5, and 6 with two passes).
@modes
@pytest.mark.parametrize("fail_at", [1, 2, 4, 5, 6])
def test_modes_and_flags_are_as_before_when_the_objective_fails(mode, fail_at):
    model = failing(mode, fail_at)
    before, around = snapshot(model, buffers=False), settings(draws=False)
    with pytest.raises(FailureError):
        train(model, joint=fail_at != 6)
    assert model[-1].calls == fail_at
    assert_same(before, snapshot(model, buffers=False))
    assert_same(around, settings(draws=False))


@modes
@pytest.mark.parametrize("fail_at", [1, 2, 4])
def test_buffers_and_generator_are_as_before_when_the_search_of_the_objective_fails(mode, fail_at):
    assert_intact_after_failure(train, failing(mode, fail_at))


@modes
@pytest.mark.parametrize("call", [search, train, direction, partial(speed, derivative="double backward")])
def test_all_is_as_before_when_a_gradient_fails(mode, call):
    model = in_mode(network(FailingGradient()), mode)
    model[-1].fail_at = 1
    assert_intact_after_failure(call, model)


def test_a_refused_input_leaves_everything_as_before():
    model, (inputs, labels) = in_mode(network(Counter()), "mixed"), batch()
    wrong = labels.clone()
    wrong[0] = CLASSES
    for call in (
        lambda model: dyart.closest_boundary_points(model, inputs + 3, labels),
        lambda model: dyart.closest_boundary_points(model, inputs, wrong),
    ):
        assert_intact_after_failure(call, model, ValueError)
