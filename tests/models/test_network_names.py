"""Names, arguments and networks of the user's own."""

import sys

import pytest
import torch
from network_cases import BATCH_NORM, of_type
from torch import nn

from dyart.models import NAMES, InputNormalization, build

OWN = """
import torch
from torch import nn

calls = []

class Net(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(shape[0], 48, 3), nn.BatchNorm2d(48), nn.ReLU())
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

def both(classes, shape):
    calls.append((classes, shape))
    return Net(classes, shape)

def only_classes(*, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))

def neither():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

def with_options(classes, shape, normalization="x", activation="own", mean=None, std=None):
    net = Net(classes, shape)
    net.options = (normalization, activation, mean, std)
    return net

def with_momentum(classes, shape, bn_momentum=0.5):
    net = Net(classes, shape)
    net.given = bn_momentum
    return net

def anything(**options):
    net = Net(**options)
    net.options = options
    return net

def demanding(classes, shape, depth):
    return Net(classes, shape)

def half(classes, shape, mean=None):
    return Net(classes, shape)

def flat(classes, shape):
    return nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.Linear(32, classes))

def lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Linear(6, classes))

def lazy_and_wrong(classes):
    return nn.Sequential(nn.LazyLinear(6), nn.Flatten(), nn.Linear(6, classes))

class HalfReached(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.spare = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)), nn.LazyLinear(classes)

    def forward(self, x):
        return self.spare(x) if self.training else self.body(x)

class Zoo:
    @staticmethod
    def small(classes, shape):
        return Net(classes, shape)

def wrong(classes, shape):
    return {"net": Net(classes, shape)}

ready = Net(3, (3, 8, 8))
number = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's in the working directory, which is not on the path."""
    (tmp_path / "own_networks.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("import a_package_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    yield "own_networks"
    sys.modules.pop("own_networks", None)


def test_a_factory_is_called_with_classes_and_shape(own):
    before = list(sys.path)
    model = build(f"{own}:both", 5, (3, 8, 8))
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 5)
    assert sys.modules[own].calls == [(5, (3, 8, 8))]
    assert sys.path == before


@pytest.mark.parametrize("factory", ["only_classes", "neither"])
def test_a_factory_gets_only_what_it_names(own, factory):
    assert build(f"{own}:{factory}", 5, (3, 2, 2))(torch.rand(2, 3, 2, 2)).shape == (2, 5)


def test_lazy_layers_get_their_sizes_and_the_weights_of_the_seed(own):
    first, second, other = (build(f"{own}:lazy", 5, (3, 2, 2), seed=seed).state_dict() for seed in (0, 0, 1))
    assert first["1.weight"].shape == (6, 12)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["1.weight"], other["1.weight"])
    # The example that shows the sizes leaves nothing behind.
    assert torch.equal(first["2.running_mean"], torch.zeros(6))
    assert build(f"{own}:lazy", 5, (3, 2, 2)).training


@pytest.mark.parametrize("factory", ["Net", "Zoo.small"])
def test_classes_and_dotted_names_are_factories_too(own, factory):
    assert build(f"{own}:{factory}", 5, (3, 8, 8))(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_a_factory_that_names_the_options_does_the_work_itself(own):
    model = build(f"{own}:with_options", 5, (3, 8, 8))
    assert model.options == ("batch", "own", None, None)
    mean, std = (0.5,) * 3, (0.2,) * 3
    model = build(f"{own}:with_options", 5, (3, 8, 8), normalization="group", activation="silu", mean=mean, std=std)
    assert model.options == ("group", "silu", mean, std)
    assert of_type(model, BATCH_NORM)
    assert not of_type(model, InputNormalization)


def test_the_momentum_of_batch_norm_is_set_in_a_factorys_network_unless_it_does_that_itself(own):
    before = {norm.momentum for norm in of_type(build(f"{own}:both", 5, (3, 8, 8)), BATCH_NORM).values()}
    model = build(f"{own}:both", 5, (3, 8, 8), bn_momentum=0.03)
    assert {norm.momentum for norm in of_type(model, BATCH_NORM).values()} == {0.03}
    model = build(f"{own}:with_momentum", 5, (3, 8, 8), bn_momentum=0.03)
    assert model.given == 0.03
    assert {norm.momentum for norm in of_type(model, BATCH_NORM).values()} == before
    assert build(f"{own}:with_momentum", 5, (3, 8, 8)).given == 0.5


def test_keywords_of_any_name_get_classes_and_shape_alone(own):
    model = build(f"{own}:anything", 5, (3, 8, 8), normalization="group")
    assert model.options == {"classes": 5, "shape": (3, 8, 8)}
    assert not of_type(model, BATCH_NORM)


def test_group_norm_and_input_normalisation_are_added_to_a_factory_without_them(own):
    model = build(f"{own}:both", 5, (3, 8, 8), normalization="group", mean=(0.5,) * 3, std=(0.2,) * 3, seed=0)
    plain = build(f"{own}:both", 5, (3, 8, 8), normalization="group", seed=0)
    (group,) = of_type(plain, nn.GroupNorm).values()
    assert (group.num_groups, group.num_channels) == (16, 48)
    assert isinstance(next(model.children()), InputNormalization)
    x = torch.rand(2, 3, 8, 8)
    assert torch.allclose(model(x), plain((x - 0.5) / 0.2), atol=1e-5)
    model.network.load_state_dict(plain.state_dict())


def test_a_seed_makes_a_factory_reproducible(own):
    before = torch.get_rng_state()
    one, two = (build(f"{own}:both", 5, (3, 8, 8), seed=1) for _ in range(2))
    assert torch.equal(one.head.weight, two.head.weight)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("own_networks:wrong", {}, TypeError, r"must return a torch.nn.Module, it returned dict"),
        ("own_networks:ready", {}, TypeError, r"is a network, not a function"),
        ("own_networks:number", {}, TypeError, r"function or class that makes a network, got int"),
        ("own_networks:bth", {}, AttributeError, r"'own_networks' has no 'bth'; did you mean 'both'\?"),
        ("own_networks:Zoo.smal", {}, AttributeError, r"'Zoo' has no 'smal'; did you mean 'small'\?"),
        ("own_networks:demanding", {}, TypeError, r"depth.*all others need a default"),
        ("own_networks:lazy_and_wrong", {}, TypeError, r"lazy layers, and fails on examples of shape \(3, 8, 8\)"),
        ("own_networks:HalfReached", {}, TypeError, r"eval mode does not reach: spare.weight, spare.bias"),
        ("own_networks:both", {"activation": "relu"}, ValueError, r"takes no argument `activation`"),
        ("own_networks:half", {"mean": (0.0,) * 3, "std": (1.0,) * 3}, ValueError, r"only one of `mean` and `std`"),
        ("own_networks:flat", {"normalization": "group"}, ValueError, r"BatchNorm1d"),
        ("own_netwrks:both", {}, ModuleNotFoundError, r"there is no module 'own_netwrks'; install it, or run in"),
        ("own_networks.deep:both", {}, ModuleNotFoundError, r"no module 'own_networks.deep'"),
        ("own_broken:both", {}, ModuleNotFoundError, r"^No module named 'a_package_nobody_has'$"),
        ("own_networks:", {}, ValueError, r"write a network of your own as 'package.module:factory'"),
        (":both", {}, ValueError, r"'package.module:factory', got ':both'"),
        ("a:b:c", {}, ValueError, r"'package.module:factory', got 'a:b:c'"),
        ("own_networks.py:both", {}, ValueError, r"without .py"),
        ("./own_networks:both", {}, ValueError, r"is a file"),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(own, name, options, error, words):
    with pytest.raises(error, match=words):
        build(name, 5, (3, 8, 8), **options)


# Names and arguments


def test_the_names():
    assert NAMES == ("wrn28-10", "wrn34-10", "preactresnet18", "resnet18", "cnn", "mlp")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("wrn-28-10", "wrn28-10"),
        ("ResNet18", "resnet18"),
        ("preact-resnet18", "preactresnet18"),
        ("wrn34_10", "wrn34-10"),
    ],
)
def test_an_unknown_name_lists_the_names_and_the_nearest(name, near):
    with pytest.raises(ValueError, match=rf"no network '{name}', did you mean '{near}'\?") as caught:
        build(name, 10, (3, 32, 32))
    assert all(known in str(caught.value) for known in NAMES)


def test_a_name_near_to_nothing_lists_the_names_alone():
    with pytest.raises(ValueError, match=r"no network 'zzz'\. The names are wrn28-10, ") as caught:
        build("zzz", 10, (3, 32, 32))
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        (("cnn", 1, (1, 28, 28)), {}, "classes must be an integer of at least 2, got 1"),
        (("cnn", 10, (28, 28)), {}, r"\(channels, height, width\), got \(28, 28\)"),
        (("mlp", 10, ()), {}, "shape must be that of one example"),
        (("mlp", 10, (0,)), {}, "every size in shape must be an integer of at least 1, got 0"),
        (("cnn", 10, (1, 28, 28)), {"normalization": "layer"}, "normalization must be one of 'batch', 'group'"),
        (("cnn", 10, (1, 28, 28)), {"activation": "gelu"}, "activation must be one of 'silu', 'relu'"),
        (("cnn", 10, (3, 32, 32)), {"mean": (0.5, 0.5, 0.5)}, "give both.*std is missing"),
        (("cnn", 10, (3, 32, 32)), {"std": (0.5, 0.5, 0.5)}, "give both.*mean is missing"),
        (("cnn", 10, (3, 32, 32)), {"mean": (0.5,), "std": (0.5,)}, "mean has 1 numbers, but .* 3 channels"),
        (("cnn", 10, (1, 28, 28)), {"mean": (0.5,), "std": (0.0,)}, "std positive"),
        (("cnn", 10, (1, 28, 28)), {"bn_momentum": 0.0}, "bn_momentum must be above 0 and at most 1, got 0.0"),
        (("cnn", 10, (1, 28, 28)), {"bn_momentum": 1.1}, "bn_momentum must be above 0 and at most 1, got 1.1"),
        (("cnn", 10, (1, 28, 28)), {"bn_momentum": float("nan")}, "bn_momentum must be .* got nan"),
        (("cnn", 10, (1, 28, 28)), {"mean": (float("nan"),), "std": (1.0,)}, "mean must be finite"),
        (("cnn", 10, (1, 28, 28)), {"mean": (0.5,), "std": (1.0, 1.0)}, "std has 2"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said(args, options, words):
    with pytest.raises(ValueError, match=words):
        build(*args, **options)


def test_a_list_is_a_shape():
    assert build("cnn", 10, [1, 28, 28])(torch.rand(1, 1, 28, 28)).shape == (1, 10)
