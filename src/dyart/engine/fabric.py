"""Lightning Fabric, from whichever of its two packages is installed."""

import logging
from typing import TYPE_CHECKING

import torch

from dyart.recipes.config import Precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric
else:
    try:
        from lightning.fabric import Fabric
    except ImportError:
        try:
            from lightning_fabric import Fabric
        except ImportError as error:
            raise ImportError("training needs more packages: pip install 'dyart[train]'") from error

__all__ = ["Fabric", "make_fabric"]


def make_fabric(device: str = "auto", precision: Precision = "fp32") -> Fabric:
    """Return a Fabric for one device.

    Args:
        device: ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"fp32"``, or ``"bf16"`` for the network's inside, with float32 weights.

    Raises:
        ValueError: there is no such device.
    """
    kind, _, number = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise ValueError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r}, but this machine has no GPU that torch can use: use --train.device cpu")
    for name in ("lightning.fabric", "lightning_fabric"):  # advice on precision, which a recipe states
        logging.getLogger(name).setLevel(logging.WARNING)
    devices: int | list[int] = [int(number)] if number else 1
    fabric = Fabric(accelerator=kind, devices=devices, precision="bf16-mixed" if precision == "bf16" else "32-true")
    fabric.launch()
    return fabric
