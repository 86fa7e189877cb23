"""The public interface as a text: names and signatures of Python, commands and options, keys of recipes.

Python's part is read from the source, not from imported objects, so that neither the version of Python nor the
optional packages that happen to be installed change a word of it.

    python tests/interface_text.py          writes tests/interface.txt anew, as `make interface` does
"""

import argparse
import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "dyart"
STORED = Path(__file__).parent / "interface.txt"
# Methods with underscores that are part of an interface.
SPECIAL = ("__init__", "__call__", "__len__", "__getitem__", "__iter__")
MARKS = ("property", "classmethod", "staticmethod", "contextmanager")


@cache
def tree(module: str) -> ast.Module:
    """Return the source of a module of the package."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, and those inside of conditions and attempts."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from statements(statement.body)
            yield from statements(statement.orelse)


def public(module: str) -> list[str] | None:
    """Return a module's ``__all__``; None if it has none."""
    for statement in statements(tree(module).body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return sorted(ast.literal_eval(statement.value))
    return None


def find(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Return where a name is defined, and its definition: followed through imports inside the package."""
    for statement in statements(tree(module).body):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
            return module, statement
        if isinstance(statement, ast.Assign) and name in [ast.unparse(target) for target in statement.targets]:
            return module, statement
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            return module, statement
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("dyart"):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return find(str(statement.module), alias.name)
    return module, None


def function(node: ast.FunctionDef) -> str:
    """Return a function's head on one line."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    before = "".join(f"@{mark} " for mark in marks if mark in MARKS)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{before}{node.name}({ast.unparse(node.args)}){returns}"


def members(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Return the public fields and methods of a class, its bases' of this package among them."""
    found: dict[str, str] = {}
    for base in reversed(node.bases):
        name = base.value if isinstance(base, ast.Subscript) else base
        place, definition = find(module, name.id) if isinstance(name, ast.Name) else (module, None)
        if isinstance(definition, ast.ClassDef):
            found |= members(place, definition)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name, text = statement.target.id, ast.unparse(statement)
        elif isinstance(statement, ast.FunctionDef):
            name, text = statement.name, function(statement)
        else:
            continue
        if not name.startswith("_") or name in SPECIAL:
            found[name] = text
    return found


def described(module: str, name: str) -> Iterator[str]:
    """Yield the lines about one public name."""
    place, node = find(module, name)
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"  class {name}({bases})" if bases else f"  class {name}"
        yield from (f"    {text}" for text in members(place, node).values())
    elif isinstance(node, ast.FunctionDef):
        yield f"  {function(node)}"
    else:
        yield f"  {name}" + (f" = {ast.unparse(node.value)}" if getattr(node, "value", None) is not None else "")


def packages() -> list[str]:
    """Return all packages, by name."""
    return sorted(".".join(("dyart", *path.parent.relative_to(SOURCE).parts)) for path in SOURCE.rglob("__init__.py"))


def python_text() -> Iterator[str]:
    """Yield names and signatures of every package that lists its public names."""
    listed = {package: names for package in packages() if (names := public(package)) is not None}
    for module, names in listed.items():
        yield f"{module}:"
        for name in names:
            yield from described(module, name)


def option(action: argparse.Action) -> str:
    """Return one argument of a command."""
    words = ", ".join(action.option_strings) or f"{action.metavar or action.dest}"
    if action.choices is not None:
        words += f" {{{','.join(map(str, action.choices))}}}"
    elif action.nargs != 0 and action.option_strings:
        words += f" {action.metavar or action.dest.upper()}"
    many = f" [{action.nargs}]" if action.nargs not in (None, 0) else ""
    default = "" if action.default in (None, False, argparse.SUPPRESS) else f" = {action.default}"
    return words + many + default


def command_text() -> Iterator[str]:
    """Yield every command with its arguments."""
    from dyart.cli.main import _parser
    from dyart.cli.parsers import every_parser

    parser = _parser()
    for path, sub in [("", parser), *every_parser(parser)]:
        yield f"$ dyart {path}".strip() + ":"
        arguments = [action for action in sub._actions if not isinstance(action, argparse._SubParsersAction)]
        yield from (f"  {option(action)}" for action in arguments)


def recipe_text() -> Iterator[str]:
    """Yield the names of recipes, and the keys that can be set."""
    from dyart.methods.base import registered
    from dyart.recipes import names
    from dyart.recipes.parser import keys

    yield "recipes:"
    yield from (f"  {name}" for name in names())
    common = [key for key in keys("natural") if not key.startswith("method.")]
    yield "keys of every recipe:"
    yield from (f"  {key}" for key in [*common, "method.name"])
    for method in registered():
        own = [key for key in keys(method) if key.startswith("method.") and key != "method.name"]
        yield f"keys of the method {method}: {', '.join(own) or 'none'}"


def interface() -> str:
    """Return the whole text."""
    return "\n".join([*python_text(), *command_text(), *recipe_text()]) + "\n"


if __name__ == "__main__":
    STORED.write_text(interface(), encoding="utf-8")
    print(f"written: {STORED}")
