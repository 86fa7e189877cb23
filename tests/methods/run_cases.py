"""A small training of any method, and whether two of them are the same."""

import torch

from dyart.engine.run import train
from dyart.recipes.load import check


def run(folder, method, epochs=3, **options):
    """Train a small network on a small set, and return the training."""
    tree = {
        "out": str(folder),
        "seed": 3,
        "method": {"steps": 2, "radius": 0.05, "step_size": 0.02} | method,
        "data": {"name": "three-blobs", "limit": 96},
        "model": {"name": "mlp"},
        "optim": {"lr": 0.2},
        "train": {"epochs": epochs, "batch_size": 32, "device": "cpu", "compile": "off", "loggers": []},
        "eval": {"radius": 0.05, "steps": 2},
    }
    return train(check(tree), **options)


def assert_same_run(one, other):
    told = [[{k: v for k, v in line.items() if "seconds" not in k} for line in run.history] for run in (one, other)]
    assert told[0] == told[1]
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
