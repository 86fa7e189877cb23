"""Files of weights that say which network they belong to, in the header of a .safetensors file.

Such a file is all that it takes to measure a network: ``dyart evaluate w.safetensors``. Only networks of this package
are described, by settings that are known here: a file of weights must not name code to be run.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dyart.boundary.messages import first_line
from dyart.models.registry import NAMES, NETWORKS, build

SUFFIX = ".safetensors"
ENTRY = "dyart"  # of the header
SETTINGS = ("normalization", "activation", "mean", "std", "bn_momentum")

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Description:
    """The network that weights belong to, and the data that it was trained on."""

    name: str
    """One of ``dyart.models.NAMES``."""
    classes: int
    shape: tuple[int, ...]
    """Of one example."""
    data: str = ""
    """The name of a data set; "" where it has none that others know."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``build``, as far as ``SETTINGS`` names them."""

    @property
    def activation(self) -> str:
        """The network's activation, which no weight shows."""
        return str(self.settings.get("activation") or NETWORKS[self.name].activation)


def save(weights: Mapping[str, Tensor], path: str | Path, description: Description) -> None:
    """Write weights with a description, which ``load`` reads; the file is whole or not there.

    Args:
        weights: a state dict, of any precision.
        path: of the file, ending in .safetensors.
        description: of their network.

    Raises:
        ValueError: the network is not one of this package, or the weights are not of it.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"{path}: the name of a described file ends in {SUFFIX}")
    content = packed(weights, description)
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def packed(weights: Mapping[str, Tensor], description: Description) -> bytes:
    """Return what ``save`` writes."""
    from safetensors.torch import save as pack

    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    _check({name: tuple(value.shape) for name, value in tensors.items()}, description)
    return pack(tensors, {ENTRY: json.dumps(asdict(description))})


def load(path: str | Path) -> nn.Module:
    """Return the network of a described file with its weights, in eval mode, float32, on the CPU.

    No code of the file is executed. The global random state is left alone.

    Args:
        path: of a .safetensors file that ``dyart export`` wrote, or of a published model.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no .safetensors file, has no description, or one that its weights do not fit.
    """
    from safetensors.torch import load_file

    described = description_of(path)
    if described is None:
        raise ValueError(f"{path} does not say which network it belongs to: make that with build, and load its weights")
    with torch.device("cpu"):
        model = build(described.name, described.classes, described.shape, **described.settings, seed=0).float()
        model.load_state_dict(load_file(path))
    return model.eval()


def description_of(path: str | Path) -> Description | None:
    """Return what a file says of its network, if its weights may be of that; None where it says nothing.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no .safetensors file, or what it says cannot be read, or its weights are of something else.
    """
    from safetensors import safe_open

    if Path(path).is_dir():
        raise FileNotFoundError(
            f"{path} is a folder: if it is a run, dyart export {path} writes its network to "
            f"{Path(path) / 'export' / 'model.safetensors'}, which can be loaded"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(ENTRY)
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a damaged header can raise nearly anything
        raise ValueError(f"{path} is no .safetensors file, or a damaged one: {error}") from error
    if text is None:
        return None
    try:
        content = json.loads(text)
        found = Description(**{**content, "shape": tuple(content["shape"])})
        _check(shapes, found)
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
        words = f"{path} describes its network in a way that cannot be read here: {first_line(error)}"
        raise ValueError(words) from None
    return found


def is_name(data: str) -> bool:
    """Return whether a data set is named, and not a path on somebody's machine."""
    return re.fullmatch(r"[\w-]+", data) is not None


def _check(shapes: Shapes, description: Description) -> None:
    """Raise unless the description is of a network of this package with weights of these shapes; allocates nothing."""
    if description.name not in NAMES:
        raise ValueError(f"only networks of this package are described ({', '.join(NAMES)}), not {description.name!r}")
    if not isinstance(description.settings, Mapping):
        raise ValueError("its settings must be a dictionary")
    if not isinstance(description.data, str) or not (description.data == "" or is_name(description.data)):
        raise ValueError("its data must be the name of a data set")
    if unknown := sorted(description.settings.keys() - set(SETTINGS)):
        raise ValueError(f"unknown settings {', '.join(map(str, unknown))}")
    with torch.device("meta"):
        network = build(description.name, description.classes, description.shape, **description.settings)
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    if expected != shapes:
        different = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        raise ValueError(f"the weights are not of the {description.name} that it names ({', '.join(different[:3])})")
