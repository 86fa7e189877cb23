"""How close the points found on networks that saturate are to the closest: tables of scikit-learn, on a CPU.

    python benchmarks/saturating.py

Networks of two hidden layers of 32, trained on all rows of a table until they saturate (features in [0, 1], Adam, 1,000
steps of all rows, seed 0). For every row, the margin over the smallest that this search, longer ones with restarts and
`tol`, and the solver `apgd` found.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn

import dyart
from dyart.boundary.norms import Norm
from harness import RESULTS, share, write

TABLES = {"breast cancer": datasets.load_breast_cancer, "wine": datasets.load_wine, "digits": datasets.load_digits}
ACTIVATIONS: dict[str, type[nn.Module]] = {"ReLU": nn.ReLU, "Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid}
NORMS: tuple[Norm, ...] = ("linf", "l2")
STEPS = (10, 20, 50)
ROWS, LEARNING_RATE, TRAINING_STEPS = 500, 0.01, 1000
# What the best is taken from, beside the searches measured.
LONG: tuple[dict[str, Any], ...] = (
    {"steps": 200, "restarts": 5, "tol": 1e-3},
    {"steps": 200, "restarts": 3, "solver": "apgd"},
)
FAR = 1.05


def table(name: str) -> tuple[Tensor, Tensor]:
    """Return the rows of a table, features in [0, 1], and their classes."""
    features, labels = TABLES[name](return_X_y=True)
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / (high - low).clip(min=1e-12)
    return torch.tensor(scaled, dtype=torch.float32), torch.tensor(labels)


def trained(activation: type[nn.Module], inputs: Tensor, labels: Tensor) -> nn.Module:
    torch.manual_seed(0)
    ends = inputs.shape[1], int(labels.max()) + 1
    network = nn.Sequential(
        nn.Linear(ends[0], 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, ends[1])
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return network.eval()


def measured(name: str, activation: str) -> list[dict[str, Any]]:
    inputs, labels = table(name)
    network, records = trained(ACTIVATIONS[activation], inputs, labels), []
    inputs = inputs[:ROWS]
    for norm in NORMS:
        search = {steps: dyart.closest_boundary_points(network, inputs, norm=norm, steps=steps) for steps in STEPS}
        others = [dyart.closest_boundary_points(network, inputs, norm=norm, **settings) for settings in LONG]
        margins = torch.stack([found.margin for found in (*search.values(), *others)])
        best = margins.nan_to_num(nan=torch.inf).amin(dim=0)
        for steps, found in search.items():
            ratio = (found.margin / best)[found.found]
            numbers = {"ratio": float(ratio.mean()), "largest": float(ratio.max()), "far": share(ratio > FAR)}
            shares = {"found": share(found.found), "optimal": share(found.optimal)}
            head = {"table": name, "activation": activation, "rows": len(inputs), "norm": norm, "steps": steps}
            records.append({**head, **shares, **numbers})
            print(records[-1], flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    records = [record for name in TABLES for activation in ACTIVATIONS for record in measured(name, activation)]
    settings = {"learning_rate": LEARNING_RATE, "training_steps": TRAINING_STEPS, "far": FAR, "seed": 0}
    write("saturating", torch.device("cpu"), settings, records, options.out)


if __name__ == "__main__":
    main()
