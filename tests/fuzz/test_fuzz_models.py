"""Models that return anything, inputs and labels of any shape: a result that holds, or a message."""

import warnings
from types import SimpleNamespace

import torch
from fuzzing import fuzz, refused
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import dyart

SHAPES = st.one_of(
    st.just((5, 4)), st.just((5, 3)), st.just((5, 1, 4, 4)), st.lists(st.integers(0, 5), max_size=4).map(tuple)
)
FLOATS = st.sampled_from([torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16])
KINDS = st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8])
OUTPUTS = ("linear", "shape", "none", "tuple", "dict", "logits", "nan", "inf", "constant", "numpy", "list", "scalar")


def model(kind, shape, dtype, classes):
    def forward(x: Tensor):
        flat = x.reshape(len(x), -1) if x.ndim and x.numel() else x.reshape(len(x) if x.ndim else 1, 0)
        weights = torch.linspace(-1, 1, max(flat.shape[1] * classes, 1), dtype=x.dtype)[: flat.shape[1] * classes]
        logits = flat @ weights.reshape(flat.shape[1], classes) + torch.linspace(0, 0.3, classes, dtype=x.dtype)
        return {
            "linear": lambda: logits,
            "shape": lambda: torch.zeros(shape, dtype=dtype),
            "none": lambda: None,
            "tuple": lambda: (logits, logits),
            "dict": lambda: {"logits": logits},
            "logits": lambda: SimpleNamespace(logits=logits),
            "nan": lambda: logits * torch.nan,
            "inf": lambda: logits + torch.inf,
            "constant": lambda: logits * 0,
            "numpy": lambda: logits.detach().numpy(),
            "list": lambda: [[1.0]] * len(x),
            "scalar": lambda: 1.0,
        }[kind]()

    return forward


@fuzz
@given(
    st.sampled_from(OUTPUTS),
    SHAPES,
    SHAPES,
    KINDS,
    FLOATS,
    st.integers(0, 4),
    st.sampled_from(["none", "right", "long", "negative", "float", "shape"]),
    st.sampled_from(["linf", "l2", "l1"]),
    st.sampled_from(["fast", "fab", "apgd"]),
)
def test_any_model(output, shape, returned, kind, dtype, classes, labelled, norm, solver):
    size = torch.Size(shape).numel()
    inputs = torch.linspace(0, 1, max(size, 1))[:size].reshape(shape).to(dtype)
    count = shape[0] if shape else 1
    labels = {
        "none": None,
        "right": torch.arange(count) % max(classes, 1),
        "long": torch.arange(count + 1),
        "negative": torch.full((count,), -1),
        "float": torch.zeros(count),
        "shape": torch.zeros(count, 1, dtype=torch.int64),
    }[labelled]
    found = None
    with warnings.catch_warnings(), refused(ValueError, TypeError):
        warnings.simplefilter("ignore")
        found = dyart.closest_boundary_points(
            model(output, returned, kind, classes), inputs, labels, norm=norm, solver=solver, steps=3
        )
    if found is None:
        return
    assert found.points.shape == inputs.shape
    assert found.margin.shape == found.found.shape == (len(inputs),)
    assert bool(found.margin.isfinite()[found.found].all())
    assert bool(found.margin.isnan()[~found.found].all())
    assert bool((found.margin[found.found] >= 0).all())
    assert bool(((found.points >= 0) & (found.points <= 1)).all())
