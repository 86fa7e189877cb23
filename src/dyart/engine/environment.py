"""What a training's result depends on beside its configuration."""

import platform
import subprocess  # nosec B404  # fixed commands, without a shell
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dyart.engine.fabric import Fabric
from dyart.recipes import Config

PACKAGES = ("dyart", "torch", "numpy", "lightning-fabric", "lightning", "safetensors")


def environment(config: Config, fabric: Fabric) -> dict[str, Any]:
    """Return what a result depends on beside its configuration."""
    device = fabric.device
    return {
        "seed": config.seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "processes": fabric.world_size,
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the source tree that is running, if it is one."""
    here = Path(__file__).parent
    if "site-packages" in here.parts:  # installed, perhaps inside a repository of something else
        return None
    # The commit itself, also where there are tags.
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        # Words of ours and this file's own place.
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # nosec B603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
