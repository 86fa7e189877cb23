"""The checks of ``dyart doctor``; apart from its arguments, whose module must be quick to import."""

import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import dyart
from dyart.cli.doctor import BROKEN, NOTE, OK, OLDEST_PYTHON, OLDEST_TORCH, Finding, tried
from dyart.cli.doctor_compile import Trial
from dyart.cli.environment import PACKAGES, gpu_words, version_of
from dyart.data.catalogue import listing
from dyart.data.errors import DataError
from dyart.data.mini import MINI_FILE, MINI_SHA256
from dyart.data.registry import REGISTRY
from dyart.data.store import data_root, manifest, open_stored, sha256

NEEDED_FOR = {
    "train": "every command but data, doctor and completion",
    "eval": "evaluate --attack apgd and autoattack",
    "report": "dyart report",
    "integrations": "dyart.integrations, each its own",
}


def findings(seconds: float) -> Iterator[Finding]:
    """Yield what each check finds. The compiler is tried in another process meanwhile, for so many seconds."""
    trial = Trial("cuda" if torch.cuda.is_available() else "cpu", seconds)
    try:
        yield tried("dyart", _versions)
        for extra in PACKAGES:
            yield tried(extra, partial(_extra, extra))
        yield tried("gpu", _gpu)
        yield tried("search", _search)
        yield tried("data", _embedded)
        yield tried("data sets", _stored)
        for name, folder in {"here": Path(), "data folder": data_root(), "temporary": _temporary()}.items():
            yield tried(name, partial(_writable, name, folder))
        yield tried("compile", trial.finding)
    finally:
        trial.end()


def _versions() -> Finding:
    words = f"{dyart.__version__} in {Path(dyart.__file__).parent}, python {platform.python_version()}, "
    words += f"torch {torch.__version__}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("dyart", BROKEN, f"{words}: python {'.'.join(map(str, OLDEST_PYTHON))} or newer is needed")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        return Finding("dyart", BROKEN, f"{words}: torch {'.'.join(map(str, OLDEST_TORCH))} or newer is needed")
    return Finding("dyart", OK, words)


def _extra(extra: str) -> Finding:
    missing = [package for package in PACKAGES[extra] if version_of(package) is None]
    if not missing:
        return Finding(extra, OK, "all packages are here")
    repair = "" if extra == "integrations" else f"; pip install {' '.join(missing)}"
    return Finding(extra, NOTE, f"not here: {', '.join(missing)} (for {NEEDED_FOR[extra]}){repair}")


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("gpu", NOTE, f"{gpu_words()}: everything runs on the CPU")
    product = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    right = bool((product == 64).all().item())
    return Finding("gpu", OK if right else BROKEN, gpu_words() + ("" if right else ": it computes wrongly"))


def _search() -> Finding:
    """Find a margin that is known: that of a linear classifier."""
    weights, inputs = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    margin = dyart.closest_boundary_points(lambda x: (x - 0.4) @ weights.T, inputs, norm="l2", steps=10).margin.item()
    right = abs(margin - 0.14) < 1e-3
    words = f"found the margin of a linear classifier: {margin:.4f} for 0.1400"
    return Finding("search", OK if right else BROKEN, words)


def _embedded() -> Finding:
    if not MINI_FILE.is_file():
        return Finding("data", BROKEN, f"{MINI_FILE} is missing: install dyart again")
    if sha256(MINI_FILE) != MINI_SHA256:
        return Finding("data", BROKEN, f"{MINI_FILE} was altered (its SHA-256 is another): install dyart again")
    return Finding("data", OK, "the embedded images (fashion-mini) are whole")


def _stored() -> Finding:
    root = data_root()
    wrong = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            if not folder.name.startswith(".") and manifest(folder) is not None:
                open_stored(folder, full=False)  # sizes: reading gigabytes takes too long here
        except DataError as error:
            wrong.append(str(error))
    if wrong:
        return Finding("data sets", BROKEN, "; ".join(wrong))
    lines = listing(root)
    here = [line.name for line in lines if line.present]
    absent = [line.name for line in lines if not line.present and line.name in REGISTRY]
    words = f"here: {', '.join(here)}" + (f"; by `dyart data get NAME`: {', '.join(absent)}" if absent else "")
    return Finding("data sets", OK, words)


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def _writable(name: str, folder: Path) -> Finding:
    """Try to write where results, data and compiled code go; a folder that is not there yet, above it."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"dyart")
    except OSError as error:
        hints = {"here": "go to another folder, or give commands --out", "data folder": "set DYART_DATA to another"}
        repair = hints.get(name, "set TMPDIR to another")
        return Finding(name, BROKEN, f"cannot write into {place} ({error.strerror}): {repair}")
    return Finding(name, OK, f"can write into {folder.resolve()}")
