"""Whether torch.compile works here: really tried, in a process of its own, which can be ended."""

import os
import shutil
import signal
import subprocess  # nosec B404  # fixed commands, without a shell
import sys
import tempfile
import time
from contextlib import suppress

from dyart.cli.doctor import BROKEN, NOTE, OK, Finding

PROGRAM = """
import sys, torch
compiled = torch.compile(lambda x: torch.sin(x) * 2 + x, dynamic=False)
x = torch.linspace(0, 1, 64, device=sys.argv[1])
assert torch.allclose(compiled(x), torch.sin(x) * 2 + x, atol=1e-5), "compiled code computes something else"
from torch._inductor import metrics
assert metrics.generated_kernel_count > 0, "nothing was compiled"
"""

FALLS_BACK = {
    "cpu": "trainings and evaluations on the CPU run uncompiled anyway",
    "cuda": "--train.compile off, and `dyart evaluate --compile off`, do without",
}


class Trial:
    """A small function is compiled from nothing, past all caches.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        seconds: after which it is ended.
    """

    def __init__(self, device: str, seconds: float) -> None:
        """Begin."""
        self.device, self.started = device, time.monotonic()
        self.seconds = seconds
        self.folder = tempfile.mkdtemp(prefix="dyart-doctor-")
        caches = {"TORCHINDUCTOR_CACHE_DIR": self.folder, "TRITON_CACHE_DIR": self.folder}
        self.process = subprocess.Popen(  # nosec B603  # a program of ours, in this Python
            [sys.executable, "-c", PROGRAM, device],
            env={**os.environ, **caches, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # with whatever it starts, to be ended together
        )

    def finding(self) -> Finding:
        """Wait for the end, or the limit, and say what came of it."""
        left = self.started + self.seconds - time.monotonic()
        try:
            _, said = self.process.communicate(timeout=max(left, 0.1))
        except subprocess.TimeoutExpired:
            words = f"not done after {self.seconds:g} s (`dyart doctor --seconds 60` waits longer)"
            return Finding("compile", NOTE, f"{words}: {FALLS_BACK[self.device]}")
        if self.process.returncode == 0:
            words = f"torch.compile works for the {self.device}, {time.monotonic() - self.started:.1f} s from nothing"
            return Finding("compile", OK, words)
        verdict = NOTE if self.device == "cpu" else BROKEN
        return Finding("compile", verdict, f"does not work ({_reason(said)}): {FALLS_BACK[self.device]}")

    def end(self) -> None:
        """End what is left of it, and remove what it wrote."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _reason(said: str) -> str:
    """Return the line of a traceback that says most."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] or "Exception" in line.split(":")[0]]
    for telling in ("compiler", "triton"):
        named = [line for line in errors if telling in line.lower()]
        if named:
            return named[-1]
    return (errors or lines or ["it ended without a word"])[-1]
