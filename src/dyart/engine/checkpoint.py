"""Checkpoints: written whole or not at all, checked when read, and read without executing anything.

checkpoints/index.json         which folder is the last, which the best
checkpoints/epoch-0012/        model.safetensors, averaged.safetensors, state.pt, config.yaml, checkpoint.json
                               (facts; sizes and sha256 of the other files; its own sha256)

Format 1 had neither config.yaml nor the manifest's own sha256; it is still read.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dyart.boundary.plain import load_plain
from dyart.engine.files import synced, write_json

FORMAT, READABLE = 2, (1, 2)
INDEX = "index.json"
MANIFEST = "checkpoint.json"
CONFIG = "config.yaml"
SEAL = "sha256"
OLD = ".old"


class CheckpointError(RuntimeError):
    """A checkpoint is missing or damaged; the message names the file."""


class FormatError(CheckpointError):
    """A checkpoint is whole, and of a version that this one cannot read: nothing to fall back from."""


def save(
    folder: Path,
    name: str,
    weights: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
    config: str = "",
) -> Path:
    """Write a checkpoint beside the others and return its folder: written, synced, renamed, and the folder synced.

    Args:
        folder: the run's ``checkpoints``.
        name: of this one; one of the same name is replaced.
        weights: state dicts by file name (without ``.safetensors``).
        state: what resuming needs besides weights: tensors and plain values; None for weights that are only evaluated.
        facts: plain values to show and to choose by, e.g. the epoch.
        config: the resolved configuration, as YAML.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        files = {}
        for file, content in _contents(weights, state, config):
            (partial / file).write_bytes(content)
            files[file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for file in files:  # after all are written: the first takes most of the others along
            synced(partial / file)
        manifest = {"format": FORMAT, **facts, "files": files}
        write_json(partial / MANIFEST, manifest | {SEAL: _seal(manifest)})
        _put_in_place(partial, folder / name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder / name


def _contents(
    weights: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any] | None, config: str
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file, one in memory at a time.

    Through memory, because on a full disk the libraries' own writers raise anything but an OSError.
    """
    from safetensors.torch import save as serialized

    for file, tensors in weights.items():
        yield f"{file}.safetensors", serialized({key: _own(value) for key, value in tensors.items()})
    if state is not None:
        yield "state.pt", _pickled(state)
    if config:
        yield CONFIG, config.encode()


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename. One that is there moves aside first, under a name that is found if this process ends in between."""
    aside = target.with_name(target.name + OLD)
    replaces = target.exists()
    if replaces:
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        if replaces:
            aside.rename(target)
        raise
    synced(target.parent)
    _remove(aside)


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, after comparing it and every file with their checksums.

    Raises:
        CheckpointError: it is missing, or something in it was altered.
        FormatError: it was written by another version.
    """
    path = checkpoint / MANIFEST
    manifest = _read_object(path)
    version = manifest.get("format")
    if isinstance(version, int) and version not in READABLE:
        newer = version > FORMAT
        todo = "it was written by a newer dyart: update dyart" if newer else "begin another run with --out"
        raise FormatError(f"{checkpoint} has format {version}; this version reads {READABLE[0]} to {FORMAT}: {todo}")
    files = manifest.get("files")
    described = {key: value for key, value in manifest.items() if key != SEAL}
    if not isinstance(files, dict) or (version != 1 and manifest.get(SEAL) != _seal(described)):
        raise CheckpointError(f"{path} is damaged (its own sha256 differs); {_instead(checkpoint)}")
    for name, expected in files.items():
        if (checkpoint / name).parent != checkpoint:
            raise CheckpointError(f"{path} names a file outside of its folder, {name}; {_instead(checkpoint)}")
        try:
            found = _described(checkpoint / name)
        except OSError as error:
            raise CheckpointError(f"{checkpoint / name}: {error.strerror}; {_instead(checkpoint)}") from error
        if found != expected:
            raise CheckpointError(
                f"{checkpoint / name} is damaged (size or sha256 differ from {MANIFEST}); {_instead(checkpoint)}"
            )
    return manifest


def read_weights(checkpoint: Path, file: str) -> dict[str, Tensor]:
    """Return the state dict in one file of a checkpoint, on the CPU."""
    from safetensors.torch import load_file

    path = checkpoint / f"{file}.safetensors"
    try:
        return dict(load_file(path))
    except Exception as error:  # a forged file can raise nearly anything
        raise CheckpointError(f"cannot read {path}: {error}") from error


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what resuming needs; tensors and plain values only, nothing is executed."""
    path = checkpoint / "state.pt"
    try:
        state = load_plain(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no state of a training: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not the state of a training")
    return state


def read_index(folder: Path) -> dict[str, str]:
    """Return which checkpoint is the ``last`` and which the ``best``; empty if there is none.

    Raises:
        CheckpointError: the index is damaged, or missing beside checkpoints.
    """
    path = folder / INDEX
    if not path.is_file() and not present(folder):
        return {}
    index = _read_object(path)
    if "last" not in index or not all(isinstance(name, str) and Path(name).name == name for name in index.values()):
        raise CheckpointError(f"{path} is damaged: it names no last checkpoint; resuming the run makes it anew")
    return index


def write_index(folder: Path, index: Mapping[str, str], keep: int) -> None:
    """Point to the last and the best checkpoint, then remove all but these and the ``keep`` newest."""
    write_json(folder / INDEX, dict(index))
    steps = {path: step_of(path) for path in present(folder)}
    last = steps.get(folder / index["last"], 0)
    spare = [path for path in steps if path.name not in index.values() and not path.name.endswith(OLD)]
    # What lies ahead of the last was left by a training that went back; what cannot be read counts as oldest.
    spare.sort(key=lambda path: -1 if steps[path] > last else steps[path], reverse=True)
    # Of a process that was killed.
    unfinished = [path for path in (*folder.glob(".*"), *folder.glob(f"*{OLD}")) if path.is_dir()]
    for path in spare[keep - 1 :] + unfinished:
        _remove(path)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; under a name that says so first, in case this process ends on the way."""
    hidden = checkpoint.with_name(f".{checkpoint.name.removeprefix('.')}")
    with suppress(OSError):
        if hidden != checkpoint:
            shutil.rmtree(hidden, ignore_errors=True)
            checkpoint.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def present(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints, damaged ones included."""
    return [path.parent for path in folder.glob(f"[!.]*/{MANIFEST}")]


def epoch_name(epoch: int) -> str:
    """Return the name of an epoch's checkpoint, which sorts by the epoch."""
    return f"epoch-{epoch:04d}"


def step_of(checkpoint: Path) -> int:
    """Return a checkpoint's step, as its manifest says; -1 where that cannot be read."""
    try:
        step = _read_object(checkpoint / MANIFEST).get("step", -1)
    except CheckpointError:
        return -1
    return step if isinstance(step, int) else -1


def _instead(checkpoint: Path) -> str:
    """Return what to do about a checkpoint that cannot be read: which others there are, and who may mend it."""
    others = [path for path in sorted(checkpoint.parent.glob("epoch-*")) if path != checkpoint and path.is_dir()]
    named = f" ({', '.join(str(path) for path in others)})" if others else ""
    return f"use another checkpoint{named}, or go on without it: dyart train {checkpoint.parent.parent} --resume"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
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


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _pickled(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()
