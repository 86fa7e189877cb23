"""``import dyart`` and the command line's help come without torch; names are imported when they are asked for."""

import ast
import os
import signal
import subprocess
import sys

import pytest

import dyart
from interface_text import tree


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_every_public_name_can_be_asked_for_and_comes_from_where_type_checkers_look():
    block = next(part for part in tree("dyart").body if isinstance(part, ast.If))
    checked = {alias.name: part.module for part in block.body for alias in part.names}
    assert checked == dyart._PLACES
    assert set(checked) == set(dyart.__all__)
    for name, place in checked.items():
        assert getattr(dyart, name) is getattr(sys.modules[place], name)
    assert set(dyart.__all__) <= set(dir(dyart))


def test_other_names_are_missing_and_packages_are_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        _ = dyart.nothing_of_the_kind
    assert python("import dyart; print(dyart.boundary.__name__)").stdout == "dyart.boundary\n"


def test_a_package_that_lacks_one_of_its_own_says_which(monkeypatch):
    monkeypatch.delitem(sys.modules, "dyart.report", raising=False)
    monkeypatch.delattr(dyart, "report", raising=False)

    def lacking(name):
        raise ModuleNotFoundError(name, name="plotly")

    monkeypatch.setattr("dyart.importlib.import_module", lacking)
    with pytest.raises(ModuleNotFoundError):
        _ = dyart.report


@pytest.mark.parametrize("words", [["--help"], ["margins", "--help"], ["data", "list"]])
def test_what_needs_no_torch_does_not_import_it(words):
    code = f"""
import sys
from dyart.cli import main
try:
    main({words!r})
except SystemExit:
    pass
sys.exit("torch" in sys.modules)
"""
    ended = python(code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


# Whoever begins the tests may ignore Ctrl-C, as a shell does for what runs in the background; children inherit that.
HEEDED = "signal.signal(signal.SIGINT, signal.default_int_handler)"


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_ctrl_c_before_the_work_ends_it_without_a_word():
    code = f"""
import os, signal, sys
{HEEDED}
import dyart.cli
module = sys.modules["dyart.cli.main"]
module._parser = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["dyart"]
module.main()
"""
    ended = python(code)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == ""


def test_ctrl_c_at_work_is_pythons_again():
    code = f"""
import signal, sys
{HEEDED}
import dyart.cli
module = sys.modules["dyart.cli.main"]
module._data = lambda options: sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
sys.argv = ["dyart", "data", "list"]
module.main()
"""
    assert python(code).returncode == 0
