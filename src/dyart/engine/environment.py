"""What a training's result depends on beside its configuration."""

import hashlib
import json
import platform
import subprocess  # nosec B404  # fixed commands, without a shell
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dyart.engine.fabric import Fabric
from dyart.methods.awp import SUFFIX
from dyart.models.factory import is_factory, load_named
from dyart.recipes import Config

PACKAGES = ("dyart", "torch", "numpy", "lightning-fabric", "lightning", "safetensors")
SHOWN = 8  # characters of a checksum


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
        "sources": sources(config),
    }


def sources(config: Config, method: bool = True) -> dict[str, str]:
    """Return the SHA-256 of the files that networks and methods of the user's own come from, by module.

    Args:
        config: names them.
        method: False: of the network alone. To measure it, its method's code need not be there.
    """
    found = {}
    names = [config.model.name, *([str(config.method["name"])] if method else [])]
    for name in filter(is_factory, names):
        load_named(name.removesuffix(SUFFIX))
        module = name.split(":")[0]
        file = getattr(sys.modules[module], "__file__", None)
        if file is not None and Path(file).is_file():
            found[module] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
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


def changed_threads(path: Path) -> dict[str, tuple[int, int]]:
    """Return the number of threads before and now, where a training on a CPU had another: its sums depend on it."""
    facts = _facts(path)
    before, now = facts.get("threads"), torch.get_num_threads()
    return {"threads": (before, now)} if facts.get("device") == "cpu" and before not in (None, now) else {}


def recorded(path: Path, key: str) -> dict[str, Any]:
    """Return a section of an ``environment.json``; an empty one where it is missing or damaged."""
    section = _facts(path).get(key)
    return section if isinstance(section, dict) else {}


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # without it, nothing is known
        return {}
    return facts if isinstance(facts, dict) else {}


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
