"""Memory that runs out: pieces are halved, the work goes on, the result is the same, and one line says so."""

import resource
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

import dyart
from dyart.attacks.accuracy import correct, resists_pgd
from dyart.boundary.memory import Pieces


class Small(nn.Module):
    """A network on a device that has room for so many examples."""

    def __init__(self, room):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()
        self.room, self.largest = room, 0
        self.error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    def forward(self, inputs):
        if len(inputs) > self.room:
            raise self.error
        self.largest = max(self.largest, len(inputs))
        return self.layers(inputs)


INPUTS = torch.rand(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WIDE = Small(1000).eval()
LABELS = WIDE(INPUTS).argmax(dim=1)


def same(one, other):
    for name in ("margin", "points", "value", "found", "rival", "alignment"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), equal_nan=True)


@pytest.mark.parametrize("room", [1, 3, 20])
@pytest.mark.parametrize("batch_size", [None, 32])
def test_search(caplog, room, batch_size):
    options = {"steps": 8, "restarts": 3, "batch_size": batch_size, "tol": 1e-3}
    tight = Small(room).eval()
    found = dyart.closest_boundary_points(tight, INPUTS, LABELS, **options)
    same(found, dyart.closest_boundary_points(WIDE, INPUTS, LABELS, **options))
    assert room / 2 <= tight.largest <= room
    (line,) = caplog.messages
    assert line.startswith(f"closest boundary points: out of memory with {batch_size or 50} examples, going on with ")


def test_the_searchs_own_passes_may_need_more_than_the_first(caplog):
    """A backward pass needs more memory than the forward pass that went before."""

    class Backward(Small):
        def forward(self, inputs):
            if inputs.requires_grad and len(inputs) > 10:
                raise self.error
            return self.layers(inputs)

    found = dyart.closest_boundary_points(Backward(0).eval(), INPUTS, LABELS, steps=5)
    same(found, dyart.closest_boundary_points(WIDE, INPUTS, LABELS, steps=5))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("attack", ["margins", "pgd", "clean"])
def test_evaluation(caplog, attack, tmp_path):
    radii = [] if attack == "clean" else [0.01, 0.1]
    options = {"radii": radii, "attack": attack, "batch_size": 25, "preflight": False}
    inputs = INPUTS.float()
    tight, wide = (Small(room).float().eval() for room in (13, 1000))
    result = dyart.evaluate(tight, inputs, LABELS, folder=tmp_path / "tight", **options)
    expected = dyart.evaluate(wide, inputs, LABELS, folder=tmp_path / "wide", **options)
    assert result.clean_accuracy == expected.clean_accuracy
    assert result.robust_accuracy == expected.robust_accuracy
    assert len(caplog.messages) == 1, "one line for all batches and attacks"
    assert "evaluation: out of memory with 25 examples, going on with 13" in caplog.messages[0]


def test_accuracies(caplog):
    tight = Small(6).eval()
    assert torch.equal(correct(tight, INPUTS, LABELS), correct(WIDE, INPUTS, LABELS))
    for network in (tight, WIDE):
        network.flags = resists_pgd(network, INPUTS, LABELS, 0.1, steps=3)
    assert torch.equal(tight.flags, WIDE.flags)
    assert 0 < int(WIDE.flags.sum()) < 50
    assert len(caplog.messages) == 2


def test_one_example_that_does_not_fit(caplog):
    with pytest.raises(torch.OutOfMemoryError):
        dyart.closest_boundary_points(Small(0).eval(), INPUTS, LABELS)
    assert caplog.messages == []


def test_another_error_is_not_taken_for_it():
    calls = []

    def work(rows):
        calls.append(len(rows))
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        Pieces("work")(work, torch.arange(8))
    assert calls == [8]


def test_a_smaller_size_is_kept():
    sizes = []

    def work(rows):
        sizes.append(len(rows))
        if len(rows) > 3:
            raise MemoryError
        return rows.tolist()

    pieces = Pieces("work")
    assert list(chain(*pieces(work, np.arange(8)))) == list(range(8))
    assert sizes == [8, 4, 2, 2, 2, 2]
    assert list(chain(*pieces(work, np.arange(5)))) == list(range(5))
    assert sizes[6:] == [2, 2, 1]


LIMITED = """
import resource, torch
from torch import nn
import dyart
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 50_000), nn.ReLU(), nn.Linear(50_000, 3)).eval()
inputs = torch.rand(500, 2)
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 120 * 2**20, resource.RLIM_INFINITY))
with torch.no_grad():
    try:
        model(inputs)
    except RuntimeError:
        print("does not fit")
found = dyart.closest_boundary_points(model, inputs, steps=2, rivals=1)
print(int(found.inside.sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on address space is Linux's")
def test_for_real():
    """On the host, with a limit on its memory: two layers of 100 MB each for all examples at once."""
    assert resource.RLIMIT_AS
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["does not fit", "500"]
    assert "closest boundary points: out of memory with 500 examples, going on with " in done.stderr
