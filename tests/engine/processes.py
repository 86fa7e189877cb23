"""Trainings in processes of their own, to be killed: forked from a server that has imported everything already."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from engine_cases import numbers

from dyart.cli import main
from dyart.recipes import Config, dump

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["dyart.cli.main", "dyart.engine.run", "dyart.engine.display", "safetensors.torch"])
DEADLINE = 60.0


def started(target: Callable[..., None], *arguments):
    """Begin a function of an importable module in a process of its own."""
    process = SERVER.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def ended(process) -> int:
    """Wait for a process and return its exit status, negative for a signal."""
    process.join(DEADLINE)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


def command(words: list[str], said: Path) -> None:
    """Run ``dyart`` with what it says in a file: the target of a process."""
    torch.set_num_threads(1)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.exit(main(words))


def trained(config: Config, resume: bool = False):
    """Begin ``dyart train`` of a configuration, and return its process; what it says is in ``<folder>.said``."""
    folder = Path(config.out)
    recipe = folder.with_suffix(".yaml")
    recipe.write_text(dump(config))
    words = ["train", str(folder), "--resume"] if resume else ["train", str(recipe)]
    return started(command, [*words, "--quiet"], folder.with_suffix(".said"))


def stopped_when(process, folder: Path, reached: Callable[[list[dict]], bool]) -> None:
    """Stop (SIGSTOP) a training as soon as its metrics say that it is where it is wanted."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.exitcode is None:
        time.sleep(0.005)
        if not (folder / "metrics.jsonl").is_file() or not reached(numbers(folder)):
            continue
        os.kill(process.pid, signal.SIGSTOP)
        if reached(numbers(folder)):  # it may have gone on in between
            return
        os.kill(process.pid, signal.SIGCONT)
    raise AssertionError(f"the run was never seen in mid-run; it said {folder.with_suffix('.said').read_text()!r}")
