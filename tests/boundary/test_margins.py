import math

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.func import grad, jvp

from dyart.boundary.margins import boundary_value, closest_rival, logit_margin, rivals_by_logit, soft_logit_margin

INF = math.inf
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BETAS = [0.01, 0.3, 5.0, 70.0, 1000.0]
LARGEST = {torch.float16: 6e4, torch.bfloat16: 1e30, torch.float32: 1e30, torch.float64: 1e200}

LOWEST = torch.finfo(torch.float32).min


@st.composite
def problems(draw, dtypes=DTYPES, limit=None, max_classes=9):
    """Logits of the drawn dtype with their labels; ``limit`` None reaches towards the ends of the dtype."""
    dtype = draw(st.sampled_from(dtypes))
    rows = draw(st.integers(1, 3))
    classes = draw(st.integers(2, max_classes))
    largest = LARGEST[dtype] if limit is None else limit
    entry = st.one_of(st.floats(-largest, largest), st.floats(-3, 3), st.sampled_from([0.0, 1.0, largest, -largest]))
    row = st.lists(entry, min_size=classes, max_size=classes)
    logits = torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64).to(dtype)
    labels = torch.tensor(draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows)))
    return logits, labels


def reference(logits, labels, beta=None):
    """Python floats, straight from the definitions, without any shift: for logits of moderate size."""
    values = []
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        others = [z for k, z in enumerate(row) if k != label]
        top = max(others) if beta is None else math.log(math.fsum(math.exp(beta * z) for z in others)) / beta
        values.append(row[label] - top)
    return torch.tensor(values, dtype=torch.float64)


def separated_logits(rows, classes, seed=0):
    """Float64 logits whose rows have distinct entries, at least 0.5 apart: far from every tie."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(classes, generator=generator) for _ in range(rows)])
    return order.double() + 0.5 * torch.rand(rows, classes, generator=generator, dtype=torch.float64)


def every_label(logits):
    """Repeat every row of the logits once for each label."""
    rows, classes = logits.shape
    return logits.repeat_interleave(classes, dim=0), torch.arange(classes).repeat(rows)


# --- values -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(problems(limit=20.0))
def test_logit_margin_equals_the_definition(problem):
    logits, labels = problem
    phi = logit_margin(logits, labels)
    torch.testing.assert_close(phi.double(), reference(logits, labels), rtol=1e-6, atol=0)
    assert phi.dtype == (torch.float64 if logits.dtype == torch.float64 else torch.float32)


@settings(deadline=None, max_examples=60)
@given(problems(limit=20.0), st.sampled_from([0.01, 0.3, 5.0, 30.0]))
def test_soft_logit_margin_equals_the_definition(problem, beta):
    logits, labels = problem
    double = logits.dtype == torch.float64
    Phi = soft_logit_margin(logits, labels, beta)
    torch.testing.assert_close(Phi.double(), reference(logits, labels, beta), rtol=1e-6, atol=1e-11 if double else 1e-5)
    assert Phi.dtype == (torch.float64 if double else torch.float32)


def test_margins_of_a_worked_example():
    logits = torch.tensor([[2.0, 0.5, -1.0], [2.0, 0.5, -1.0]])
    labels = torch.tensor([0, 2])
    assert logit_margin(logits, labels).tolist() == [1.5, -3.0]
    expected = [2 - math.log(math.exp(1.0) + math.exp(-2.0)) / 2, -1 - math.log(math.exp(4.0) + math.exp(1.0)) / 2]
    torch.testing.assert_close(soft_logit_margin(logits, labels, beta=2.0), torch.tensor(expected))


def test_default_beta_is_the_papers():
    logits, labels = every_label(separated_logits(3, 4))
    assert torch.equal(soft_logit_margin(logits, labels), soft_logit_margin(logits, labels, beta=5.0))


def test_boundary_value_chooses_the_margin_function():
    logits, labels = every_label(separated_logits(3, 4))
    assert torch.equal(boundary_value(logits, labels, "exact", 0.7), logit_margin(logits, labels))
    assert torch.equal(boundary_value(logits, labels, "soft", 0.7), soft_logit_margin(logits, labels, 0.7))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_of_any_integer_dtype(dtype):
    logits, labels = every_label(separated_logits(3, 4))
    for function in (logit_margin, soft_logit_margin, closest_rival, rivals_by_logit):
        assert torch.equal(function(logits, labels.to(dtype)), function(logits, labels))


def test_empty_batch():
    logits, labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    assert logit_margin(logits, labels).shape == (0,)
    assert soft_logit_margin(logits, labels).shape == (0,)
    assert closest_rival(logits, labels).shape == (0,)
    assert rivals_by_logit(logits, labels).shape == (0, 3)


def test_arguments_are_left_alone():
    logits, labels = every_label(separated_logits(2, 3))
    before = logits.clone(), labels.clone()
    for function in (logit_margin, soft_logit_margin, closest_rival, rivals_by_logit):
        function(logits, labels)
    assert torch.equal(logits, before[0])
    assert torch.equal(labels, before[1])


@settings(deadline=None, max_examples=60)
@given(problems())
@example((torch.tensor([[1e-45, 0.0], [0.0, 1e-45], [1.0, 1.0]]), torch.tensor([0, 0, 0])))
def test_sign_of_the_margin_says_whether_the_argmax_is_right(problem):
    logits, labels = problem
    phi = logit_margin(logits, labels)
    for row, label, value in zip(logits.double().tolist(), labels.tolist(), phi.tolist(), strict=True):
        others = [z for k, z in enumerate(row) if k != label]
        assert (value > 0) == (row[label] > max(others))
        assert (value < 0) == (row[label] < max(others))
    clear = phi != 0
    assert torch.equal((phi > 0)[clear], (logits.argmax(dim=1) == labels)[clear])


# --- soft against exact -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(problems(max_classes=2), st.sampled_from(BETAS))
@example((torch.full((2, 2), LOWEST), torch.tensor([0, 1])), 0.3)
def test_two_classes_soft_equals_exact_bit_for_bit(problem, beta):
    logits, labels = problem
    assert torch.equal(soft_logit_margin(logits, labels, beta), logit_margin(logits, labels))


@settings(deadline=None, max_examples=60)
@given(problems(), st.sampled_from(BETAS))
@example((torch.full((2, 7), 6e4, dtype=torch.float16), torch.tensor([0, 6])), 1000.0)
@example((torch.full((2, 7), -1e30), torch.tensor([0, 6])), 0.01)
@example((torch.tensor([[3e38, -3e38, 3e38], [-3e38, 3e38, 3e38]]), torch.tensor([0, 2])), 1000.0)
def test_soft_margin_is_below_the_exact_one_by_at_most_log_rivals_over_beta(problem, beta):
    logits, labels = problem
    phi, Phi = logit_margin(logits, labels), soft_logit_margin(logits, labels, beta)
    assume(bool(phi.isfinite().all()))  # two float32 logits near the very end of the range may be inf apart
    assert Phi.isfinite().all()
    gap, bound = phi.double() - Phi.double(), math.log(logits.shape[1] - 1) / beta
    # Lower side: the excess is at least 0 and rounding is monotone. Upper side: one rounding of a number of
    # size |phi|, and a few of a number of size ``bound``.
    assert (gap >= 0).all()
    assert (gap <= bound + torch.finfo(phi.dtype).eps * (phi.double().abs() + 4 * bound)).all()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_the_gap_between_the_margins_is_attained_at_both_ends(classes, beta):
    label = torch.tensor([0])
    tied = torch.zeros(1, classes, dtype=torch.float64)
    gap = logit_margin(tied, label) - soft_logit_margin(tied, label, beta)
    torch.testing.assert_close(gap.item(), math.log(classes - 1) / beta, rtol=1e-12, atol=1e-15)
    alone = torch.full((1, classes), -1e9, dtype=torch.float64)
    alone[0, 1] = 0
    assert (logit_margin(alone, label) - soft_logit_margin(alone, label, beta)).item() == 0


@settings(deadline=None, max_examples=60)
@given(problems(dtypes=[torch.float64], limit=50.0), st.sampled_from(BETAS))
def test_on_the_soft_boundary_the_exact_margin_is_between_zero_and_log_rivals_over_beta(problem, beta):
    """The paper's proposition on the soft decision boundary."""
    logits, labels = problem
    rows = torch.arange(len(labels))
    for _ in range(2):  # the second shift removes the rounding of the first
        logits[rows, labels] -= soft_logit_margin(logits, labels, beta)
    assert (soft_logit_margin(logits, labels, beta).abs() <= 1e-11).all()
    phi = logit_margin(logits, labels)
    assert (phi >= -1e-11).all()
    assert (phi <= math.log(logits.shape[1] - 1) / beta + 1e-11).all()


@settings(deadline=None, max_examples=60)
@given(problems(dtypes=[torch.float64], limit=20.0), st.floats(0.01, 100), st.floats(1.01, 10))
def test_soft_margin_rises_towards_the_exact_one_with_beta(problem, beta, factor):
    logits, labels = problem
    assert (soft_logit_margin(logits, labels, factor * beta) >= soft_logit_margin(logits, labels, beta) - 1e-10).all()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_margins_do_not_change_when_all_logits_shift(dtype, beta):
    # Halves and a power of two: the sums are exact in every dtype.
    logits = torch.tensor([[0.5, -1.0, 2.0, 1.5], [0.0, 0.0, 0.0, 0.0], [3.5, -2.0, 1.0, 3.5]], dtype=dtype)
    logits, labels = every_label(logits)
    assert torch.equal(logit_margin(logits + 32, labels), logit_margin(logits, labels))
    assert torch.equal(soft_logit_margin(logits + 32, labels, beta), soft_logit_margin(logits, labels, beta))


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("beta", [None, 0.01, 0.7, 5.0])
def test_gradients_agree_with_finite_differences(classes, beta):
    logits, labels = every_label(separated_logits(1, classes))

    def value(z):
        return logit_margin(z, labels) if beta is None else soft_logit_margin(z, labels, beta)

    assert torch.autograd.gradcheck(value, logits.requires_grad_(), check_forward_ad=True)


def test_soft_margin_has_the_right_second_derivative():
    logits, labels = every_label(separated_logits(1, 4))
    assert torch.autograd.gradgradcheck(lambda z: soft_logit_margin(z, labels, 0.7), logits.requires_grad_())


def test_gradients_in_closed_form():
    """One at the label; minus one at the largest rival, or minus the rivals' softmax of beta z."""
    logits, labels = every_label(separated_logits(3, 5))
    own = torch.nn.functional.one_hot(labels, 5).bool()
    rivals = logits.masked_fill(own, -INF)
    exact = grad(lambda z: logit_margin(z, labels).sum())(logits)
    soft = grad(lambda z: soft_logit_margin(z, labels, 0.7).sum())(logits)
    torch.testing.assert_close(exact, own.double() - torch.nn.functional.one_hot(rivals.argmax(1), 5).double())
    torch.testing.assert_close(soft, own.double() - torch.softmax(0.7 * rivals, 1))


@settings(deadline=None, max_examples=60)
@given(problems(), st.sampled_from(BETAS))
@example((torch.full((2, 5), 1e30), torch.tensor([0, 4])), 1000.0)
@example((torch.full((2, 5), 6e4, dtype=torch.float16), torch.tensor([0, 4])), 1000.0)
def test_gradients_of_any_finite_logits_are_finite_and_sum_to_zero(problem, beta):
    logits, labels = problem
    logits.requires_grad_()
    # Softmax weights are rounded to the dtype of the logits on the way back.
    tolerance = 4 * torch.finfo(logits.dtype).eps * logits.shape[1]
    for value in (logit_margin(logits, labels), soft_logit_margin(logits, labels, beta)):
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert gradient.dtype == logits.dtype
        assert gradient.isfinite().all()
        assert (gradient.gather(1, labels[:, None]) == 1).all()
        assert (gradient.double().sum(dim=1).abs() <= tolerance).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_ties_the_exact_gradient_follows_one_rival_and_the_soft_one_all(dtype):
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([0, 2])
    (exact,) = torch.autograd.grad(logit_margin(logits, labels).sum(), logits)
    assert (exact == 1).sum(dim=1).tolist() == [1, 1]
    assert (exact == -1).sum(dim=1).tolist() == [1, 1]
    assert (exact == 0).sum(dim=1).tolist() == [3, 3]
    assert exact[0, 0] == exact[1, 2] == 1
    assert exact[0, 4] == 0
    # At a beta this large the trailing class of the first row weighs nothing.
    (soft,) = torch.autograd.grad(soft_logit_margin(logits, labels, 1000.0).sum(), logits)
    expected = torch.tensor([[1, -1 / 3, -1 / 3, -1 / 3, 0], [-1 / 4, -1 / 4, 1, -1 / 4, -1 / 4]], dtype=torch.float64)
    torch.testing.assert_close(soft.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("beta", [None, *BETAS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_mode_agrees_with_the_gradient(dtype, beta):
    logits, labels = every_label(separated_logits(3, 5).to(dtype))
    tangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)

    def value(z):
        return logit_margin(z, labels) if beta is None else soft_logit_margin(z, labels, beta)

    primal, slope = jvp(value, (logits,), (tangent,))
    assert torch.equal(primal, value(logits))
    gradient = grad(lambda z: value(z).sum())(logits)
    torch.testing.assert_close(slope, (gradient * tangent).sum(dim=1), rtol=1e-5, atol=1e-5)
    assert slope.abs().min() > 0


@pytest.mark.parametrize("beta", [None, *BETAS])
def test_forward_mode_of_huge_and_masked_logits_is_finite(beta):
    logits = torch.tensor([[1e30, -1e30, 5.0, 1e30], [1.0, 2.0, -INF, 0.0]])
    labels = torch.tensor([0, 0])

    def value(z):
        return logit_margin(z, labels) if beta is None else soft_logit_margin(z, labels, beta)

    _, slope = jvp(value, (logits,), (torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0]]),))
    assert slope.tolist() == [1, 1]


# --- masked classes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [[0], [4], [0, 4], [0, 1, 4]])
def test_masked_classes_count_as_absent(masked, dtype, beta):
    """-inf logits, as long as the label and one rival are finite."""
    full = separated_logits(4, 5).to(dtype)
    kept = [k for k in range(5) if k not in masked]
    reduced, reduced_labels = every_label(full[:, kept])
    full[:, masked] = -INF
    logits = full.repeat_interleave(len(kept), dim=0).requires_grad_()
    labels = torch.tensor(kept)[reduced_labels]
    reduced.requires_grad_()
    for function, arguments in ((logit_margin, ()), (soft_logit_margin, (beta,))):
        value = function(logits, labels, *arguments)
        expected = function(reduced, reduced_labels, *arguments)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        (expected_gradient,) = torch.autograd.grad(expected.sum(), reduced)
        assert (gradient[:, masked] == 0).all()
        torch.testing.assert_close(gradient[:, kept], expected_gradient)
    assert torch.equal(closest_rival(logits, labels), torch.tensor(kept)[closest_rival(reduced, reduced_labels)])


def test_where_every_other_class_is_masked_both_margins_are_infinite():
    """And pass a finite gradient: one such example must not spoil those of a batch."""
    logits = torch.full((1, 4), -INF)
    logits[0, 2] = 1.5
    logits.requires_grad_()
    for margin in (logit_margin, soft_logit_margin):
        value = margin(logits, torch.tensor([2]))
        assert value.item() == INF
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("label", [0, 1, 2, 3])
def test_rivals_by_logit_never_holds_the_label_when_other_classes_are_masked(label):
    logits = torch.tensor([[1.0, 3.0, 2.0, 4.0]])
    masked = (label + 1) % 4
    logits[0, masked] = -INF
    rivals = rivals_by_logit(logits, torch.tensor([label]))[0].tolist()
    assert sorted(rivals) == [k for k in range(4) if k != label]
    assert rivals[-1] == masked


# --- rivals -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(problems())
@example((torch.full((2, 2), LOWEST), torch.tensor([0, 1])))
def test_closest_rival_has_the_largest_logit_but_the_labels(problem):
    logits, labels = problem
    rival = closest_rival(logits, labels)
    assert rival.shape == labels.shape
    for row, label, found in zip(logits.double().tolist(), labels.tolist(), rival.tolist(), strict=True):
        assert found != label
        assert row[found] == max(z for k, z in enumerate(row) if k != label)


@settings(deadline=None, max_examples=60)
@given(problems())
def test_rivals_by_logit_are_all_other_classes_in_falling_order(problem):
    logits, labels = problem
    rivals = rivals_by_logit(logits, labels)
    classes = range(logits.shape[1])
    assert rivals.shape == (len(labels), len(classes) - 1)
    for row, label, order in zip(logits.double().tolist(), labels.tolist(), rivals.tolist(), strict=True):
        # Python's sort is stable too: of equal logits the lower class comes first.
        assert order == sorted((k for k in classes if k != label), key=lambda k: -row[k])
    assert torch.equal(rivals[:, 0], closest_rival(logits, labels))


def test_exact_gradient_follows_the_closest_rival():
    logits, labels = every_label(separated_logits(3, 5))
    gradient = grad(lambda z: logit_margin(z, labels).sum())(logits)
    assert torch.equal(gradient.argmin(dim=1), closest_rival(logits, labels))
