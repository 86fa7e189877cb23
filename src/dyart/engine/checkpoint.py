"""Checkpoints: written whole or not at all, checked when read, and read without executing anything.

checkpoints/index.json         which folder is the last, which the best
checkpoints/epoch-0012/        model.safetensors, averaged.safetensors, state.pt, checkpoint.json (sizes, sha256)
"""

import hashlib
import io
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dyart.engine.files import synced, write_json

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
    from safetensors.torch import save as serialized

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        # Through memory: on a full disk the libraries' own writers raise anything but an OSError.
        for file, tensors in weights.items():
            content = serialized({key: _own(value) for key, value in tensors.items()})
            (partial / f"{file}.safetensors").write_bytes(content)
        if state is not None:
            (partial / "state.pt").write_bytes(_pickled(state))
        files = {path.name: _described(path) for path in sorted(partial.iterdir())}
        write_json(partial / MANIFEST, {"format": FORMAT, **facts, "files": files})
        for path in partial.iterdir():
            synced(path)
        target = folder / name
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        synced(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, after comparing every file with it.

    Raises:
        CheckpointError: it is missing, of another format, or a file was altered.
    """
    manifest = _read_object(checkpoint / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{checkpoint} has format {manifest.get('format')}; this version reads {FORMAT}")
    for name, expected in manifest.get("files", {}).items():
        path = checkpoint / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; use another checkpoint")
        if _described(path) != expected:
            raise CheckpointError(f"{path} is damaged (size or sha256 differ from {MANIFEST}); use another checkpoint")
    return manifest


def read_weights(checkpoint: Path, file: str) -> dict[str, Tensor]:
    """Return the state dict in one file of a checkpoint, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = checkpoint / f"{file}.safetensors"
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what resuming needs; tensors and plain values only, nothing is executed."""
    path = checkpoint / "state.pt"
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"cannot read {path} (tensors and plain values are read, nothing else): {error}"
        ) from error
    return state


def read_index(folder: Path) -> dict[str, str]:
    """Return which checkpoint is the ``last`` and which the ``best``; empty if there is none.

    Raises:
        CheckpointError: the index is damaged, or missing beside checkpoints.
    """
    path = folder / INDEX
    if not path.is_file() and not _checkpoints(folder):
        return {}
    index = _read_object(path)
    if "last" not in index:
        raise CheckpointError(f"{path} names no last checkpoint")
    return index


def write_index(folder: Path, index: Mapping[str, str], keep: int) -> None:
    """Point to the last and the best checkpoint, then remove all but these and the ``keep`` newest."""
    write_json(folder / INDEX, dict(index))
    synced(folder)
    spare = [path for path in _checkpoints(folder) if path.name not in index.values()]
    spare.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    unfinished = [path for path in folder.glob(".*") if path.is_dir()]  # of a process that was killed
    for path in spare[keep - 1 :] + unfinished:
        shutil.rmtree(path, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob(f"[!.]*/{MANIFEST}")]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: it holds no JSON object")
    return value


def _own(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _pickled(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()
