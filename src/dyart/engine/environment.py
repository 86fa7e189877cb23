"""What a training's result depends on besides its configuration."""

import platform
import subprocess  # nosec B404  # fixed commands, without a shell
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dyart.engine.fabric import Fabric
from dyart.engine.files import read_object
from dyart.engine.sources import own_sources
from dyart.methods.awp import SUFFIX
from dyart.models.factory import is_factory
from dyart.recipes import Config

PACKAGES = ("dyart", "torch", "numpy", "lightning-fabric", "lightning", "safetensors")
SHOWN = 8  # characters of a checksum


def environment(config: Config, fabric: Fabric) -> dict[str, Any]:
    """Return what a result depends on besides its configuration."""
    return {"seed": config.seed, "platform": platform.platform(), **_around(fabric), "sources": sources(config)}


def _around(fabric: Fabric) -> dict[str, Any]:
    device = fabric.device
    return {
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "processes": fabric.world_size,
        "commit": commit(),
    }


def sources(config: Config, method: bool = True) -> dict[str, str]:
    """Return the SHA-256 of the files that networks and methods of the user's own come from, by module (see sources).

    Args:
        config: names them.
        method: False: of the network alone. To measure it, its method's code need not be there.
    """
    found: dict[str, str] = {}
    names = [config.model.name, *([str(config.method["name"])] if method else [])]
    for name in filter(is_factory, names):
        found |= own_sources(name.removesuffix(SUFFIX))
    return found


def changed_sources(path: Path, config: Config, method: bool = True) -> dict[str, tuple[str, str]]:
    """Return the modules whose files are others than an ``environment.json`` says, with the beginnings of both sums.

    Args:
        path: of the ``environment.json``.
        config: names the network and the method.
        method: see ``sources``.
    """
    before = recorded(path, "sources")
    try:
        now = sources(config, method) if before else {}
    except (ValueError, LookupError, TypeError, AttributeError):  # whoever calls them says what is wrong
        return {}
    return {
        f"{name}.py": (str(before[name])[:SHOWN], digest[:SHOWN])
        for name, digest in now.items()
        if before.get(name, digest) != digest
    }


def changed_surroundings(path: Path, fabric: Fabric) -> dict[str, tuple[Any, Any]]:
    """Return what a training depends on and an ``environment.json`` says otherwise, before and now.

    That is the versions of Python and packages, the device, the processes, our commit and, on a CPU, the threads.
    """
    before, now = _flat(read_object(path) or {}), _flat(_around(fabric))
    if now["device"] != "cpu":
        del now["threads"]
    return {name: (before[name], value) for name, value in now.items() if before.get(name, value) != value}


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    versions = facts.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    return facts | {f"versions.{name}": version for name, version in versions.items()} | {"versions": None}


def recorded(path: Path, key: str) -> dict[str, Any]:
    """Return a section of an ``environment.json``; an empty one where it is missing or damaged."""
    section = (read_object(path) or {}).get(key)
    return section if isinstance(section, dict) else {}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
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
