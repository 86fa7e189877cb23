"""Results of a search and results made by hand, for the tests of the result object."""

import math

import torch
from torch import nn

import dyart
from dyart.boundary.points import Passes

SHAPE, EXAMPLES = (2, 3), 7
VERDICTS = ["locally optimal", "not closest", "off the boundary", "flat", "not found", "not inside", "locally optimal"]


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def search(examples: int = EXAMPLES, **options) -> dyart.BoundaryPoints:
    """A real result, with one example outside its class in the fourth row."""
    inputs = 0.2 + 0.6 * torch.rand(examples, *SHAPE, generator=torch.Generator().manual_seed(6))
    net = model()
    with torch.no_grad():
        labels = net(inputs).argmax(dim=1)
    labels[3:4] = (labels[3:4] + 1) % 3
    return dyart.closest_boundary_points(net, inputs, labels, **{"steps": 8, **options})


def handmade(**changes) -> dyart.BoundaryPoints:
    """One row per verdict, in the order of VERDICTS. Two features, class 0 against class 1 or 2, l2, no bounds."""
    nan = math.nan
    rows = {
        "inputs": torch.full((7, 2), 0.5),
        "labels": torch.zeros(7, dtype=torch.long),
        "points": 0.5 + torch.tensor([[-0.25, 0], [-0.3, 0], [-0.5, 0], [-0.2, 0], [0, 0], [0, 0], [-0.125, 0]]),
        "margin": torch.tensor([0.25, 0.3, 0.5, 0.2, nan, nan, 0.125]),
        "value": torch.tensor([-1e-3, -1e-3, -0.5, -1e-3, 2.0, -1.5, 0.0]),
        "gradient": torch.tensor([[4.0, 0], [3, 3], [2, 0], [1e-6, 0], [0, 0], [0, 0], [8, 0]]),
        "correct": torch.tensor([True] * 5 + [False, True]),
        "inside": torch.tensor([True] * 5 + [False, True]),
        "found": torch.tensor([True] * 4 + [False, False, True]),
        "alignment": torch.tensor([1.0, 0.7, 1.0, 1.0, nan, nan, 0.95]),
        "rival": torch.tensor([1, 2, 1, 1, -1, -1, 2]),
        "input_value": torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, -1.5, 1.0]),
    }
    problem = {"norm": "l2", "boundary": "exact", "beta": 5.0, "bounds": None, "cost": Passes(9, 8)}
    return dyart.BoundaryPoints(**{**rows, **problem, **changes})
