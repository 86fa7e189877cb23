"""Anybody's own network, named as ``package.module:factory``; and anything else that is named so."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dyart.boundary.model import evaluation_mode

NORMALISATION = ("mean", "std")


def is_factory(name: str) -> bool:
    """Return whether ``name`` is written as ``package.module:factory``."""
    return ":" in name


def load_factory(name: str) -> Callable[..., object]:
    """Return what makes a network: ``load_named`` of ``package.module:factory``, if that can be called."""
    found = load_named(name)
    if isinstance(found, nn.Module):
        raise TypeError(f"{name!r} is a network, not a function that makes one: wrap it as `def factory(): return ...`")
    if not callable(found):
        raise TypeError(f"{name!r} must be a function or class that makes a network, got {type(found).__name__}")
    return found


def load_named(name: str, kind: str = "network", form: str = "package.module:factory") -> object:
    """Import what ``name`` names, ``package.module:attribute``, and return it.

    The working directory counts as a place to import from, after all others: what is one's own is often a file there.

    Args:
        name: of the module and of something in it, with dots for what lies deeper.
        kind: what it should be, for the error messages.
        form: how such a name is written, for the error messages.
    """
    with _working_directory_importable():
        return _imported(name, kind, form)


def call_factory(
    name: str,
    factory: Callable[..., object],
    always: Mapping[str, object],
    options: Mapping[str, object],
    shape: tuple[int, ...],
) -> tuple[nn.Module, set[str]]:
    """Return the factory's network and the names of the arguments that it was given.

    Args:
        name: for the error messages.
        factory: from ``load_factory``.
        always: arguments passed if the factory's signature has them by name or by ``**kwargs``.
        options: arguments passed only if it has them by name.
        shape: of one example, which shows lazy layers their sizes.
    """
    given = _accepted(name, factory, always, options)
    try:
        with _working_directory_importable():
            network = factory(**given)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError, RuntimeError) as error:
        bound = getattr(factory, "keywords", {})  # of a partial: the user's own
        words = ", ".join(f"{key}={value!r}" for key, value in {**bound, **given}.items())
        raise TypeError(f"{name}({words}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise TypeError(f"{name!r} must return a torch.nn.Module, it returned {type(network).__name__}")
    if _lazy(network):
        _complete(name, network, shape)
    return network, set(given)


def unused_normalisation(factory: Callable[..., object]) -> bool:
    """Return whether a factory takes a mean and a std, and normalises by none unless it is given them.

    A default other than None is a normalisation of its own.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        return False
    nothing = (inspect.Parameter.empty, None)  # told apart by identity: a default may be an array
    return all(name in parameters and any(parameters[name].default is one for one in nothing) for name in NORMALISATION)


def _complete(name: str, network: nn.Module, shape: tuple[int, ...]) -> None:
    """Give lazy layers their sizes, and first weights, by two examples: stored weights have places then."""
    device = next(chain(network.parameters(), network.buffers())).device
    try:
        with torch.no_grad(), evaluation_mode(network):
            network(torch.zeros(2, *shape, device=device))
    except Exception as error:
        raise TypeError(f"{name!r} has lazy layers, and fails on examples of shape {shape}: {error}") from error
    if left := _lazy(network):
        raise TypeError(f"{name!r} has lazy layers that a forward pass in eval mode does not reach: {', '.join(left)}")


def _lazy(network: nn.Module) -> list[str]:
    """Return the names of what has no size yet."""
    return [name for name, tensor in chain(network.named_parameters(), network.named_buffers()) if is_lazy(tensor)]


def _imported(name: str, kind: str, form: str) -> object:
    path, _, attribute = name.partition(":")
    if not path or not attribute or ":" in attribute:
        raise ValueError(f"write a {kind} of your own as '{form}', got {name!r}")
    if path.endswith(".py") or "/" in path or os.sep in path:
        raise ValueError(f"{path!r} is a file: write the module's name, '{form}', without .py or slash")
    try:
        found: object = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the module exists, and what it imports does not
        raise ModuleNotFoundError(
            f"{name!r}: there is no module {error.name!r}; install it, or run in the folder that holds it",
            name=error.name,
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"{name!r}: {getattr(found, '__name__', path)!r} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _accepted(
    name: str, factory: Callable[..., object], always: Mapping[str, object], options: Mapping[str, object]
) -> dict[str, object]:
    """Return those of the arguments that the factory's signature accepts as keywords."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some compiled callables have none
        return dict(always)
    parameters = signature.parameters.values()
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = {key: value for key, value in always.items() if takes_all or key in by_name}
    given |= {key: value for key, value in options.items() if key in by_name}
    try:
        signature.bind(**given)
    except TypeError as error:
        lacking = any(p.name in NORMALISATION and p.default is p.empty and p.name not in given for p in parameters)
        source = "; mean and std come from --mean and --std, or model.mean and model.std of a training"
        raise TypeError(
            f"{name!r} has the signature {signature}: {error}. It is called as factory(classes=..., shape=...), with "
            f"those of {', '.join([*always, *options])} that it names; all others need a default"
            + (source if lacking else "")
        ) from None
    return given


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    """Append the working directory to the places that modules are imported from."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
