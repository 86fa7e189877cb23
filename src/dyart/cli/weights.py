"""Weights from anywhere: read without executing code, matched to a network, and a mismatch explained to a person."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dyart.engine.run import RunError

State = dict[str, Tensor]

# Where checkpoints of other projects keep the state dict, the likelier one first.
NESTED = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights", "params")
SHOWN = 3


def read_weights(path: Path) -> State:
    """Return a state dict from a .safetensors file, or from a .pt file that holds tensors and plain values alone.

    Raises:
        RunError: the file is missing, damaged, or needs code to be executed.
    """
    if not path.is_file():
        raise RunError(f"no weights {path}")
    return _safetensors(path) if path.suffix == ".safetensors" else _from_checkpoint(_pickle(path), path)


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except Exception as error:  # a damaged header can raise nearly anything
        raise RunError(f"{path} is no .safetensors file, or a damaged one: {error}") from error


def _pickle(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle and zipfile have each their own
        named = re.search(r"GLOBAL (\S+)", str(error))
        if not named and not zipfile.is_zipfile(path):
            raise RunError(f"{path} is no file that torch.save wrote, or a damaged one") from error
        why = f"it holds a Python object ({named[1]})" if named else next(iter(str(error).splitlines()), "")
        raise RunError(
            f"cannot read {path} without executing code: {why}; where you trust it, load it in Python and save the "
            "weights alone with torch.save(model.state_dict(), ...)"
        ) from error


def _from_checkpoint(content: object, path: Path) -> State:
    """Return the state dict in what a .pt file holds, one level down if need be."""
    if _is_state(content):
        return dict(content)  # type: ignore[call-overload, no-any-return]
    if isinstance(content, Mapping):
        for name in (*NESTED, *content):
            if _is_state(content.get(name)):
                others = [str(key) for key in content if key != name and _is_state(content[key])]
                more = f" (not: {', '.join(others)})" if others else ""
                print(f"weights: the entry {name!r} of {path}{more}")
                return dict(content[name])
    raise RunError(f"{path} holds no state dict: save it with torch.save(model.state_dict(), ...)")


def _is_state(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(entry, Tensor) for entry in value.values())


def fit_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str, classes: int) -> None:
    """Load a state dict into a network, in the network's own precision.

    A prefix that wrappers leave on every key (``module.``, ``model.``) is taken off or put on, and said so. BatchNorm's
    counters, which old files lack, stay as they are.

    Args:
        model: the network.
        weights: by name.
        name: of their file, for messages.
        classes: of the data, for the message where the last layer does not fit.

    Raises:
        RunError: the weights belong to another network; the message says which keys and shapes differ.
    """
    own = model.state_dict()
    matched, words = _matched(dict(weights), own)
    if words:
        print(f"weights: {words}")
    matched |= {k: v for k, v in own.items() if k.endswith("num_batches_tracked") and k not in matched}
    wrong = _differences(matched, own, classes)
    if wrong:
        raise RunError(f"the weights in {name} do not fit the network: {wrong}")
    model.load_state_dict(matched)


def _matched(weights: State, own: Mapping[str, Tensor]) -> tuple[State, str]:
    """Return the weights under the network's names, and what was done to get there."""
    needed = {key for key in own if not key.endswith("num_batches_tracked")}
    if needed <= set(weights):
        return weights, ""
    for prefix in _prefixes(weights):
        inner = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
        if needed <= set(inner):
            left = len(weights) - len(inner)
            return inner, f"the prefix {prefix!r} is taken off" + (
                f", {left} other entries are left out" if left else ""
            )
    for prefix in _prefixes(own):
        outer = {f"{prefix}{key}": value for key, value in weights.items()}
        if needed <= set(outer):
            return outer, f"the prefix {prefix!r} is put on"
    return weights, ""


def _prefixes(keys: Mapping[str, Tensor]) -> list[str]:
    """Return everything that a key begins with up to a dot, shortest first, in the order of appearance."""
    found = dict.fromkeys(key[: at + 1] for key in keys for at, letter in enumerate(key) if letter == ".")
    return sorted(found, key=lambda prefix: prefix.count("."))


def _differences(weights: Mapping[str, Tensor], own: Mapping[str, Tensor], classes: int) -> str:
    """Return how a state dict differs from the network's, in words; "" if it fits."""
    missing = [key for key in own if key not in weights]
    spare = [key for key in weights if key not in own]
    shapes = [key for key in own if key in weights and weights[key].shape != own[key].shape]
    words = []
    if missing:
        words.append(f"{len(missing)} of its {len(own)} entries are missing ({_some(missing)})")
    if spare:
        words.append(f"{len(spare)} entries are unknown to it ({_some(spare)})")
    if shapes:
        sizes = [f"{key} is {_size(weights[key])} in the file and {_size(own[key])} in the network" for key in shapes]
        words.append(f"{len(shapes)} have another shape ({_some(sizes)})")
    outputs = {weights[k].shape[0] for k in shapes if own[k].ndim and weights[k].ndim and own[k].shape[0] == classes}
    if len(outputs) == 1 and not missing and not spare:
        words.append(f"they seem to be of a network for {outputs.pop()} classes, the data has {classes}")
    return "; ".join(words)


def _some(words: Sequence[str]) -> str:
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"
