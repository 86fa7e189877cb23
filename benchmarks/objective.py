"""DyART's objective at the weights of several trainings: which method lowers it most, and by which of its terms.

    python benchmarks/objective.py cifar10-resnet18-bn-dyart-seed0 cifar10-resnet18-bn-trades-seed0 --weights DIR

Names are those of results/NAME.json, DIR has NAME.safetensors (benchmarks/run_queue.py makes both): the best epoch's
weights, NAME:last for the last epoch's. Images that the networks were trained on, and as many test images; eval mode,
no augmentation. The terms, with alpha, r0 and lam of the first one's recipe, which is DyART's:

    cross-entropy   at the clean images, of the logits times the number that makes it smallest for the training images:
                    such a number changes neither a class nor the boundary
    margin cost     lam (h(R) - h(r0)) with R the distance to the exact boundary, at most r0, and 0 where the class is
                    wrong (in training, an example outside its class has no cost)

Writes benchmarks/results/objective.json.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dyart
from dyart.cli.networks import sample
from dyart.data import DataSet, load
from dyart.data.loader import as_tensors
from dyart.engine.fabric import make_fabric
from dyart.recipes import resolve
from harness import RESULTS, share, write
from run_records import read
from train_and_attack import check_same, network, weights_file

RUNS = Path(__file__).parents[1] / "results"
SPLITS = ("training", "test")
SCALES = [1.1**power for power in range(-10, 31)]
RADII = (2, 4, 8, 12, 16)  # over 255


def drawn(data: DataSet, split: str, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return some images and labels, the same for every network: of the test set, or of what trainings see."""
    whole, rows = (data.test, np.arange(len(data.test))) if split == "test" else (data.train, data.fit)
    return as_tensors(whole, rows[sample(len(rows), count, 0)], device)


def measured(model: nn.Module, images: Tensor, labels: Tensor, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return logits, and margins: 0 where the class is wrong, infinite where no boundary was found."""
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(options.batch)])
    found = dyart.closest_boundary_points(
        model, images, labels, steps=options.steps, batch_size=options.batch, progress=True
    )
    return logits, torch.where(found.inside, found.margin.nan_to_num(torch.inf), 0.0)


def best_scale(logits: Tensor, labels: Tensor) -> float:
    """Return the number by which the logits have the smallest cross-entropy."""
    return min(SCALES, key=lambda scale: float(F.cross_entropy(scale * logits, labels)))


def summary(own: Tensor, first: Tensor) -> dict[str, float]:
    """Return the mean of a term, and its difference from the first network's on the same images with its error."""
    difference = own - first
    error = float(difference.std()) / len(own) ** 0.5
    return {"mean": float(own.mean()), "minus_first": float(difference.mean()), "standard_error": error}


class Objective:
    """DyART's objective with given settings, and its terms at the first network."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.alpha, self.r0, self.lam = (float(settings[key]) for key in ("alpha", "r0", "lam"))
        self.cost = dyart.ExponentialCost(self.alpha, 2 * self.r0)  # without the jump to 0 at r0
        self.first: dict[str, dict[str, Tensor]] = {}

    def record(self, split: str, logits: Tensor, labels: Tensor, margin: Tensor) -> dict[str, Any]:
        """Return the terms of a network on a split, from its logits, scaled already, and its margins."""
        capped = margin.clamp(max=self.r0)
        terms = {
            "cross_entropy": F.cross_entropy(logits, labels, reduction="none"),
            "margin_cost": self.lam * (self.cost(capped) - self.cost(torch.full_like(capped, self.r0))),
        }
        terms["objective"] = terms["cross_entropy"] + terms["margin_cost"]
        first = self.first.setdefault(split, terms)
        beyond = {f"{radius}/255": share(margin > radius / 255) for radius in RADII}
        sums = {key: summary(term, first[key]) for key, term in terms.items()}
        return {"images": len(labels), "clean": share(margin > 0), "beyond": beyond} | sums


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="+", metavar="NAME", help="the first one of a run of DyART")
    made.add_argument("--weights", type=Path, required=True)
    made.add_argument("--images", type=int, default=1000, help="of each split")
    made.add_argument("--steps", type=int, default=50, help="of the search")
    made.add_argument("--batch", type=int, default=500)
    made.add_argument("--out", type=Path, default=RESULTS)
    options = made.parse_args()
    device = make_fabric().device
    networks = [(name, checkpoint or "best") for name, _, checkpoint in (word.partition(":") for word in options.names)]
    known = {name: read(RUNS / f"{name}.json") for name, _ in networks}
    if missing := [name for name, record in known.items() if "weights" not in record]:
        made.error(f"no training of that name in {RUNS}: {', '.join(missing)}")
    configs = {name: resolve(record["recipe"]) for name, record in known.items()}
    config = configs[networks[0][0]]
    if config.method["name"] != "dyart":
        made.error(f"{options.names[0]} is no run of DyART: the first one's alpha, r0 and lam make the objective")
    data, objective = load(config.data.name), Objective(config.method)
    splits = {split: drawn(data, split, options.images, device) for split in SPLITS}
    records = []
    for name, checkpoint in networks:
        weights = weights_file(options.weights, name, checkpoint)
        check_same(configs[name], known[name], checkpoint, weights)
        model = network(configs[name], data, weights, device)
        epoch = known[name]["epochs" if checkpoint == "last" else "best_epoch"]
        found = {split: measured(model, *of, options) for split, of in splits.items()}
        scale = best_scale(found[SPLITS[0]][0], splits[SPLITS[0]][1])
        for split, (logits, margin) in found.items():
            record = {"name": name, "checkpoint": checkpoint, "epoch": epoch, "split": split, "scale": scale}
            records.append(record | objective.record(split, scale * logits, splits[split][1], margin))
            print(records[-1], flush=True)
    settings = {"alpha": objective.alpha, "r0": objective.r0, "lam": objective.lam, "steps": options.steps}
    write("objective", device, settings, records, options.out)


if __name__ == "__main__":
    main()
