"""boundary_speed: the ways to a derivative, which one is taken, and layers that lack some."""

import pytest
import torch
from networks import random_like, small_lstm, small_resnet, small_transformer, smooth_network, uniform
from speed_checks import (
    CENTRAL,
    DOUBLE,
    FORWARD,
    MATH,
    Fussy,
    assert_close_to_scale,
    assert_same_state,
    search,
    state_of,
)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import dyart

NETWORKS = {
    "resnet, group": (lambda: small_resnet("group"), (8, 3, 8, 8), FORWARD),
    "resnet, batch": (lambda: small_resnet("batch"), (8, 3, 8, 8), FORWARD),
    "transformer": (small_transformer, (8, 5, 8), MATH),
    "lstm": (small_lstm, (8, 5, 6), DOUBLE),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_supported_way_is_taken_and_named(name):
    build, shape, wanted = NETWORKS[name]
    model = build()
    found = search(model, uniform(*shape), norm="l2")
    speed = dyart.boundary_speed(model, found, random_like(model))
    assert speed.derivative == wanted
    assert speed.isfinite().all()
    # The ways before it do not exist for this network, or the choice would not be the best one.
    for method in (FORWARD, MATH, DOUBLE):
        if method == wanted:
            break
        with pytest.raises((NotImplementedError, RuntimeError)):
            dyart.boundary_speed(model, found, random_like(model), derivative=method)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exact_ways_agree(name):
    build, shape, first = NETWORKS[name]
    model = build()
    found, update = search(model, uniform(*shape), norm="l2"), random_like(model)
    automatic = dyart.boundary_speed(model, found, update)
    methods = (FORWARD, MATH, DOUBLE)
    for method in methods[methods.index(first) :]:
        speed = dyart.boundary_speed(model, found, update, derivative=method)
        assert speed.derivative == method
        assert_close_to_scale(speed, automatic, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_central_difference_agrees_to_a_hundredth(name, dtype):
    # Also where ReLUs switch between the two ends: a step that is too wide shows here.
    build, shape, _ = NETWORKS[name]
    model = build().to(dtype)
    found, update = search(model, uniform(*shape, dtype=dtype), norm="l2"), random_like(model)
    exact = dyart.boundary_speed(model, found, update)
    # A method that was asked for needs no warning, and warnings are errors.
    central = dyart.boundary_speed(model, found, update, derivative=CENTRAL)
    assert central.derivative == CENTRAL
    assert_close_to_scale(central, exact, 1e-2)


class Opaque(torch.autograd.Function):
    """tanh without a forward-mode rule, and with a backward pass that cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class OpaqueNewStyle(torch.autograd.Function):
    """The same, written as torch.func asks for it."""

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class TwiceDifferentiable(torch.autograd.Function):
    """tanh without a forward-mode rule, and with an ordinary backward pass."""

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class CustomActivation(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function
        self.body = smooth_network()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = self.function.apply(x) if isinstance(layer, nn.Tanh) else layer(x)
        return x


@pytest.mark.parametrize("function", [Opaque, OpaqueNewStyle])
def test_a_layer_with_one_derivative_ends_at_the_central_difference_with_a_warning(function):
    model = CustomActivation(function)
    found = search(model, uniform(10, 12, dtype=torch.float64))
    update = random_like(model)
    before = state_of(model)
    with pytest.warns(UserWarning, match="central difference"):
        speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == CENTRAL
    assert_same_state(model, before)
    plain = {name.removeprefix("body."): rate for name, rate in update.items()}
    assert_close_to_scale(speed, dyart.boundary_speed(model.body, found, plain), 1e-5)


@pytest.mark.parametrize("function", [Opaque, OpaqueNewStyle])
@pytest.mark.parametrize("derivative", [FORWARD, DOUBLE])
def test_a_way_that_a_layer_does_not_have_raises_when_asked_for(function, derivative):
    # Autograd leaves such a layer out of the second derivative without a word: the result would be wrong.
    model = CustomActivation(function)
    found = search(model, uniform(10, 12, dtype=torch.float64))
    with pytest.raises((NotImplementedError, RuntimeError)):
        dyart.boundary_speed(model, found, random_like(model), derivative=derivative)


def test_a_layer_with_two_derivatives_ends_at_double_backward():
    model = CustomActivation(TwiceDifferentiable)
    found = search(model, uniform(10, 12, dtype=torch.float64))
    update = random_like(model)
    speed = dyart.boundary_speed(model, found, update)
    assert speed.derivative == DOUBLE
    plain = {name.removeprefix("body."): rate for name, rate in update.items()}
    torch.testing.assert_close(
        torch.as_tensor(speed), torch.as_tensor(dyart.boundary_speed(model.body, found, plain)), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("error", [RuntimeError("mine"), ValueError("mine"), NotImplementedError("mine")])
def test_an_error_inside_the_model_is_raised(error):
    model = Fussy()
    found = search(model, uniform(6, 12, dtype=torch.float64))
    model.error = error
    before = state_of(model)
    with pytest.raises(type(error), match="mine"):
        dyart.boundary_speed(model, found, random_like(model))
    assert_same_state(model, before)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_points_that_do_not_fit_the_model_raise():
    found = search(smooth_network(), uniform(6, 12, dtype=torch.float64))
    other = smooth_network(features=9)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        dyart.boundary_speed(other, found, random_like(other))
