"""GroupNorm by way of the channels: torch's values and derivatives, in every layout and dtype; where it is used."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dyart.models import build, layers

SHAPES = {"images": (3, 12, 5, 4), "a pixel": (3, 12, 1, 1), "sequences": (2, 12, 7), "volumes": (2, 12, 3, 2, 2)}


def case(shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(size, generator=generator, dtype=dtype) for size in (shape, shape[1], shape[1]))
    return 3 * x + 2, weight, bias


@pytest.mark.parametrize("groups", [1, 4, 12])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_torchs(shape, groups):
    x, *affine = (tensor.requires_grad_() for tensor in case(shape))
    wanted, got = F.group_norm(x, groups, *affine, 1e-5), layers.group_norm(x, groups, *affine, 1e-5)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    slope = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    for one, other in zip(*(torch.autograd.grad(y, (x, *affine), slope) for y in (got, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_without_weight_and_bias():
    x, *_ = case(SHAPES["images"])
    torch.testing.assert_close(layers.group_norm(x, 3, None, None, 1e-5), F.group_norm(x, 3))


def test_channels_last_stay_last_and_half_precision_stays_half():
    x, weight, bias = case((4, 16, 6, 6), torch.float32)
    last = x.to(torch.bfloat16, memory_format=torch.channels_last)
    got = layers.group_norm(last, 4, weight, bias, 1e-5)
    assert got.dtype == torch.bfloat16
    assert got.is_contiguous(memory_format=torch.channels_last)
    # Computed in float32: one rounding away.
    wanted = F.group_norm(last.float(), 4, weight, bias)
    torch.testing.assert_close(got.float(), wanted, rtol=2**-8, atol=1e-6)


def test_a_mean_far_from_zero_costs_hardly_more_digits_than_torchs():
    x, weight, bias = case((2, 8, 16, 16), torch.float32)
    far = 1000 + x
    wanted = F.group_norm(far.double(), 2, weight.double(), bias.double())
    errors = [
        (got.double() - wanted).abs().max()
        for got in (layers.group_norm(far, 2, weight, bias, 1e-5), F.group_norm(far, 2, weight, bias))
    ]
    assert errors[0] < 4 * errors[1] < 1e-3


def test_it_is_compiled_to_the_same():
    """As on a GPU, where alone the layer takes this way."""
    x, weight, bias = case((4, 16, 6, 6), torch.float32)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    compiled = torch.compile(layers.group_norm, fullgraph=True, backend="aot_eager")
    got, wanted = compiled(x, 4, weight, bias, 1e-5), F.group_norm(x, 4, weight, bias)
    torch.testing.assert_close(got, wanted)
    slopes = (torch.autograd.grad(y.square().sum(), x)[0] for y in (got, wanted))
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)


def test_the_layer_takes_either_way(monkeypatch):
    norm, (x, *_) = layers.GroupNorm(4, 12).double(), case(SHAPES["images"])
    assert not layers.by_channels(x)
    wanted, ways = norm(x), []
    monkeypatch.setattr(layers, "by_channels", lambda x: True)
    own = layers.group_norm
    monkeypatch.setattr(layers, "group_norm", lambda *words: ways.append(own(*words)) or ways[-1])
    torch.testing.assert_close(norm(x), wanted)
    assert len(ways) == 1


def test_it_can_be_scripted():
    norm = layers.GroupNorm(4, 12)
    x, *_ = case(SHAPES["images"], torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that scripting is old
        torch.testing.assert_close(torch.jit.script(norm)(x), norm(x))


def test_networks_have_it_and_on_a_cpu_it_is_torchs_own(monkeypatch):
    model = build("resnet18", 4, (3, 8, 8), normalization="group").eval()
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert norms
    assert all(type(norm) is layers.GroupNorm for norm in norms)

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(layers, "group_norm", never)
    norm, (x, *_) = layers.GroupNorm(4, 12), case(SHAPES["images"], torch.float32)
    assert torch.equal(norm(x), F.group_norm(x, 4, norm.weight, norm.bias))
    torch.compile(norm, backend="eager")(x)


def test_a_layer_that_is_there_twice_is_replaced_twice_by_one():
    shared = nn.BatchNorm2d(8)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), shared, nn.Sequential(nn.Conv2d(8, 8, 1), shared), shared)
    model = layers.replace_batch_norm(model)
    assert not [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert type(model[1]) is layers.GroupNorm
    assert model[1] is model[2][1] is model[3]
