"""A changed public interface fails until it is stored anew on purpose: others' code, scripts and papers rely on it."""

import ast
import difflib
import inspect

import pytest

import dyart
from interface_text import STORED, command_text, find, function, interface, members, python_text

RENEW = """
The public interface is not what tests/interface.txt says (- stored, + now). If that was not meant, take it back.
If it was: `make interface` (or python tests/interface_text.py) stores it anew; name the change in the CHANGELOG, and
keep old names working where people may use them.
"""


def test_the_interface_is_what_is_stored():
    stored, now = STORED.read_text(encoding="utf-8"), interface()
    changed = list(difflib.unified_diff(stored.splitlines(), now.splitlines(), lineterm="", n=1))[2:]
    assert not changed, RENEW + "\n".join(changed)


def test_every_public_name_of_the_package_is_in_it():
    lines = list(python_text())
    start = lines.index("dyart:")
    block = lines[start + 1 : next(at for at in range(start + 1, len(lines)) if not lines[at].startswith(" "))]
    named = {line.strip().removeprefix("class ").split("(")[0].split(" ")[0] for line in block if line[2] != " "}
    assert named == set(dyart.__all__)


@pytest.mark.parametrize("name", [name for name in dyart.__all__ if inspect.isfunction(getattr(dyart, name))])
def test_signatures_read_from_the_source_are_those_of_the_objects(name):
    _, node = find("dyart", name)
    assert isinstance(node, ast.FunctionDef)
    arguments = [argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]]
    assert arguments == list(inspect.signature(getattr(dyart, name)).parameters)


@pytest.mark.parametrize("name", [name for name in dyart.__all__ if inspect.isclass(getattr(dyart, name))])
def test_members_read_from_the_source_are_those_of_the_objects(name):
    place, node = find("dyart", name)
    for member in members(place, node):
        fields = getattr(getattr(dyart, name), "__dataclass_fields__", {})
        assert hasattr(getattr(dyart, name), member) or member in fields


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(a: int) -> int: ...", "def f(a: int, b: int = 0) -> int: ..."),
        ("def f(a: int) -> int: ...", "def f(a: float) -> int: ..."),
        ("def f(a: int = 3): ...", "def f(a: int = 4): ..."),
        ("def f(a, b): ...", "def f(a, *, b): ..."),
        ("def f(a) -> int: ...", "def f(a) -> str: ..."),
    ],
)
def test_a_changed_signature_would_be_seen(before, after):
    first, second = (function(ast.parse(text).body[0]) for text in (before, after))
    assert first != second


def test_options_of_commands_are_in_it():
    lines = list(command_text())
    assert "$ dyart data get:" in lines
    assert any(line.startswith("  --boundary {exact,soft} = exact") for line in lines)
    assert "  --radii RADII" in lines
