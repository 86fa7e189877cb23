"""Checkpoints: written whole or not at all, checked when read, and read without executing anything.

checkpoints/index.json         which folder is the last, which the best
checkpoints/epoch-0012/        model.safetensors, averaged.safetensors, state.pt, checkpoint.json (sizes, sha256)
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = 1
INDEX = "index.json"
MANIFEST = "checkpoint.json"


class CheckpointError(RuntimeError):
    """A checkpoint is missing or damaged; the message names the file."""


def save(
    folder: Path,
    name: str,
    weights: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
) -> Path:
    """Write a checkpoint beside the others and return its folder.

    Args:
        folder: the run's ``checkpoints``.
        name: of this one; one of the same name is replaced.
        weights: state dicts by file name (without ``.safetensors``).
        state: what resuming needs beside weights: tensors and plain values; None for weights that are only evaluated.
        facts: plain values to show and to choose by, e.g. the epoch.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        for file, tensors in weights.items():
            save_file({key: _own(value) for key, value in tensors.items()}, partial / f"{file}.safetensors")
        if state is not None:
            torch.save(dict(state), partial / "state.pt")
        files = {path.name: _described(path) for path in sorted(partial.iterdir())}
        write_json(partial / MANIFEST, {"format": FORMAT, **facts, "files": files})
        for path in partial.iterdir():
            _synced(path)
        target = folder / name
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _synced(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, after comparing every file with it.

    Raises:
        CheckpointError: it is missing, of another format, or a file was altered.
    """
    try:
        manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"no checkpoint in {checkpoint}: {error}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{checkpoint} has format {manifest.get('format')}; this version reads {FORMAT}")
    for name, expected in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file() or _described(path) != expected:
            raise CheckpointError(f"{path} is damaged (size or sha256 differ from {MANIFEST}); use another checkpoint")
    return manifest


def read_weights(checkpoint: Path, file: str) -> dict[str, Tensor]:
    """Return the state dict in one file of a checkpoint, on the CPU."""
    from safetensors.torch import load_file

    return dict(load_file(checkpoint / f"{file}.safetensors"))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what resuming needs; tensors and plain values only, nothing is executed."""
    state: dict[str, Any] = torch.load(checkpoint / "state.pt", map_location="cpu", weights_only=True)
    return state


def read_index(folder: Path) -> dict[str, str]:
    """Return which checkpoint is the ``last`` and which the ``best``; empty if there is none."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    index: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return index


def write_index(folder: Path, index: Mapping[str, str], keep: int) -> None:
    """Point to the last and the best checkpoint, then remove all but these and the ``keep`` newest."""
    write_json(folder / INDEX, dict(index))
    _synced(folder)
    spare = [path.parent for path in folder.glob(f"[!.]*/{MANIFEST}") if path.parent.name not in index.values()]
    spare.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in spare[keep - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401
    """Write a JSON file whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    _synced(partial)
    partial.replace(path)


def _own(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
