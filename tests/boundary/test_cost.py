import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dyart.boundary.cost import Cost, ExponentialCost, check_cost, cost_derivative

INF = math.inf
R0 = 0.25


def below(r0, dtype=torch.float64, count=50):
    return torch.linspace(0, r0, count + 1, dtype=torch.float64)[:-1].to(dtype)


def autograd_derivative(cost, margin):
    margin = margin.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cost(margin).sum(), margin)
    return gradient


def parabola(margin):
    """Convex and decreasing on (0, R0)."""
    return (R0 - margin).square()


class Recording:
    """A cost that gives its own derivative, deliberately not that of its value, and counts the calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, margin):
        raise AssertionError("the value is not needed where the cost knows its derivative")

    def derivative(self, margin):
        self.calls += 1
        return -7 * torch.ones_like(margin)


# --- the exponential cost ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-3, 50), st.floats(1e-2, 10), st.floats(0, 20))
def test_exponential_cost_equals_the_definition(alpha, r0, margin):
    cost, R = ExponentialCost(alpha, r0), torch.tensor([margin], dtype=torch.float64)
    inside = margin < r0
    assert cost(R).item() == pytest.approx(math.exp(-alpha * margin) / alpha if inside else 0, rel=1e-12, abs=0)
    assert cost.derivative(R).item() == pytest.approx(-math.exp(-alpha * margin) if inside else 0, rel=1e-12, abs=0)


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-2, 10), st.floats(0, 20))
def test_alpha_zero_is_the_linear_cost(r0, margin):
    cost, R = ExponentialCost(0.0, r0), torch.tensor([margin], dtype=torch.float64)
    assert cost(R).item() == max(r0 - margin, 0)
    assert cost.derivative(R).item() == (-1 if margin < r0 else 0)


def test_defaults_are_the_papers():
    assert ExponentialCost() == ExponentialCost(alpha=3.0, r0=16 / 255)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 3.0, 20.0])
def test_derivative_agrees_with_autograd_below_the_threshold(alpha):
    cost, margin = ExponentialCost(alpha, R0), below(R0)
    torch.testing.assert_close(cost.derivative(margin), autograd_derivative(cost, margin))
    assert (cost.derivative(margin) < 0).all()


def test_linear_cost_is_the_limit_of_small_alpha():
    """The values differ from it by a constant, 1/alpha - r0, and the derivatives not at all."""
    margin, linear = below(R0), ExponentialCost(0.0, R0)
    errors = []
    for alpha in (1e-1, 1e-2, 1e-3, 1e-4):
        cost = ExponentialCost(alpha, R0)
        slope_error = (cost.derivative(margin) - linear.derivative(margin)).abs().max().item()
        value_error = (cost(margin) - (1 / alpha - R0) - linear(margin)).abs().max().item()
        # exp(-alpha R) = 1 - alpha R + (alpha R)^2 / 2 - ...
        assert slope_error <= alpha * R0
        assert value_error <= alpha * R0**2
        errors.append(slope_error)
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cost_vanishes_from_the_threshold_on(alpha, dtype):
    cost = ExponentialCost(alpha, R0)
    beyond = torch.tensor([R0, R0 + 1e-3, 1.0, 1e6, INF], dtype=dtype)
    just_below = torch.nextafter(torch.tensor([R0], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    for function in (cost, cost.derivative):
        assert (function(beyond) == 0).all()
        assert function(beyond).dtype == function(just_below).dtype == dtype
        assert function(just_below).item() != 0


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_a_margin_that_was_not_found_costs_nothing(alpha):
    cost, margin = ExponentialCost(alpha, R0), torch.tensor([math.nan, 0.1])
    for function in (cost, cost.derivative):
        value = function(margin)
        assert value[0] == 0
        assert value[1] != 0


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_cost_keeps_the_shape(shape):
    margin = torch.full(shape, 0.1)
    assert ExponentialCost(3.0, R0)(margin).shape == shape
    assert ExponentialCost(3.0, R0).derivative(margin).shape == shape


@pytest.mark.parametrize("alpha", [3.0, 0.5])
def test_without_threshold(alpha):
    cost, margin = ExponentialCost(alpha, INF), torch.tensor([0.1, 5.0], dtype=torch.float64)
    torch.testing.assert_close(cost(margin), torch.exp(-alpha * margin) / alpha)
    torch.testing.assert_close(cost.derivative(margin), -torch.exp(-alpha * margin))


@pytest.mark.parametrize("alpha", [-1.0, -1e-9, INF, -INF, math.nan])
def test_bad_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match=f"alpha must be finite and at least 0, got {alpha}"):
        ExponentialCost(alpha=alpha)


@pytest.mark.parametrize("r0", [0.0, -1.0, -INF, math.nan])
def test_bad_r0_is_refused(r0):
    with pytest.raises(ValueError, match=f"r0 must be positive, got {r0}"):
        ExponentialCost(r0=r0)


def test_linear_cost_without_threshold_is_refused():
    """h = r0 - R has no finite value there."""
    with pytest.raises(ValueError, match="finite r0"):
        ExponentialCost(alpha=0.0, r0=INF)


def test_exponential_cost_cannot_be_changed():
    with pytest.raises(AttributeError):
        ExponentialCost().alpha = -1.0


# --- derivatives of any cost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_callable_is_differentiated_by_autograd(dtype):
    margin = below(R0, dtype)
    derivative = cost_derivative(parabola, margin)
    assert derivative.dtype == dtype
    torch.testing.assert_close(derivative, -2 * (R0 - margin))


def test_a_plain_callable_is_differentiated_without_grad_mode():
    margin = below(R0)
    with torch.no_grad():
        derivative = cost_derivative(parabola, margin)
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(derivative, -2 * (R0 - margin))


def test_a_plain_callable_is_differentiated_inside_inference_mode():
    """Enabling gradients is not enough there; a silent zero would pass for a constant cost."""
    with torch.inference_mode():
        margin = below(R0)
        derivative = cost_derivative(parabola, margin)
    torch.testing.assert_close(derivative.clone(), -2 * (R0 - margin.clone()))


def test_the_margin_given_is_left_alone():
    margin = below(R0).requires_grad_()
    derivative = cost_derivative(parabola, margin)
    assert margin.grad is None
    assert not derivative.requires_grad


def test_a_costs_own_derivative_is_used():
    cost, margin = Recording(), below(R0)
    assert (cost_derivative(cost, margin) == -7).all()
    assert cost.calls == 1


def test_exponential_derivative_is_the_same_either_way():
    cost, margin = ExponentialCost(3.0, R0), below(R0)
    torch.testing.assert_close(cost_derivative(cost.__call__, margin), cost_derivative(cost, margin))


@pytest.mark.parametrize("constant", [torch.ones_like, lambda R: 0 * R + 3, lambda R: torch.tensor(2.0)])
def test_constant_cost_has_derivative_zero(constant):
    margin = below(R0)
    assert torch.equal(cost_derivative(constant, margin), torch.zeros_like(margin))


def test_anything_callable_is_a_cost():
    assert isinstance(ExponentialCost(), Cost)
    assert isinstance(parabola, Cost)
    assert not isinstance(3.0, Cost)


# --- the paper's requirements -----------------------------------------------------------------------------------


def wave(margin):
    """Decreasing throughout, convex on the second half of (0, R0) only."""
    return torch.cos(math.pi * margin / R0)


SOUND = {
    "exponential": ExponentialCost(3.0, R0),
    "steep exponential": ExponentialCost(40.0, R0),
    "linear": ExponentialCost(0.0, R0),
    "threshold inside the interval": ExponentialCost(3.0, R0 / 2),
    "threshold beyond the interval": ExponentialCost(3.0, 2 * R0),
    "parabola": parabola,
    "hinge": lambda R: (R0 / 3 - R).clamp(min=0),
    "reciprocal": lambda R: 1 / (R + 0.01),
    "large values": lambda R: 1e9 * parabola(R),
    "small values": lambda R: 1e-9 * parabola(R),
    "linear up to rounding": lambda R: -(3 + R).pow(2 / 3).pow(1.5),
}
INCREASING = {
    "linear": lambda R: R,
    "convex": torch.square,
    "at the end only": lambda R: (R - 0.9 * R0).square(),
    "small values": lambda R: 1e-9 * R,
}
CONCAVE = {
    "parabola": lambda R: -R.square(),
    "wave": wave,
    "small values": lambda R: -1e-9 * R.square(),
}


def checked(cost, r0):
    """Return what ``check_cost`` says, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return check_cost(cost, r0), caught


@pytest.mark.parametrize("name", SOUND)
def test_a_decreasing_convex_cost_passes_in_silence(name):
    passed, caught = checked(SOUND[name], R0)
    assert passed is True
    assert caught == []


@pytest.mark.parametrize("cost", [torch.ones_like, lambda R: parabola(R).detach()])
def test_a_cost_without_a_slope_is_warned_about(cost):
    passed, (warning,) = checked(cost, R0)
    assert passed is False
    assert "does not change on (0, 0.25)" in str(warning.message)


def test_a_cost_is_a_function():
    with pytest.raises(TypeError, match=r"a cost is a function of margins.*got 'softplus'"):
        check_cost("softplus", R0)


@pytest.mark.parametrize("name", INCREASING)
def test_an_increasing_cost_is_warned_about(name):
    passed, (warning,) = checked(INCREASING[name], R0)
    assert passed is False
    assert "increases with the margin" in str(warning.message)
    assert "(0, 0.25)" in str(warning.message)
    assert "pulls the decision boundary towards" in str(warning.message)


@pytest.mark.parametrize("name", CONCAVE)
def test_a_cost_that_is_not_convex_is_warned_about(name):
    passed, (warning,) = checked(CONCAVE[name], R0)
    assert passed is False
    assert "not convex on (0, 0.25)" in str(warning.message)
    assert "conflicting dynamics" in str(warning.message)
    assert "small margins are no longer raised first" in str(warning.message)


def test_a_cost_with_both_faults_gets_both_warnings():
    passed, caught = checked(lambda R: torch.sin(math.pi * R / R0), R0)
    assert passed is False
    assert sorted("not convex" in str(warning.message) for warning in caught) == [False, True]


def test_warnings_are_ordinary_ones_and_point_at_the_caller():
    _, (warning,) = checked(torch.square, R0)
    assert warning.category is UserWarning
    assert warning.filename == __file__


def test_only_the_interval_up_to_r0_counts():
    def late_rise(margin):
        return (margin - R0).square()

    assert check_cost(late_rise, R0) is True
    with pytest.warns(UserWarning, match="increases"):
        assert check_cost(late_rise, 2 * R0) is False


def test_a_costs_own_derivative_is_what_is_checked():
    assert check_cost(Recording(), R0) is True


def test_a_cost_whose_derivative_is_nan_does_not_pass():
    passed, caught = checked(lambda R: (R - R0).sqrt(), R0)
    assert passed is False
    assert caught


@pytest.mark.parametrize("r0", [0.0, -1.0, INF, math.nan])
def test_check_cost_needs_a_finite_interval(r0):
    with pytest.raises(ValueError, match=f"r0 must be positive and finite, got {r0}"):
        check_cost(parabola, r0)


def test_a_cost_of_all_margins_together_is_refused():
    """Its gradient would be N times too small."""
    margin = below(R0)
    for cost in (lambda margin: parabola(margin).mean(), lambda margin: parabola(margin)[None]):
        with pytest.raises(
            ValueError, match=r"the cost is of every single margin.*shape \(50,\).*Leave out \.mean\(\)"
        ):
            cost_derivative(cost, margin)
        with pytest.raises(ValueError, match="every single margin"):
            check_cost(cost, R0)

    class Own:
        def __call__(self, margin):
            return parabola(margin)

        def derivative(self, margin):
            return -2 * (R0 - margin)[None]

    with pytest.raises(ValueError, match="the cost's derivative is of every single margin"):
        cost_derivative(Own(), margin)
