"""Which precision attacks have, and what a compiled view does with batches of other sizes."""

import warnings
from pathlib import Path

import pytest
import torch
import torch._inductor.compile_fx
from torch import nn

from dyart.attacks.radius import Radius
from dyart.evaluation.evaluate import _usual_precision
from dyart.evaluation.settings import Settings
from dyart.evaluation.views import ADVICE, Count, View, attack_view


def settings(radii, norm="linf", bounds=(0.0, 1.0)) -> Settings:
    return Settings(tuple(map(Radius, radii)), "apgd", norm, False, 0, bounds, 8, 2, 1)


@pytest.mark.parametrize(
    ("radii", "norm", "bounds", "capability", "expected"),
    [
        (["2/255", "8/255"], "linf", (0.0, 1.0), (9, 0), "bf16"),
        (["8/255", "1/255"], "linf", (0.0, 1.0), (9, 0), "tf32"),
        (["2"], "linf", (0.0, 255.0), (8, 0), "bf16"),
        (["2/255"], "linf", (0.0, 255.0), (8, 0), "tf32"),
        (["2/255"], "linf", None, (8, 0), "tf32"),
        (["0.5"], "l2", (0.0, 1.0), (9, 0), "tf32"),
        (["8/255"], "linf", (0.0, 1.0), (7, 5), "tf32"),
        ([], "linf", (0.0, 1.0), (9, 0), "tf32"),
    ],
)
def test_bf16_where_radii_are_coarse(monkeypatch, radii, norm, bounds, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert _usual_precision(settings(radii, norm, bounds), torch.device("cuda")) == expected


def test_a_cpu_computes_in_float32():
    assert _usual_precision(settings(["8/255"]), torch.device("cpu")) == "ieee"


@pytest.mark.parametrize(
    ("count", "calls"), [(1, []), (3, []), (5, [16]), (16, [16]), (18, [16]), (20, [16, 16]), (37, [16, 16, 16])]
)
def test_a_compiled_view_agrees_with_the_model(monkeypatch, count, calls):
    """Filled up, as it is, too few, or divided: values and gradients are the model's, and the passes are counted."""
    sizes = []

    def compiled(module, on):
        def call(x):
            sizes.append(len(x))
            return module(x)

        return call

    monkeypatch.setattr("dyart.evaluation.views.compiled", compiled)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    plain = View(model, Count())
    view = attack_view(model, plain, torch.device("cpu"), "ieee", True, 16)
    x, weight = torch.rand(count, 1, 5, 5), torch.randn(count, 3)
    results = []
    for called in (model, view):
        leaf = x.clone().requires_grad_()
        logits = called(leaf)
        results.append((logits.detach(), torch.autograd.grad((weight * logits).sum(), leaf)[0]))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert sizes == calls
    assert (view.count.forward, view.count.backward) == (count, count)


def test_the_compiler_s_advice_about_tf32_is_left_out_and_no_other_warning(recwarn):
    """Where float32 is meant to be float32; as torch's compiler says it on a GPU, at the first call."""
    model = nn.Linear(4, 3)

    def compiling(x):
        _warn_as_the_compiler()
        warnings.warn("something else", UserWarning, stacklevel=2)
        return model(x)

    view = View(model, Count(), fast=compiling, size=8)
    torch.testing.assert_close(view(torch.ones(8, 4)), model(torch.ones(8, 4)))
    assert [str(warning.message) for warning in recwarn] == ["something else"]


def _warn_as_the_compiler():
    source = Path(torch._inductor.compile_fx.__file__).read_text(encoding="utf-8")
    assert ADVICE in source, "torch says it in other words now"
    warnings.warn(f"{ADVICE}. Consider ...", UserWarning, stacklevel=2)
