"""Files of ``torch.save`` with tensors and plain values alone, read without executing anything in them."""

import os
import re
import warnings
import zipfile

import torch


class NeedsCodeError(ValueError):
    """A file holds something that only executing code could bring back."""


def load_plain(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> object:
    """Return what ``torch.save`` wrote, on a device.

    Torch's own words about another file are many lines, and advise to execute what is in it: they are left out.

    Raises:
        NeedsCodeError: it holds Python objects.
        ValueError: it is something else, or damaged.
        OSError: it cannot be opened.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the format: what is wrong with it is said below
            return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch, pickle and zipfile have each their own
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise _explained(path, error) from error


def _explained(path: str | os.PathLike[str], error: Exception) -> ValueError:
    """Return an error of torch's as one of ours."""
    words, start = str(error), f"cannot read {path}"
    if named := re.search(r"GLOBAL (\S+)", words):
        return NeedsCodeError(f"{start} without executing code: it holds a Python object ({named[1]})")
    if not any(name.endswith("/data.pkl") for name in names_inside(path)):
        return ValueError(f"{path} is no file that torch.save wrote, or a damaged one")
    if "weights_only" in words:
        return NeedsCodeError(f"{start} without executing code: it holds more than tensors and plain values")
    return ValueError(f"{start}: {next(iter(words.splitlines()), type(error).__name__)}")


def names_inside(path: str | os.PathLike[str]) -> list[str]:
    """Return what lies in the archive that torch.save writes; nothing for older files, and for others."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except Exception:  # a damaged archive can raise nearly anything
        return []
