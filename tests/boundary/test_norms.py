import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dyart.boundary.norms import DUAL, NORMS, dual_norm, flat, norm

SHAPES = [(5,), (5, 7), (5, 3, 4), (5, 3, 4, 2)]
DTYPES = [torch.float32, torch.float64]

# No magnitudes below 1e-3 but zero: a test of its own looks at squares that underflow.
numbers = st.one_of(st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3), st.sampled_from([0.0, 1.0, -1.0]))
vectors = st.lists(numbers, min_size=1, max_size=8)


def by_hand(values, p):
    if p == "linf":
        return max(abs(v) for v in values)
    return math.fsum(abs(v) for v in values) if p == "l1" else math.hypot(*values)


def attaining_direction(x, p):
    """Return a vector of p-norm 1 whose inner product with ``x``, ``[D]``, is the dual norm of ``x``."""
    if p == "linf":
        return x.sign()
    if p == "l2":
        return x / math.hypot(*x.tolist())
    direction = torch.zeros_like(x)
    largest = x.abs().argmax()
    direction[largest] = x[largest].sign()
    return direction


def random_tensor(shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(NORMS), vectors)
def test_norm_equals_the_definition(p, values):
    assert norm(torch.tensor([values], dtype=torch.float64), p).item() == pytest.approx(by_hand(values, p), rel=1e-12)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_norm_per_example_whatever_the_shape(shape, dtype, p):
    x = random_tensor(shape, dtype)
    expected = torch.tensor([by_hand(example.flatten().tolist(), p) for example in x], dtype=dtype)
    dual = torch.tensor([by_hand(example.flatten().tolist(), DUAL[p]) for example in x], dtype=dtype)
    assert norm(x, p).dtype == dtype
    torch.testing.assert_close(norm(x, p), expected)
    torch.testing.assert_close(dual_norm(x, p), dual)


@pytest.mark.parametrize("p", NORMS)
def test_memory_layout_does_not_matter(p):
    x = random_tensor((5, 3, 4, 2))
    expected = norm(x, p)
    torch.testing.assert_close(norm(x.to(memory_format=torch.channels_last), p), expected)
    torch.testing.assert_close(norm(x.transpose(1, 3), p), expected)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("shape", [(0,), (0, 7), (0, 3, 4, 2)])
def test_empty_batch(shape, p):
    assert norm(torch.zeros(shape), p).shape == (0,)
    assert dual_norm(torch.zeros(shape), p).shape == (0,)
    assert flat(torch.zeros(shape)).shape == (0, math.prod(shape[1:]))


@pytest.mark.parametrize("shape", SHAPES)
def test_flat_keeps_one_row_per_example_in_order(shape):
    x = torch.arange(math.prod(shape)).reshape(shape)
    assert flat(x).shape == (5, math.prod(shape[1:]))
    assert torch.equal(flat(x).flatten(), x.flatten())


def test_duals_are_conjugate():
    order = {"linf": math.inf, "l2": 2.0, "l1": 1.0}
    assert set(NORMS) == set(order) == set(DUAL)
    for p, q in DUAL.items():
        assert 1 / order[p] + 1 / order[q] == 1
        assert DUAL[q] == p


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(NORMS), st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_hoelders_inequality(p, pairs):
    x, y = torch.tensor(pairs, dtype=torch.float64).T[:, None]
    bound = (norm(x, p) * dual_norm(y, p)).item()
    assert abs((x * y).sum().item()) <= bound * (1 + 1e-12)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(NORMS), vectors.filter(any))
def test_hoelders_inequality_is_attained(p, values):
    x = torch.tensor(values, dtype=torch.float64)
    direction = attaining_direction(x, p)
    assert norm(direction[None], p).item() == pytest.approx(1, rel=1e-12)
    assert dual_norm(x[None], p).item() == pytest.approx((direction @ x).item(), rel=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(NORMS), vectors, st.floats(-100, 100))
def test_norms_are_homogeneous(p, values, factor):
    x = torch.tensor([values], dtype=torch.float64)
    assert norm(factor * x, p).item() == pytest.approx(abs(factor) * norm(x, p).item(), rel=1e-9, abs=1e-150)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_the_norm_has_dual_norm_one(shape, dtype, p):
    """The paper's first lemma: ||grad ||x||_p||_q = 1."""
    x = random_tensor(shape, dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(norm(x, p).sum(), x)
    torch.testing.assert_close(dual_norm(gradient, p), torch.ones(5, dtype=dtype))
    # Euler: the gradient of a homogeneous function gives the function back.
    torch.testing.assert_close((flat(gradient) * flat(x)).sum(dim=1), norm(x, p))


@pytest.mark.parametrize("p", NORMS)
def test_the_subgradient_at_ties_and_zero_coordinates_has_dual_norm_one(p):
    """The norm has no gradient at these points; autograd's choice is still a subgradient."""
    x = torch.tensor([[2.0, -2.0, 2.0, 0.0], [0.0, 0.0, -3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(norm(x, p).sum(), x)
    torch.testing.assert_close(dual_norm(gradient, p), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("p", NORMS)
def test_the_gradient_at_zero_is_finite(p):
    x = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(norm(x, p).sum(), x)
    assert (dual_norm(gradient, p) <= 1 + 1e-6).all()


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_norms_of_tiny_and_huge_entries(p, scale):
    """Also where the squares of the entries are outside the range of float32."""
    x = torch.tensor([[3.0, -4.0]])
    torch.testing.assert_close(norm(x * scale, p) / scale, norm(x, p))
