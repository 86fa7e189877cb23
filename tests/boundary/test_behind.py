"""Networks behind a model that is none itself: in whatever it is wrapped, a training mode is warned of."""

import functools
import warnings

import pytest
import torch
from torch import nn

import dyart
from dyart.boundary.behind import networks_behind

X = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))


class Wrapper:
    """A network of somebody's, as an object that is called."""

    def __init__(self, net, other=None):
        self.net, self.unused = net, other
        self.scale = 2.0

    def __call__(self, x):
        return self._logits(x)

    def _logits(self, x):
        return self.scale * self.net(x)

    def probabilities(self, x):
        return self.net(x).softmax(dim=1)


class Lazy:
    """One that keeps its network behind a property, and calls it as a method."""

    def __init__(self, net):
        self._net = net

    @property
    def net(self):
        return self._net

    def __call__(self, x):
        return self.net(x)


class Committee:
    def __init__(self, nets):
        self.members = nets

    def __call__(self, x):
        return torch.stack([net(x) for net in self.members]).mean(dim=0)


def decorated(net):
    def doubled(call):
        @functools.wraps(call)
        def twice(x):
            return 2 * call(x)

        return twice

    @doubled
    def logits(x):
        return net(x)

    return logits


def default(net):
    def logits(x, net=net):
        return net(x)

    return logits


WRAPPED = {
    "a function": lambda net: lambda x: 1.0 * net(x),
    "a function in a function": lambda net: (lambda inner: lambda x: 1.0 * inner(x))(lambda x: 2.0 * net(x)),
    "a default": default,
    "a partial": lambda net: functools.partial(torch.func.functional_call, net, {}),
    "a decorator": decorated,
    "an object": Wrapper,
    "a method of an object": lambda net: Wrapper(net)._logits,
    "an object in an object": lambda net: Wrapper(Wrapper(net)),
    "a property": Lazy,
    "a list in an object": lambda net: Committee([network().eval(), net]),
    "a function around an object": lambda net: (lambda model: lambda x: 1.0 * model(x))(Wrapper(net)),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_training_mode_is_seen_through_what_is_around_the_network(kind):
    net = network().train()
    model = WRAPPED[kind](net)
    assert any(found is net for found in networks_behind(model).values())
    with pytest.warns(UserWarning, match=r"is in training mode.*Call \.eval\(\) first"):
        dyart.closest_boundary_points(model, X, steps=2)
    net.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dyart.closest_boundary_points(model, X, steps=2)


def test_the_warning_names_the_network_and_the_kind_of_model():
    with pytest.warns(UserWarning, match=r"the model is an object \(Wrapper\), and net in it is in training mode"):
        dyart.closest_boundary_points(Wrapper(network()), X, steps=2)
    with pytest.warns(UserWarning, match=r"the model is a function, and net in it is in training mode"):
        dyart.closest_boundary_points(Wrapper(network())._logits, X, steps=2)


def test_what_the_code_does_not_name_is_not_behind():
    net, other = network().eval(), network().train()
    assert list(networks_behind(Wrapper(net, other))) == ["net"]


def test_a_network_has_none_behind():
    net = network()
    assert networks_behind(net) == networks_behind(net.forward) == networks_behind(net[0].forward) == {}


def test_circles_and_long_lists_end():
    one, other = Wrapper(None), Wrapper(None)
    one.net, other.net = other, one
    assert networks_behind(one) == {}
    deep = [[[list(range(100)) for _ in range(100)] for _ in range(100)]]
    assert networks_behind(lambda x: deep[0](2 * x)) == {}


def test_a_variable_that_is_not_set_yet_is_passed_over():
    def model(x):
        return net(x)

    assert networks_behind(model) == {}
    net = network()
    assert networks_behind(model) == {"net": net}
