"""Imports point downwards only, importing the package stays light, and every public name is documented and typed."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import dyart

SOURCE = Path(dyart.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# From the bottom. A layer may import itself, those beside it and those below it.
ORDER = (
    ("boundary",),
    ("data", "models"),
    ("attacks",),
    ("methods",),
    ("recipes",),
    ("engine",),
    ("evaluation",),
    ("dynamics",),
    ("report", "integrations"),
    ("cli",),
)
HEIGHT = {name: height for height, names in enumerate(ORDER) for name in names}
ROOT = "dyart"  # the public names, above all layers but cli
HEAVY = (
    "scipy",
    "matplotlib",
    "lightning",
    "pytorch_lightning",
    "pyautoattack",
    "rich",
    "sklearn",
    "foolbox",
    "torchmetrics",
)
CORE = {"torch", "numpy"}


def layer_of(parts: tuple[str, ...]) -> str | None:
    """Return the layer of a module given by its dotted parts after the package's name; None for the package itself."""
    return parts[0] if parts else None


def imported(source: str, module: tuple[str, ...], is_package: bool) -> set[str]:
    """Return the full names of all modules that a source imports, wherever in it: functions, conditions, strings.

    Args:
        source: the text.
        module: dotted parts of the module's name, with the package's.
        is_package: the source is an ``__init__.py``.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = module if is_package else module[:-1]
            base = list(here[: len(here) - node.level + 1]) if node.level else []
            start = ".".join(base + ([node.module] if node.module else []))
            # "from dyart import cli" imports a module, too; what is no module still tells its layer.
            names |= {f"{start}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__"):
                names.add(str(node.args[0].value))
    return names


def upward(source: str, module: tuple[str, ...], is_package: bool = False) -> list[str]:
    """Return what is wrong with the imports of one module, in words."""
    own = layer_of(module[1:])
    if own in (None, "__main__"):
        return []  # the root, and what `python -m` runs, may import every layer
    if own not in HEIGHT:
        return [f"{'.'.join(module)}: {own!r} is no layer; add it to the design and to ORDER"]
    wrong: list[str] = []
    for name in sorted(imported(source, module, is_package)):
        parts = tuple(name.split("."))
        if parts[0] != ROOT:
            continue
        other = layer_of(parts[1:])
        if other in HEIGHT and HEIGHT[other] > HEIGHT[own]:
            wrong.append(f"{'.'.join(module)} imports {name}: {other} is above {own}")
        elif other not in HEIGHT and own != "cli":
            # The root imports the layers: a name that is only there is above them all, but for the top.
            wrong.append(f"{'.'.join(module)} imports {name}, which is in no layer")
    return wrong


def foreign(source: str, module: tuple[str, ...], is_package: bool = False) -> set[str]:
    """Return the third-party packages that one module imports."""
    tops = {name.split(".")[0] for name in imported(source, module, is_package)}
    return tops - set(sys.stdlib_module_names) - {ROOT}


def module_of(path: Path) -> tuple[str, ...]:
    parts = (ROOT, *path.relative_to(SOURCE).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def label(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=label)
def test_imports_point_downwards_only(path):
    assert upward(path.read_text(encoding="utf-8"), module_of(path), path.name == "__init__.py") == []


@pytest.mark.parametrize("path", [path for path in FILES if "boundary" in module_of(path)], ids=label)
def test_the_mathematics_needs_torch_and_numpy_alone(path):
    assert foreign(path.read_text(encoding="utf-8"), module_of(path), path.name == "__init__.py") <= CORE


def test_the_files_were_found():
    found = {module_of(path) for path in FILES}
    assert {("dyart",), ("dyart", "boundary"), ("dyart", "boundary", "search"), ("dyart", "methods", "dyart")} <= found


METHOD = ("dyart", "methods", "dyart")
SEARCH = ("dyart", "boundary", "search")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (SEARCH, "import dyart.methods.dyart"),
        (SEARCH, "from dyart.data import sets"),
        (SEARCH, "from dyart import methods"),
        (SEARCH, "from dyart import closest_boundary_points"),
        (SEARCH, "import dyart"),
        (SEARCH, "from dyart import *"),
        (SEARCH, "from ..methods import dyart"),
        (SEARCH, "from .. import methods"),
        (SEARCH, "def late():\n    from dyart.engine.fit import fit\n    return fit"),
        (SEARCH, "if TYPE_CHECKING:\n    from dyart.methods.dyart import DyART"),
        (SEARCH, "importlib.import_module('dyart.report.page')"),
        (SEARCH, "from dyart import boundary, cli"),
        (METHOD, "from dyart.recipes import load"),
        (METHOD, "from dyart.engine.fit import fit"),
        (("dyart", "attacks", "pgd"), "from dyart.methods.dyart import DyART"),
        (("dyart", "data", "sets"), "from dyart.attacks.pgd import pgd"),
        (("dyart", "report", "page"), "from dyart.cli import main"),
        (("dyart", "dynamics", "monitor"), "from dyart.integrations.lightning import DyARTModule"),
        (("dyart", "integrations", "sklearn"), "import dyart"),
        (("dyart", "integrations", "foolbox"), "from dyart.cli import main"),
        (("dyart", "misc", "page"), "import torch"),
        (("dyart", "engine", "fit"), "from dyart.misc import helper"),
    ],
)
def test_an_upward_import_would_be_seen(module, source):
    assert upward(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (SEARCH, "from dyart.boundary.norms import Norm\nfrom dyart.boundary import optimality\nimport torch"),
        (SEARCH, "from .norms import Norm\nfrom . import optimality"),
        (METHOD, "from dyart.boundary.search import assemble\nfrom dyart import boundary"),
        (METHOD, "from ..boundary import search"),
        (("dyart", "models", "resnet"), "from dyart.data import sets"),
        (("dyart", "cli"), "import dyart\nfrom dyart.report import page\nfrom dyart import evaluate"),
        (("dyart",), "from dyart.methods.dyart import DyART"),
    ],
)
def test_a_downward_import_is_allowed(module, source):
    assert upward(source, module) == []


def test_relative_imports_of_a_package_start_at_the_package():
    package = ("dyart", "boundary", "solvers")
    assert imported("from .fast import fast_search", package, True) == {"dyart.boundary.solvers.fast.fast_search"}
    assert upward("from ...methods import dyart", package, True)
    assert not upward("from ..problem import Best", package, True)


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import scipy.optimize as opt", {"scipy"}),
        ("def f():\n    from rich.table import Table", {"rich"}),
        ("import torch, numpy as np, os, collections.abc", {"torch", "numpy"}),
        ("from . import norms\nfrom dyart.boundary import model", set()),
    ],
)
def test_a_third_party_import_would_be_seen(source, packages):
    assert foreign(source, SEARCH) == packages


# Light to import


PROBE = """
import json, sys
import torch, torch.func  # what torch itself brings along, or looks for, is not ours
torch_brought = set(sys.modules)
heavy, asked = {heavy!r}, []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in heavy:
            asked.append(name)

sys.meta_path.insert(0, Watch())
{statement}
new = {{name.split(".")[0] for name in set(sys.modules) - torch_brought}}
print(json.dumps({{"loaded": sorted(new & set(heavy)), "asked": asked}}))
"""


def heavy_imports(statement: str) -> dict[str, list[str]]:
    """Return which of the heavy packages a statement loads, or asks for in vain, in a fresh interpreter."""
    probe = PROBE.format(heavy=HEAVY, statement=statement)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy():
    assert heavy_imports("import dyart, dyart.integrations, dyart.cli.main") == {"loaded": [], "asked": []}


def test_a_heavy_import_would_be_seen():
    hidden = "try:\n    import lightning.fabric\nexcept ImportError:\n    pass\nimport scipy"
    seen = heavy_imports(hidden)
    assert "scipy" in seen["loaded"]
    assert "lightning" in seen["asked"], "also where the package is not installed"


# The public names


PUBLIC = {name: getattr(dyart, name, None) for name in dyart.__all__}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
METHODS = {
    f"{name}.{method}": function
    for name, value in CLASSES.items()
    for method, function in vars(value).items()
    if inspect.isfunction(function)
    and (not method.startswith("_") or method in ("__call__", "__getitem__", "__init__"))
    and Path(inspect.getsourcefile(function) or "<generated>").is_relative_to(SOURCE)
}


def documented(thing: object, name: str) -> bool:
    """A dataclass without a docstring is given its signature for one: that does not count."""
    text = (getattr(thing, "__doc__", None) or "").strip()
    return bool(text) and not text.startswith(f"{name}(")


def bare(function) -> list[str]:
    """Return the parameters without annotation, and "return"."""
    signature = inspect.signature(function)
    missing = [
        name
        for position, (name, parameter) in enumerate(signature.parameters.items())
        if parameter.annotation is inspect.Parameter.empty and not (position == 0 and name in ("self", "cls"))
    ]
    return missing + (["return"] if signature.return_annotation is inspect.Signature.empty else [])


def test_all_lists_every_public_name_once():
    assert len(set(dyart.__all__)) == len(dyart.__all__)
    offered = {name for name, value in vars(dyart).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert offered == set(dyart.__all__)


@pytest.mark.parametrize("name", dyart.__all__)
def test_every_public_name_exists_and_has_a_docstring(name):
    assert hasattr(dyart, name)
    assert documented(getattr(dyart, name), name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_of_a_public_function_is_annotated(name):
    assert bare(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_public_class_is_documented_and_annotated(name):
    assert documented(METHODS[name], name)
    assert bare(METHODS[name]) == []


def test_functions_and_methods_were_found():
    assert {"closest_boundary_points", "boundary_speed", "margin_loss", "update_direction", "concat"} <= set(FUNCTIONS)
    assert {"DyART.__init__", "DyART.search", "BoundaryPoints.to_csv"} <= set(METHODS)


def test_a_bare_parameter_and_a_missing_docstring_would_be_seen():
    def half(a: int, b, *rest, **more: int):
        pass

    assert bare(half) == ["b", "rest", "return"]
    assert not documented(half, "half")
