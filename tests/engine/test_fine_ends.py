"""The ends of a network in half precision are finer; nothing else about it changes."""

import pytest
import torch
from torch import nn

from dyart.engine.fine_ends import FirstConv2d, FirstLinear, LastLinear, ends_of, fine_ends
from dyart.engine.views import Views
from dyart.methods import AT, DyART
from dyart.models import build

CPU = torch.device("cpu")
HALVES = [torch.bfloat16, torch.float16]


def difference(layer):
    """The second input minus the first."""
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0], layer.weight[:, 1] = -1.0, 1.0
    return layer


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_moves_below_the_rounding_are_seen(dtype, kind):
    own = difference(nn.Conv2d(2, 1, 1, bias=False) if kind == "convolution" else nn.Linear(2, 1, bias=False))
    x = torch.tensor([0.7, 0.70005]).reshape((1, 2, 1, 1) if kind == "convolution" else (1, 2)).requires_grad_()
    with torch.autocast("cpu", dtype):
        assert abs(own(x).item() - 5e-5) > 4e-5
    fine_ends(nn.Sequential(own, nn.Linear(1, 1)))
    with torch.autocast("cpu", dtype):
        value = own(x)
    assert abs(value.item() - 5e-5) < 1e-6
    assert torch.autograd.grad(value.sum(), x)[0].flatten().tolist() == [-1.0, 1.0]


def test_a_compiler_does_not_leave_it_out():
    network = fine_ends(nn.Sequential(nn.Identity(), difference(nn.Linear(2, 1, bias=False)), nn.Linear(1, 1)))[:2]
    x = torch.tensor([[0.7, 0.70005], [-3.0, -2.9995]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        value = torch.compile(network)(x)
    torch.testing.assert_close(value.float(), torch.tensor([[5e-5], [5e-4]]), rtol=0.03, atol=0)
    assert torch.autograd.grad(value.sum(), x)[0].tolist() == [[-1.0, 1.0]] * 2


@pytest.mark.parametrize("bias", [True, False])
def test_logits_are_float32(bias):
    layer = nn.Linear(4, 3, bias=bias)
    x = torch.rand(5, 4)
    wanted = layer(x)
    fine_ends(nn.Sequential(nn.Linear(4, 4), layer))
    with torch.autocast("cpu", torch.bfloat16):
        logits = layer(x)
        assert layer.bfloat16()(x.bfloat16()).dtype == torch.float32
    assert torch.equal(logits, wanted)


def test_a_view_has_them_and_the_network_does_not():
    model = build("cnn", 10, (1, 28, 28)).eval()
    x = torch.rand(3, 1, 28, 28)
    view = Views(model, compile=False, half=torch.float16)
    kinds = {type(layer) for layer in view.search.modules()}
    assert {FirstConv2d, LastLinear} < kinds
    assert not {FirstConv2d, LastLinear} & {type(layer) for layer in model.modules()}
    assert torch.equal(view.search(x), model(x)), "without autocast nothing changes"
    with torch.no_grad():
        model.linear.weight.add_(1)
    assert torch.equal(view.search(x), model(x)), "weights are shared"
    with view.searching(CPU):
        assert torch.get_autocast_dtype("cpu") == torch.float16
        assert view.search(x).dtype == torch.float32
    plain = Views(model, compile=False)
    assert not {FirstConv2d, LastLinear} & {type(layer) for layer in plain.search.modules()}


def hooked():
    layer = nn.Conv2d(3, 4, 3)
    layer.register_forward_hook(lambda *_: None)
    return layer


class Own(nn.Linear):
    pass


@pytest.mark.parametrize("first", [hooked(), nn.Conv2d(8, 4, 3), nn.Conv2d(2, 4, 3, groups=2), Own(3, 4)])
def test_others_stay_as_they_are(first):
    kind = type(first)
    fine_ends(nn.Sequential(first, nn.ReLU(), nn.Conv2d(4, 3, 3)))
    assert type(first) is kind


def test_a_single_layer_is_the_last():
    assert type(fine_ends(nn.Linear(3, 2))) is LastLinear
    assert type(fine_ends(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)))[0]) is FirstLinear
    assert type(fine_ends(nn.ReLU())) is nn.ReLU


class Mixture(nn.Module):
    """Its head is declared first, and what runs in between last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.stem = nn.Conv2d(1, 2, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        h = self.stem(x).flatten(1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            rows = torch.arange(len(h)) % 2 == number
            out[rows] = expert(h[rows])
        return self.head(out)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("half", HALVES)
def test_one_pass_shows_which_layers_the_ends_are(half, compile):
    """Layers in between return what autocast says: others put their outputs together."""
    view = Views(Mixture().eval(), compile, half, torch.zeros(2, 1, 3, 3))
    kinds = {type(layer) for layer in getattr(view.search, "_orig_mod", view.search).modules()}
    assert {FirstConv2d, LastLinear} < kinds
    assert sum(type(layer) is nn.Linear for layer in getattr(view.search, "_orig_mod", view.search).modules()) == 2
    if not compile:
        with view.searching(CPU):
            assert view.search(torch.rand(4, 1, 3, 3)).dtype == torch.float32


def test_a_network_that_cannot_be_called_so_stays_as_it_is():
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert ends_of(network, torch.zeros(2, 5)) == (None, None)
    assert ends_of(network, torch.zeros(2, 3)) == (network[0], network[1])
    assert not network[0]._forward_hooks


def test_a_method_says_what_it_is_crafted_in():
    assert DyART.crafting == torch.float16
    assert AT.crafting == torch.bfloat16, "a cross-entropy's gradients vanish in float16"
