"""Methods by name: one file and one class each, and nothing else changes when one is added."""

import sys

import pytest

import dyart.methods
from dyart.methods import base
from dyart.methods.at import AT
from dyart.methods.base import Method, find, register, registered
from dyart.methods.dyart import DyART
from dyart.methods.natural import Natural

SOURCE = '''
from dyart.boundary.model import logits_of
from dyart.methods.base import Method, classification_loss, register


@register("{name}")
class Mine(Method):
    """Cross-entropy, weighted.

    Args:
        strength: the weight.
        twice: twice as much.
    """

    def __init__(self, strength: float = 1.0, twice: bool = False) -> None:
        self.weight = strength * (2 if twice else 1)

    def craft(self, model, batch):
        return None

    def loss(self, model, batch, crafted):
        loss = self.weight * classification_loss(logits_of(model(batch.inputs)), batch)
        return loss, {{"loss": loss.detach()}}
'''


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Forget what a test registers and imports."""
    monkeypatch.setattr(base, "_REGISTERED", dict(registered()))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("dyart.methods.", "methods_of_mine")):
            del sys.modules[name]


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A file in the package, without a change elsewhere."""
    (tmp_path / "mine_added.py").write_text(SOURCE.format(name="mine-added"), encoding="utf-8")
    monkeypatch.setattr(dyart.methods, "__path__", [*dyart.methods.__path__, str(tmp_path)])


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own, anywhere on the path."""
    unregistered = SOURCE.format(name="x").replace('@register("x")\n', "")
    unregistered += "\n\nfrom dyart.methods.at import AT\n\n\nclass Stronger(AT):\n    pass\n\n\nNUMBER = 3\n"
    (tmp_path / "methods_of_mine.py").write_text(unregistered, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_the_methods_of_the_package():
    known = registered()
    assert known["natural"] is Natural
    assert known["at"] is AT
    assert known["dyart"] is DyART
    assert list(known) == sorted(known)
    assert all(cls.name == name and issubclass(cls, Method) for name, cls in known.items())
    assert all(find(name) is cls for name, cls in known.items())


def test_what_is_returned_is_a_copy():
    registered().clear()
    assert "at" in registered()


def test_a_file_in_the_package_is_enough(added):
    cls = find("mine-added")
    assert cls.__module__ == "dyart.methods.mine_added"
    assert registered()["mine-added"] is cls
    assert find("mine-added") is cls


def test_a_new_method_is_in_recipes_at_once(added):
    from dyart.recipes.load import make_method, resolve

    words = ["--method.name", "mine-added", "--method.strength", "1/4", "--method.twice", "true"]
    method = make_method(resolve("fashion-mini-cnn-at", words))
    assert method.name == "mine-added"
    assert method.weight == 0.5


def test_a_class_of_ones_own(own):
    cls = find("methods_of_mine:Mine")
    assert cls.__name__ == "Mine"
    assert cls.name == "methods_of_mine:Mine"
    assert cls().name == cls.name
    assert "methods_of_mine:Mine" not in registered()


def test_a_class_in_the_working_directory(own, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    with pytest.raises(ValueError, match="there is no module 'methods_of_mine'; install it, or run in the folder"):
        find("methods_of_mine:Mine")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert find("methods_of_mine:Mine").name == "methods_of_mine:Mine"
    assert sys.path == before


CONSTRUCTORS = {
    "strength=1.0": ["argument strength=1.0 needs a type", "`strength: float = ...`"],
    "strength": ["argument strength needs a type"],
    "strength: float": ["argument strength: float needs a default", "`strength: float = ...`"],
    "cost": ["argument cost needs a default"],
    "**settings": ["argument **settings can be anything: name every setting"],
    "*settings: float": ["argument *settings: float can be anything"],
}


@pytest.mark.parametrize("arguments", CONSTRUCTORS)
def test_a_constructor_that_recipes_cannot_read(tmp_path, monkeypatch, arguments):
    from dyart.recipes import RecipeError, resolve

    source = SOURCE.format(name="x").replace('@register("x")\n', "")
    source = source.replace("strength: float = 1.0, twice: bool = False", arguments)
    (tmp_path / "methods_of_mine.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        resolve("fashion-mini-cnn-at", ["--method.name", "methods_of_mine:Mine"])
    for words in ["the method methods_of_mine.Mine: ", *CONSTRUCTORS[arguments]]:
        assert words in str(caught.value)


def test_an_object_of_python_needs_no_type(tmp_path, monkeypatch):
    from dyart.recipes import resolve

    source = SOURCE.format(name="x").replace('@register("x")\n', "")
    source = source.replace("strength: float = 1.0, twice: bool = False", "cost=None, strength: float = 1.0")
    (tmp_path / "methods_of_mine.py").write_text(source.replace("(2 if twice else 1)", "1"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = resolve("fashion-mini-cnn-at", ["--method.name", "methods_of_mine:Mine"])
    assert config.method == {"name": "methods_of_mine:Mine", "strength": 1.0}


def test_a_subclass_of_a_known_method_has_a_name_of_its_own(own):
    assert find("methods_of_mine:Stronger").name == "methods_of_mine:Stronger"
    assert AT.name == "at"
    assert find("dyart.methods.at:AT").name == "at"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("natrual", ["'natrual'; did you mean 'natural'?", "Known: at, ", "package.module:Class"]),
        ("dyrat", ["did you mean 'dyart'?"]),
        ("AT", ["no method 'AT'"]),
        ("", ["no method ''. Known: at, "]),
        ("zzzz", ["no method 'zzzz'. Known: at, "]),
        ("no_such_module:Class", ["no method 'no_such_module:Class'", "no_such_module"]),
        ("methods_of_mine:Class", ["no method 'methods_of_mine:Class'", "Class"]),
        ("methods_of_mine:NUMBER", ["'methods_of_mine:NUMBER' is no subclass of dyart.methods.base.Method"]),
        ("collections:Counter", ["'collections:Counter' is no subclass"]),
        ("methods_of_mine.Mine", ["no method 'methods_of_mine.Mine'; did you mean 'methods_of_mine:Mine'?"]),
        ("methods_of_mine.py", ["no method 'methods_of_mine.py'. Known: at, "]),
        ("methods_of_mine:", ["no method 'methods_of_mine:'"]),
        (":Class", ["':Class'"]),
    ],
)
def test_an_unknown_method(own, name, words):
    with pytest.raises(ValueError, match=r"method|Method") as caught:
        find(name)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not name or str(caught.value).count(repr(name)) == 1, "named once"


def subclass(module, name="Other"):
    return type(name, (Natural,), {"__module__": module})


def test_a_name_is_registered_once():
    first = register("other")(subclass("one"))
    assert register("other")(first) is first
    with pytest.raises(ValueError, match=r"'other' is registered twice.*one\.Other.*two\.Other"):
        register("other")(subclass("two"))
    assert find("other") is first
    assert Natural.name == "natural"


def test_a_class_that_is_defined_again_takes_its_own_place():
    # A notebook's cell run twice, a module reloaded.
    register("other")(subclass("notebook"))
    again = register("other")(subclass("notebook"))
    assert find("other") is again


def test_a_class_without_loss_cannot_be_made():
    class Half(Method):
        def craft(self, model, batch):
            return None

    with pytest.raises(TypeError, match="loss"):
        Half()


VARIANT = """
from dyart.methods.trades import TRADES
class Variant(TRADES):
    \"\"\"TRADES with a temperature.

    Args:
        temperature: of the logits.
    \"\"\"
    def __init__(self, temperature: float = 2.0, beta: float = 3.0, **settings):
        super().__init__(beta=beta, **settings)
        self.temperature = temperature
"""


def test_a_variant_inherits_the_settings_of_what_it_is_built_on(tmp_path, monkeypatch):
    from dyart.recipes import make_method, resolve
    from dyart.recipes.parser import build_parser

    (tmp_path / "variants_of_mine.py").write_text(VARIANT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("variants_of_mine:Variant", "variants_of_mine:Variant-awp"):
        words = ["--method.name", name, "--method.radius", "1/255", "--method.temperature", "4"]
        config = resolve("fashion-mini-cnn-at", words)
        method = make_method(config)
        assert (method.temperature, method.beta, method.steps) == (4.0, 3.0, 10)
        assert method.radius == pytest.approx(1 / 255)
        assert ("gamma" in config.method) == name.endswith("-awp")
        text = " ".join(build_parser(name).format_help().split())
        assert "of the logits. (type: Radius, default: 2.0)" in text
        assert "weight of the divergence. (type: Radius, default: 3.0)" in text
    with pytest.raises(ValueError, match=r"no key method\.stepz .*did you mean method\.steps"):
        resolve("fashion-mini-cnn-at", ["--method.name", "variants_of_mine:Variant", "--method.stepz", "3"])
    fixed = VARIANT.replace("beta: float = 3.0, ", "").replace("beta=beta", "beta=3.0").replace("Variant", "Fixed")
    (tmp_path / "variants_that_fix.py").write_text(fixed, encoding="utf-8")
    with pytest.raises(ValueError, match=r"passes a setting on twice .*'beta'.*an argument of its own"):
        resolve("fashion-mini-cnn-at", ["--method.name", "variants_that_fix:Fixed"])


def test_every_method_of_the_package_can_be_imported_from_it():
    classes = {getattr(dyart.methods, name) for name in dyart.methods.__all__}
    awp = {dyart.methods.with_awp(find(name.removesuffix("-awp"))) for name in registered() if name.endswith("-awp")}
    assert {find(name) for name in registered()} <= classes | awp
