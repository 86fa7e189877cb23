"""AWP around any method: its names, its settings, its recipes."""

import inspect
import typing

import pytest

from dyart.methods.at import AT
from dyart.methods.awp import AWP, with_awp
from dyart.methods.base import Method, classification_loss, find, registered
from dyart.methods.dyart import DyART
from dyart.methods.mma import MMA
from dyart.methods.natural import Natural
from dyart.recipes import RecipeError
from dyart.recipes.load import make_method, resolve
from dyart.recipes.parser import keys


def test_names():
    known = registered()
    for name in ("at-awp", "trades-awp", "dyart-awp"):
        assert known[name] is find(name)
        assert known[name].name == name
        assert issubclass(known[name], find(name.removesuffix("-awp")))
        assert issubclass(known[name], AWP)
    assert find("natural-awp") is find("natural-awp") is with_awp(Natural)
    assert "natural-awp" not in known
    assert find("dyart.methods.mma:MMA-awp") is with_awp(MMA)
    assert find("dyart-awp").needs_burn_in
    assert AT.name == "at"
    with pytest.raises(ValueError, match="no method 'tradse'; did you mean 'trades'"):
        find("tradse-awp")
    with pytest.raises(ValueError, match="did you mean 'at-awp'"):
        find("at-apw")
    with pytest.raises(ValueError, match=r"no AWP around 'at-awp': it has settings \['awp_warmup', 'gamma'\]"):
        find("at-awp-awp")


def test_every_method_can_be_wrapped():
    for name, cls in registered().items():
        if not issubclass(cls, AWP):
            wrapped = find(f"{name}-awp")
            assert wrapped().name == f"{name}-awp"
            own, both = (set(inspect.signature(one).parameters) for one in (cls, wrapped))
            assert both == own | {"gamma", "awp_warmup"}


def test_defaults_are_the_papers():
    method = find("at-awp")()
    assert (method.gamma, method.awp_warmup, method.radius, method.steps) == (0.01, 0.0, 8 / 255, 10)
    for name in ("trades-awp", "dyart-awp", "natural-awp"):
        assert (find(name)().gamma, find(name)().awp_warmup) == (0.005, 0.05)
    assert find("dyart-awp")(1.0, 0.1, gamma=0.02, joint=False).gamma == 0.02
    assert find("dyart-awp")(1.0, 0.1, gamma=0.02, joint=False).r0 == 0.1


@pytest.mark.parametrize("cls", [AT, DyART, MMA, Natural])
def test_introspection_finds_both_settings(cls):
    wrapped = with_awp(cls)
    signature, hints = inspect.signature(wrapped), typing.get_type_hints(wrapped.__init__)
    own = {} if cls is Natural else dict(inspect.signature(cls).parameters)
    assert list(signature.parameters) == [*own, "gamma", "awp_warmup"]
    assert all(signature.parameters[name].default == parameter.default for name, parameter in own.items())
    assert hints["gamma"] is hints["awp_warmup"] is float
    assert own.keys() <= hints.keys()
    found = keys(wrapped.name)
    assert {"method.gamma", "method.awp_warmup"} <= found.keys()
    assert {key for key in keys(cls.name) if key.startswith("method.")} <= found.keys()


def test_strings_for_annotations_and_methods_without_words():
    class Bare(Natural):
        name = "bare"

        def __init__(self, strength: "float" = 1.0, **more: "int") -> "None":
            self.strength, self.more = strength, more

    Bare.__doc__ = None
    wrapped = with_awp(Bare)
    assert typing.get_type_hints(wrapped.__init__)["strength"] is float
    assert list(inspect.signature(wrapped).parameters) == ["strength", "gamma", "awp_warmup", "more"]
    method = wrapped(2.0, gamma=0.5, extra=3)
    assert (method.strength, method.more, method.gamma) == (2.0, {"extra": 3}, 0.5)


def test_recipes():
    words = ["--method.name", "at-awp", "--method.gamma", "1/50", "--method.radius", "4/255"]
    method = make_method(resolve("cifar10-resnet18-at", words))
    assert isinstance(method, AWP)
    assert isinstance(method, AT)
    assert (method.gamma, method.radius, method.awp_warmup) == (0.02, 4 / 255, 0.0)
    with pytest.raises(RecipeError, match=r"no key method\.gama of the method 'at-awp'; did you mean method\.gamma"):
        resolve("cifar10-resnet18-at", ["--method.name", "at-awp", "--method.gama", "1"])
    with pytest.raises(RecipeError, match=r"no key method\.gamma of the method 'at'"):
        resolve("cifar10-resnet18-at", ["--method.gamma", "1"])


def test_the_command_line_explains_the_settings(capsys):
    from dyart.cli import main

    assert main(["train", "cifar10-resnet18-at", "--method.name", "at-awp", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "size of the weights' perturbation, relative to the weights; 0: none." in text
    assert "fraction of the training before the first perturbation." in text
    assert "of the ball." in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -0.1}, "gamma must be finite and at least 0, got -0.1"),
        ({"gamma": float("nan")}, "gamma must be finite"),
        ({"gamma": float("inf")}, "gamma must be finite"),
        ({"awp_warmup": 1.5}, "awp_warmup is a fraction of the training, from 0 to 1, got 1.5"),
        ({"awp_warmup": -0.5}, "awp_warmup is a fraction"),
        ({"radius": 0.0}, "radius must be positive"),
    ],
)
def test_bad_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        find("at-awp")(**settings)


def test_a_method_with_a_setting_of_that_name_is_refused():
    class Focal(Method):
        name = "focal"

        def __init__(self, gamma: float = 2.0) -> None:
            self.gamma = gamma

        def craft(self, model, batch):
            return None

        def loss(self, model, batch, crafted):
            return classification_loss(model(batch.inputs), batch), {}

    with pytest.raises(ValueError, match=r"no AWP around 'focal': it has settings \['gamma'\] of its own"):
        with_awp(Focal)
