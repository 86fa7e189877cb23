"""What the margin functions refuse, and in which words."""

import math

import pytest
import torch

from dyart.boundary.margins import closest_rival, logit_margin, rivals_by_logit, soft_logit_margin

FUNCTIONS = [logit_margin, soft_logit_margin, closest_rival, rivals_by_logit]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(3, 1), (3,), (3, 2, 2), ()])
def test_logits_without_two_classes_are_refused(function, shape):
    with pytest.raises(ValueError, match=r"logits must be \[N, K\] with K >= 2") as error:
        function(torch.zeros(shape), torch.zeros(3, dtype=torch.long))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (3, 5), ()])
def test_labels_of_another_shape_are_refused(function, shape):
    with pytest.raises(ValueError, match=r"labels must be \[3\]") as error:
        function(torch.zeros(3, 5), torch.zeros(shape, dtype=torch.long))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_integer_logits_are_refused(function, dtype):
    with pytest.raises(TypeError, match="floating point.*" + str(dtype)):
        function(torch.zeros(3, 5, dtype=dtype), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("beta", [0.0, 0, -1.0, math.inf, -math.inf, math.nan])
def test_beta_that_is_not_positive_and_finite_is_refused(beta):
    with pytest.raises(ValueError, match=f"beta must be positive and finite.*{beta}"):
        soft_logit_margin(torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), beta)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("label", [-1, 5])
def test_labels_out_of_range_are_refused(function, label):
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        function(torch.zeros(3, 5), torch.tensor([0, label, 0]))
