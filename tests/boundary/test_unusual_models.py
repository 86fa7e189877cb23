"""Models that are not what most are: frozen, with recurrent layers of their own, of two precisions, with hooks."""

import copy

import pytest
import torch
from torch import nn

import dyart


def search(model, inputs, labels=None, **options):
    return dyart.closest_boundary_points(model, inputs, labels, steps=10, **options)


@pytest.mark.parametrize("upper", [100.0, 1e7])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_speed_is_that_of_the_margin_however_wide_the_box_is(norm, upper):
    torch.manual_seed(0)
    net = nn.Linear(8, 3).double()
    inputs = torch.rand(20, 8, dtype=torch.float64) * 5 + 0.1
    labels = net(inputs).argmax(dim=1)
    step = {name: torch.randn_like(parameter) for name, parameter in net.named_parameters()}

    def moved(by):
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.add_(by * step[name])
        return dyart.closest_boundary_points(net, inputs, labels, norm=norm, bounds=(0.0, upper), tol=1e-10, steps=300)

    found = moved(0.0)
    speed = dyart.boundary_speed(net, found, step)
    ahead, back = moved(1e-4), moved(-2e-4)
    # Of two rivals at much the same distance, a search may find the one before and the other after the step.
    rows = (found.alignment > 0.99999) & (ahead.rival == found.rival) & (back.rival == found.rival)
    assert rows.sum() >= 15
    assert not found.free.all(), "some are at the side of the box"
    torch.testing.assert_close(speed[rows], ((ahead.margin - back.margin) / 2e-4)[rows], rtol=0.02, atol=0.02)


class Locked(nn.LSTM):
    """With dropout of its own in training."""

    def forward(self, x):
        if self.training:
            x = x * (torch.rand(x.shape[0], 1, x.shape[2]) > 0.5) * 2
        return super().forward(x)


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer(3, 8, batch_first=True, dropout=0.0), nn.Linear(8, 3)

    def forward(self, x):
        return 5 * self.head(self.layer(x)[0][:, -1])


@pytest.mark.parametrize("layer", [nn.LSTM, Locked])
def test_a_recurrent_layer_of_ones_own_stays_in_eval_mode(layer):
    torch.manual_seed(0)
    model = Recurrent(layer).eval()
    inputs = torch.rand(30, 6, 3)
    found = search(model, inputs, bounds=None)
    assert found.found.sum() > 5
    assert (model(found.points).argmax(dim=1) != found.labels)[found.found].all()
    assert not model.layer.training


@pytest.mark.parametrize("boundary", ["exact", "soft"])
def test_logits_may_be_more_precise_than_the_inputs(boundary):
    torch.manual_seed(0)
    net = nn.Linear(6, 4).double()
    found = search(lambda x: 5 * net(x.double()), torch.rand(10, 6), boundary=boundary)
    assert found.found.any()
    assert found.margin.dtype == torch.float32


def test_frozen_torchscript_is_a_model():
    torch.manual_seed(0)
    net, inputs = nn.Linear(6, 4), torch.rand(10, 6)
    frozen = torch.jit.freeze(torch.jit.script(net.eval()))
    torch.testing.assert_close(search(frozen, inputs).margin, search(net, inputs).margin, equal_nan=True)


def test_batch_norm_without_running_statistics_is_warned_of():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)).eval()
    with pytest.warns(UserWarning, match="without running statistics"):
        search(model, torch.rand(16, 6))


def test_a_weight_that_is_computed_anew_is_left_as_it_was():
    torch.manual_seed(0)
    inputs = torch.rand(8, 6)
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 4))).eval()
    with torch.no_grad():
        model(inputs)
    before = model[0].weight
    found = search(model, inputs)
    dyart.boundary_speed(model, found, {"0.bias": torch.ones(4), "0.weight_orig": torch.ones(4, 6)})
    assert model[0].weight is before
    copy.deepcopy(model)


def test_a_compiled_model_whose_graph_serves_one_backward_pass():
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.rand(8, 6)
    compiled = torch.compile(net, dynamic=True, backend="aot_eager")
    logits = compiled(inputs.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="donated buffers"):  # what this test is about
        torch.autograd.grad(logits.sum(), net[0].weight, retain_graph=True)
    plain, found = search(net, inputs), search(compiled, inputs)
    torch.testing.assert_close(found.margin, plain.margin)
    assert found.cost.backward == plain.cost.backward
    assert found.cost.forward == plain.cost.forward + 3  # each of three rivals has a graph of its own


def test_a_hook_that_reaches_for_the_model_does_not_change_it():
    net, inputs = nn.Linear(6, 4), torch.rand(8, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def clamp(*_):
        for parameter in net.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    optimizer.register_step_post_hook(clamp)
    before = copy.deepcopy(net.state_dict())
    step = dyart.update_direction(net, loss=lambda: net(inputs).square().mean(), optimizer=optimizer)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name])
    net(inputs).square().mean().backward()
    torch.testing.assert_close(step["weight"], -0.1 * net.weight.grad)


def test_results_of_different_searches_are_not_joined():
    net, inputs = nn.Linear(8, 3), torch.rand(20, 8)
    labels = torch.randint(0, 3, (20,))
    one = search(net, inputs, labels)
    for name, other in (
        ("signed", search(net, inputs, labels, signed=True)),
        ("solver", search(net, inputs, labels, solver="fab")),
    ):
        with pytest.raises(ValueError, match=f"differ in {name}"):
            dyart.concat([one, other])
