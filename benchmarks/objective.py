"""DyART's objective at the weights of several trainings: which method lowers it most, and by which of its terms.

    python benchmarks/objective.py cifar10-resnet18-bn-dyart-seed0 cifar10-resnet18-bn-trades-seed0 --weights DIR

Names are those of results/NAME.json, DIR has NAME.safetensors (benchmarks/run_queue.py makes both). Images that the
networks were trained on, and as many test images; eval mode, no augmentation. The terms, with alpha, r0 and lam of the
first one's recipe, which is DyART's:

    cross-entropy   at the clean images, of the logits times the number that makes it smallest for the training images:
                    such a number changes neither a class nor the boundary
    margin cost     lam (h(R) - h(r0)) with R the distance to the exact boundary, at most r0, and 0 where the class is
                    wrong (in training, an example outside its class has no cost)

Writes benchmarks/results/objective.json.
"""

import argparse
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
from harness import RESULTS, write
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
    configs = {name: resolve(read(RUNS / f"{name}.json")["recipe"]) for name in options.names}
    settings = configs[options.names[0]].method
    alpha, r0, lam = (float(settings[key]) for key in ("alpha", "r0", "lam"))
    slope = dyart.ExponentialCost(alpha, 2 * r0)  # continuous at r0, where h itself jumps to 0
    data = load(configs[options.names[0]].data.name)
    splits = {split: drawn(data, split, options.images, device) for split in SPLITS}
    records: list[dict[str, Any]] = []
    first: dict[str, dict[str, Tensor]] = {}
    for name, config in configs.items():
        weights = weights_file(options.weights, name, "best")
        check_same(config, read(RUNS / f"{name}.json"), "best", weights)
        model, scale = network(config, data, weights, device), 1.0
        for split, (images, labels) in splits.items():
            logits, margin = measured(model, images, labels, options)
            scale = best_scale(logits, labels) if split == SPLITS[0] else scale
            capped = margin.clamp(max=r0)
            terms = {
                "cross_entropy": F.cross_entropy(scale * logits, labels, reduction="none"),
                "margin_cost": lam * (slope(capped) - slope(torch.full_like(capped, r0))),
            }
            terms["objective"] = terms["cross_entropy"] + terms["margin_cost"]
            first.setdefault(split, terms)
            resists = {f"{radius}/255": float((margin > radius / 255).float().mean()) for radius in RADII}
            record = {"name": name, "split": split, "scale": scale, "clean": float((margin > 0).float().mean())}
            record |= {key: summary(term, first[split][key]) for key, term in terms.items()}
            records.append(record | {"beyond": resists, "images": len(images)})
            print(record, flush=True)
    told = {"alpha": alpha, "r0": r0, "lam": lam, "steps": options.steps, "first": options.names[0]}
    write("objective", device, told, records, options.out)


if __name__ == "__main__":
    main()
