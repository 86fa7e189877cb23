"""A data set that memory is too small for is trained on all the same: read as it is used."""

import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_cases import make_config, numbers
from processes import ended, started

from dyart.data.mapped import open_npy
from dyart.engine.run import train

GIGABYTE = 2**30


def trained_in_little_memory(config, size, said):
    """Train with so little address space that the set fits once, as a map, and not twice: the target of a process."""
    torch.set_num_threads(1)
    status = Path("/proc/self/status").read_text().splitlines()
    used = int(next(line for line in status if line.startswith("VmSize")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + size + size // 2, resource.RLIM_INFINITY))
    words = []
    try:
        np.array(open_npy(Path(config.data.name) / "train_images.npy"))
    except MemoryError:
        words.append("does not fit")
    training = train(config)
    words.append(f"{type(training.loader.source).__name__} {training.steps_done}")
    said.write_text("\n".join(words))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on address space is Linux's")
def test_a_set_larger_than_memory(tmp_path):
    """Two gigabytes, with holes: they take no room on the disk."""
    folder, count = tmp_path / "set", 2 * GIGABYTE // (48 * 48)
    folder.mkdir()
    images = np.lib.format.open_memmap(folder / "train_images.npy", "w+", np.uint8, (count, 1, 48, 48))
    images[:: count // 512] = np.random.RandomState(0).randint(0, 256, (1, 48, 48), dtype=np.uint8)
    del images
    np.save(folder / "train_labels.npy", np.arange(count) % 2)
    np.save(folder / "test_images.npy", np.zeros((8, 1, 48, 48), np.uint8))
    np.save(folder / "test_labels.npy", np.arange(8) % 2)
    settings = {"data_name": str(folder), "data_limit": 256, "train_epochs": 1, "train_batch_size": 64}
    settings |= {"data_residency": "stream", "eval_steps": 1, "eval_attack": "none", "train_log_every": 1}
    config = make_config(tmp_path / "run", **settings)
    process = started(trained_in_little_memory, config, 2 * GIGABYTE, tmp_path / "said")
    assert ended(process) == 0
    assert (tmp_path / "said").read_text().splitlines() == ["does not fit", "_Streamed 4"]
    assert len(numbers(tmp_path / "run")) == 5
