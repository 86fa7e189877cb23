"""Small files, written whole or not at all."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None where there is none, or one that nobody can read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401
    """Write a JSON file whole or not at all."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; one that is there already stays until the new one is on the disk."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        synced(partial)
        partial.replace(path)
        synced(path.parent)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(partial):
            error.filename = str(path)  # the one that somebody knows of
        with suppress(OSError):  # where nothing can be written, nothing can be removed: the first error counts
            partial.unlink(missing_ok=True)
        raise


def synced(path: Path) -> None:
    """Return when a file or a folder's list of files is on the disk."""
    if os.name != "posix" and path.is_dir():  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
