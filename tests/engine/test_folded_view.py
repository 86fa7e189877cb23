"""The folded view computes what the network computes in eval mode, and follows it when it is refreshed."""

import copy

import pytest
import torch
from torch import nn

from dyart.engine.folded import FoldedNorm, FoldedView
from dyart.engine.views import Views, frozen_view
from dyart.evaluation.views import Count, View, attack_view
from dyart.models import build

CPU, VIEW = torch.device("cpu"), View(nn.Identity(), Count())


def trained(normalization="batch"):
    """A network whose running statistics are not the first ones."""
    model = build("cnn", 10, (1, 28, 28), normalization=normalization, seed=1).train()
    for seed in range(3):
        model(3 * torch.rand(16, 1, 28, 28, generator=torch.Generator().manual_seed(seed)))
    return model


def images():
    return torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(9))


def test_it_computes_the_same_and_follows_only_when_refreshed():
    model = trained()
    folded = FoldedView(model, frozen_view(model), half=None)
    assert sum(isinstance(layer, FoldedNorm) for layer in folded.module.modules()) > 1
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in folded.module.modules())
    expected = frozen_view(model)(images())
    torch.testing.assert_close(folded.module(images()), expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model(images())  # moves the running statistics, too
    moved = frozen_view(model)(images())
    assert (folded.module(images()) - moved).abs().max() > 1e-2
    folded.refresh()
    torch.testing.assert_close(folded.module(images()), moved, rtol=0, atol=1e-5)


def test_input_gradients_are_the_same():
    model = trained()
    gradients = []
    for view in (frozen_view(model), FoldedView(model, frozen_view(model), half=None).module):
        x = images().requires_grad_()
        gradients.append(torch.autograd.grad(view(x)[:, 3].sum(), x)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_half_keeps_cast_weights_of_linear_and_convolutional_layers_alone():
    model = trained()
    folded = FoldedView(model, frozen_view(model), half=torch.bfloat16)
    kinds = {name: parameter.dtype for name, parameter in folded.module.named_parameters()}
    assert set(kinds.values()) == {torch.bfloat16}
    assert all(buffer.dtype == torch.float32 for buffer in folded.module.buffers())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    folded.refresh()
    for name, parameter in folded.module.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name).bfloat16())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6, affine=False), nn.BatchNorm1d(6, eps=0.1), nn.BatchNorm1d(6)])
def test_layers_without_weights_and_other_dimensions(norm):
    model = nn.Sequential(nn.Linear(4, 6), norm).train()
    model(torch.rand(8, 4))
    folded = FoldedView(model, frozen_view(model), half=None)
    x = torch.rand(3, 4)
    torch.testing.assert_close(folded.module(x), frozen_view(model)(x), rtol=0, atol=1e-6)


def test_what_cannot_be_folded_stays():
    hooked = nn.BatchNorm1d(4)
    hooked.register_forward_hook(lambda module, args, output: 2 * output)
    batchwise = nn.BatchNorm1d(4, track_running_stats=False)
    model = nn.Sequential(hooked, batchwise, nn.GroupNorm(2, 4)).eval()
    folded = FoldedView(model, frozen_view(model), half=torch.bfloat16)
    x = torch.rand(5, 4)
    torch.testing.assert_close(folded.module(x), model(x))


def test_a_layer_used_twice_is_folded_once():
    shared = nn.BatchNorm1d(3)
    model = nn.Sequential(shared, nn.ReLU(), shared).train()
    model(torch.rand(6, 3))
    folded = FoldedView(model, frozen_view(model), half=None).module
    assert folded[0] is folded[2]
    x = torch.rand(4, 3)
    torch.testing.assert_close(folded(x), copy.deepcopy(model).eval()(x), rtol=0, atol=1e-6)


def test_uncompiled_views_share_everything_and_need_no_refreshing():
    model = trained()
    views = Views(model, compile=False)
    views.refresh()
    assert views.folded is None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert torch.equal(views.search(images()), copy.deepcopy(model).eval()(images()))


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.drop = nn.LSTM(4, 8, num_layers=2, dropout=0.5, batch_first=True), nn.Dropout()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.drop(self.lstm(x)[0][:, -1]))


@pytest.mark.parametrize("view", [frozen_view, lambda model: attack_view(model, VIEW, CPU, "tf32", False, 8).model])
def test_recurrent_layers_of_a_view_can_be_differentiated_by_cudnn(view):
    """It has no backward pass for them in eval mode, from which training mode differs by dropout alone."""
    model = Series()
    seen = view(model)
    assert seen.lstm.training
    assert not seen.drop.training
    x = torch.rand(5, 6, 4)
    assert torch.equal(seen(x), seen(x))
    assert (model.lstm.dropout, model.training) == (0.5, True)
    torch.testing.assert_close(seen(x), model.eval()(x))
