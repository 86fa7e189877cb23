"""The files that code of the user's own comes from: the module that is named, and those beside it that it imports."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from dyart.models.factory import load_named

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = {"site-packages", "dist-packages"}


def own_sources(name: str) -> dict[str, str]:
    """Return the SHA-256 of the files behind a ``package.module:attribute``, by module: it is imported.

    Beside its own file those are the files of modules that it imports, directly or not, as far as they lie in the
    folder of its (topmost) package or, for a single file, in the folder of that. Installed packages have versions, and
    this one is recorded as a commit. What is imported by a name that is put together at run time is not found.
    """
    load_named(name)
    module = name.split(":")[0]
    file = _file(sys.modules[module])
    if file is None:
        return {}
    folder = _folder(module, file)
    found: dict[str, Path] = {}
    waiting = {module: file}
    while waiting:
        found |= waiting
        imported = {one for reached in waiting for one in _imported(sys.modules[reached]) if one not in found}
        files = {one: _file(sys.modules[one]) for one in imported}
        waiting = {one: path for one, path in files.items() if path is not None and _own(path, folder)}
    return {one: hashlib.sha256(path.read_bytes()).hexdigest() for one, path in sorted(found.items())}


def _file(module: ModuleType) -> Path | None:
    path = getattr(module, "__file__", None)
    return Path(path).absolute() if path is not None and Path(path).is_file() else None


def _folder(module: str, file: Path) -> Path:
    """Return the folder of the topmost package that a module is in; of a single file, that of the file."""
    levels = module.count(".") - (file.name != "__init__.py")
    return file.parents[min(max(levels, 0), len(file.parents) - 1)]


def _own(path: Path, folder: Path) -> bool:
    inside = path.is_relative_to(folder) and not INSTALLED & set(path.relative_to(folder).parts)
    return inside and not INSTALLED & set(folder.parts) and not path.resolve().is_relative_to(PACKAGE)


def _imported(module: ModuleType) -> set[str]:
    """Return the loaded modules that a module's code imports, wherever in it, with the packages that they are in."""
    file = _file(module)
    if file is None or file.suffix != ".py":
        return set()
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # changed since it was loaded: its own sum says so
        return set()
    names = {name for node in ast.walk(tree) for name in _names(node, module.__package__ or "")}
    every = {".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts) + 1)}
    return {name for name in every if isinstance(sys.modules.get(name), ModuleType)}


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        try:
            base = resolve_name("." * node.level + (node.module or ""), package)
        except ImportError:  # it reaches beyond the topmost package, in a branch that was not taken
            return
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
