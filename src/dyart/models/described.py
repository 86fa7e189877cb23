"""Files of weights that say which network they belong to, in the header of a .safetensors file.

Such a file is all that it takes to measure a network: ``dyart evaluate w.safetensors``. Only networks of this package
are described: a file of weights must not name code to be run.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dyart.models.registry import NAMES, build

SUFFIX = ".safetensors"
ENTRY = "dyart"  # of the header


@dataclass(frozen=True)
class Description:
    """The network that weights belong to, and the data that it was trained on."""

    name: str
    classes: int
    shape: tuple[int, ...]
    data: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``build``."""


def save(weights: Mapping[str, Tensor], path: str | Path, description: Description) -> None:
    """Write weights with a description, which ``load`` reads.

    Args:
        weights: a state dict, of any precision.
        path: of the .safetensors file.
        description: of their network.

    Raises:
        ValueError: the network is not one of this package.
    """
    Path(path).write_bytes(packed(weights, description))


def packed(weights: Mapping[str, Tensor], description: Description) -> bytes:
    """Return what ``save`` writes."""
    from safetensors.torch import save as pack

    _check_name(description.name)
    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    return pack(tensors, {ENTRY: json.dumps(asdict(description))})


def load(path: str | Path) -> nn.Module:
    """Return the network of a described file with its weights, in eval mode, float32, on the CPU.

    No code of the file is executed.

    Args:
        path: of a .safetensors file that ``dyart export`` wrote, or of a published model.

    Raises:
        ValueError: it is no such file, has no description, or one that its weights do not fit.
    """
    from safetensors.torch import load_file

    described = description_of(path)
    if described is None:
        raise ValueError(f"{path} does not say which network it belongs to: make that with build, and load its weights")
    model = build(described.name, described.classes, described.shape, **described.settings)
    try:
        model.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ValueError(f"the weights in {path} are not of the {described.name} that it describes: {error}") from None
    return model.eval()


def description_of(path: str | Path) -> Description | None:
    """Return what a file says of its network; None where it says nothing.

    Raises:
        ValueError: it is no .safetensors file, or what it says cannot be read.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(ENTRY)
    except Exception as error:  # a damaged header can raise nearly anything
        raise ValueError(f"{path} is no .safetensors file, or a damaged one: {error}") from error
    if text is None:
        return None
    try:
        content = json.loads(text)
        found = Description(**{**content, "shape": tuple(content["shape"])})
        _check_name(found.name)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} describes its network in a way that this version cannot read: {error}") from None
    return found


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"only networks of this package are described ({', '.join(NAMES)}), not {name!r}")
