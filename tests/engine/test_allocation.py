"""Memory that a process keeps: asked for where it can be, and not over the user's own settings."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from dyart.engine import allocation

LINUX = sys.platform.startswith("linux")
# Page faults of a tensor's work that comes again and again: those of the quietest of four rounds, since the heap may
# still grow in one of them.
FAULTS = """
import resource, torch
from dyart.engine.allocation import keep_freed_memory
assert keep_freed_memory()
x = torch.rand(200_000)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        y = [x + 1 for _ in range(8)]
        del y
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(4)))
"""


@pytest.mark.skipif(not LINUX, reason="a setting of Linux's C library")
def test_memory_that_is_freed_and_asked_for_again_is_not_paged_in_anew():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    # 400 tensors of 195 pages each; given back, all or some of them come anew, as the heap happens to lie.
    assert int(done.stdout) < 300


@pytest.mark.parametrize("taken", [1, 0])
def test_both_thresholds_are_set(taken, monkeypatch):
    calls = []

    def mallopt(parameter, value):
        calls.append((parameter, value))
        return taken

    for name in allocation.OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation.sys, "platform", "linux")
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert allocation.keep_freed_memory() == bool(taken)
    assert calls == [(-1, 2**30), (-3, 2**25)][: 1 + taken]


@pytest.mark.parametrize("name", allocation.OWN)
def test_settings_of_the_user_stay(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(allocation.ctypes, "CDLL", pytest.fail)
    assert not allocation.keep_freed_memory()


@pytest.mark.parametrize(("platform", "error"), [("darwin", None), ("linux", OSError), ("linux", AttributeError)])
def test_another_c_library_is_left_alone(platform, error, monkeypatch):
    def library(name):
        raise error or AssertionError("not asked for elsewhere")

    for name in allocation.OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation.sys, "platform", platform)
    monkeypatch.setattr(allocation.ctypes, "CDLL", library)
    assert not allocation.keep_freed_memory()
