"""Weights from anywhere: read without executing code, matched to a network, and a mismatch explained to a person."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from torch import Tensor, nn

from dyart.boundary.plain import NeedsCodeError, load_plain, names_inside
from dyart.engine.stored import RunError

State = dict[str, Tensor]

# Where checkpoints of other projects keep the state dict, the likelier one first.
NESTED = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights", "params")
SHOWN = 3
TRUSTED = "where you trust it, write in Python"
WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")


def read_weights(path: Path) -> State:
    """Return a state dict from a .safetensors file, or from a .pt file that holds tensors and plain values alone.

    Raises:
        RunError: the file is missing, damaged, or needs code to be executed.
    """
    check_weights_file(path)
    return _safetensors(path) if path.suffix == ".safetensors" else _from_checkpoint(_pickle(path), path)


def check_weights_file(path: Path) -> None:
    """Raise an error that names what may be meant if there is no such file."""
    if path.is_dir():
        raise RunError(f"{path} is a folder: name the file of the weights in it")
    if not path.is_file():
        raise RunError(f"there is no file {path} (weights){_near(path)}")


def _near(path: Path) -> str:
    """Return the files beside it that may be meant."""
    here = path.parent
    files = [file.name for file in here.iterdir() if file.is_file()] if here.is_dir() else []
    near = get_close_matches(path.name, files, 1) or [name for name in files if name.endswith(WEIGHTS)][:SHOWN]
    return f"; did you mean {', '.join(str(here / name) for name in near)}?" if near else ": look for a misspelt name"


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except Exception as error:  # a damaged header can raise nearly anything
        raise RunError(f"{path} is no .safetensors file, or a damaged one: {error}") from error


def _pickle(path: Path) -> object:
    try:
        path.open("rb").close()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    inside = names_inside(path)
    if inside and all(name.endswith(".npy") for name in inside):
        raise RunError(
            f"{path} holds arrays of numpy: data goes with --data, weights are a .safetensors file or what "
            "torch.save(model.state_dict(), ...) writes"
        )
    if any(name.endswith("/constants.pkl") for name in inside):
        raise RunError(
            f"{path} is a TorchScript archive, a program: {TRUSTED} torch.save(torch.jit.load({str(path)!r})"
            '.state_dict(), "weights.pt"), or pass torch.jit.load(...) to dyart.evaluate'
        )
    try:
        return load_plain(path)
    except NeedsCodeError as error:
        raise RunError(
            f"{error}; {TRUSTED} held = torch.load({str(path)!r}, weights_only=False), then "
            'torch.save(held["state_dict"] if isinstance(held, dict) else held.state_dict(), "weights.pt"), with the '
            "entry that has the weights"
        ) from error
    except ValueError as error:
        raise RunError(str(error)) from error


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
    held = (
        f"the entries {some([str(name) for name in content])}"
        if isinstance(content, Mapping)
        else type(content).__name__
    )
    raise RunError(
        f'{path} holds no state dict, but {held}: save one with torch.save(model.state_dict(), "weights.pt")'
    )


def _is_state(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(entry, Tensor) for entry in value.values())


def fit_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    name: str,
    classes: int,
    advice: Callable[[int], str] | None = None,
) -> None:
    """Load a state dict into a network, in the network's own precision.

    A prefix that wrappers leave on every key (``module.``, ``model.``) is taken off or put on, and said so. BatchNorm's
    counters, which old files lack, stay as they are.

    Args:
        model: the network.
        weights: by name.
        name: of their file, for messages.
        classes: of the data, for the message where the last layer does not fit.
        advice: returns what to do then, for the end of that message, from the number of classes of the weights.

    Raises:
        RunError: the weights belong to another network; the message says which keys and shapes differ.
    """
    own = model.state_dict()
    matched, words = _matched(dict(weights), own)
    if words:
        print(f"weights: {words}")
    matched |= {k: v for k, v in own.items() if k.endswith("num_batches_tracked") and k not in matched}
    wrong = _differences(matched, own, classes, advice or (lambda outputs: ""))
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


def _differences(
    weights: Mapping[str, Tensor], own: Mapping[str, Tensor], classes: int, advice: Callable[[int], str]
) -> str:
    """Return how a state dict differs from the network's, in words; "" if it fits."""
    missing = [key for key in own if key not in weights]
    spare = [key for key in weights if key not in own]
    shapes = [key for key in own if key in weights and weights[key].shape != own[key].shape]
    words = []
    if missing:
        words.append(f"{len(missing)} of its {len(own)} entries are missing ({some(missing)})")
    if spare:
        words.append(f"{len(spare)} entries are unknown to it ({some(spare)})")
    if shapes:
        sizes = [f"{key} is {_size(weights[key])} in the file and {_size(own[key])} in the network" for key in shapes]
        words.append(f"{len(shapes)} have another shape ({some(sizes)})")
    outputs = {weights[k].shape[0] for k in shapes if own[k].ndim and weights[k].ndim and own[k].shape[0] == classes}
    if len(outputs) == 1 and outputs != {classes} and not missing and not spare:
        count = outputs.pop()
        words.append(f"they seem to be of a network for {count} classes, the data has {classes}{advice(count)}")
    return "; ".join(words)


def some(words: Sequence[str]) -> str:
    """Return the first of several words, and how many more there are."""
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"
