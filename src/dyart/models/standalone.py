"""A network of this package as one Python file that needs torch alone, made of this package's own source.

What the network's class uses is followed from name to name through the modules here, and copied as it stands: one
definition, no second one to keep in step.
"""

import ast
import importlib
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType

from dyart.models import layers
from dyart.models.layers import ACTIVATIONS, ActivationName, Normalization
from dyart.models.registry import CIFAR_MEAN, CIFAR_STD, NETWORKS

PACKAGE = "dyart"
HEAD = '''"""{words}

Made by dyart {version}; it needs torch alone. `load()` returns the network with the weights beside this file, in eval
mode: from inputs [N, {shape}] in [0, 1] to logits [N, {classes}]. Normalisation, if any, is inside.
"""
'''
TAIL = '''

def build() -> nn.Module:
    """Return the network with fresh weights, in training mode."""
    model = {made}
{changes}    return model


def load(weights: str | Path = Path(__file__).with_name("{weights}")) -> nn.Module:
    """Return the network with its weights, in eval mode. The file is read without executing code."""
    model = build()
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()
'''


def definition(
    name: str,
    classes: int,
    shape: Sequence[int],
    *,
    normalization: Normalization = "batch",
    activation: ActivationName | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    bn_momentum: float | None = None,
    words: str = "",
    version: str = "",
    weights: str = "model.pt",
) -> str:
    """Return the source of a module whose ``build()`` makes what ``dyart.models.build`` makes of the same arguments.

    Args:
        name: one of ``NAMES``; a factory of the user's is not ours to copy.
        classes: as for ``build``, like the following.
        shape: of one example.
        normalization: "batch" or "group".
        activation: None: the network's own.
        mean: None: the network's own.
        std: None: the network's own.
        bn_momentum: None: the network's own.
        words: the first line of its docstring.
        version: of this package.
        weights: the file that its ``load()`` reads, beside it.
    """
    network = NETWORKS[name]
    if mean is None and network.normalizes_cifar and shape[0] == len(CIFAR_MEAN):
        mean, std = CIFAR_MEAN, CIFAR_STD
    make = network.make
    cls = make.func if isinstance(make, partial) else make
    first, named = (make.args, make.keywords) if isinstance(make, partial) else ((), {})
    act = ACTIVATIONS[activation or network.activation]
    used = [cls]
    normalize = "nn.Identity()"
    if mean is not None and std is not None:
        used.append(layers.InputNormalization)
        # As plain floats: numbers of a recipe print as they were written.
        numbers = [tuple(map(float, values)) for values in (mean, std)]
        normalize = f"InputNormalization({numbers[0]!r}, {numbers[1]!r}, spatial={len(shape) - 1})"
    sizes = [*map(repr, first), repr(shape[0] if network.images else math.prod(shape)), repr(classes)]
    options = [f"{key}={value!r}" for key, value in named.items()]
    made = f"{cls.__name__}({', '.join([*sizes, f'nn.{act.__name__}', normalize, *options])})"
    changes = ""
    if bn_momentum is not None:
        used.append(layers.set_batch_norm_momentum)
        changes += f"    set_batch_norm_momentum(model, {float(bn_momentum)!r})\n"
    if normalization == "group":
        used.append(layers.replace_batch_norm)
        changes += "    model = replace_batch_norm(model)\n"
    bundle = Bundle()
    for thing in used:
        bundle.add(importlib.import_module(thing.__module__), thing.__name__)
    head = HEAD.format(words=words, version=version, shape=", ".join(map(str, shape)), classes=classes)
    return head + bundle.source() + TAIL.format(made=made, changes=changes, weights=weights)


@dataclass
class Bundle:
    """Definitions gathered from modules of this package, and the imports of others that they need."""

    imports: set[str] = field(
        default_factory=lambda: {"import torch", "from torch import nn", "from pathlib import Path"}
    )
    parts: dict[tuple[str, int], str] = field(default_factory=dict)
    """Source by module and line, and written in this order: ``layers`` comes before the modules that use it."""
    names: dict[str, str] = field(default_factory=dict)

    def add(self, module: ModuleType, name: str) -> None:
        """Add a definition of a module, and all that it uses.

        Raises:
            ValueError: two modules define the same name differently, so that one file cannot hold both.
        """
        source = inspect.getsource(module)
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, name)
            elif name in _defined(node):
                self._define(module, name, node, source)

    def source(self) -> str:
        """Return imports and definitions."""
        parts = [self.parts[key] for key in sorted(self.parts)]
        return "\n" + "\n".join(sorted(self.imports)) + "\n\n" + "\n\n".join(parts) + "\n"

    def _define(self, module: ModuleType, name: str, node: ast.stmt, source: str) -> None:
        known = self.names.setdefault(name, module.__name__)
        if known != module.__name__:
            raise ValueError(f"{name} is defined in {known} and in {module.__name__}: rename one of them")
        key = (module.__name__, node.lineno)
        if key in self.parts:
            return
        self.parts[key] = _text(node, source)
        for other in {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - {name}:
            self.add(module, other)

    def _import(self, node: ast.Import | ast.ImportFrom, name: str) -> None:
        for alias in node.names:
            if (alias.asname or alias.name) != name:
                continue
            written = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            if isinstance(node, ast.Import):
                self.imports.add(f"import {written}")
            elif node.module and node.module.split(".")[0] == PACKAGE:
                self.add(importlib.import_module(node.module), alias.name)
            else:
                self.imports.add(f"from {node.module} import {written}")


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _text(node: ast.stmt, source: str) -> str:
    """Return a statement as written, with the comments right above it."""
    lines = source.splitlines()
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    gap = "\n" if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
    return gap + "\n".join(lines[first : node.end_lineno])
