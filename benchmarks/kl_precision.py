"""What half precision does to the attack of TRADES: the KL divergence that it reaches.

    python benchmarks/kl_precision.py                  # needs CIFAR-10: dyart data get cifar10

From TRADES' own start, a normal draw of 0.001, two predictions differ by less than bfloat16 rounds, so that the first
step goes where rounding leads; a uniform start is as far away as later steps are. Training images that are not held
out, a robust network, views as a training crafts with (uncompiled); what was reached is measured in plain float32.
Writes results/kl_precision.json.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dyart
from dyart.attacks.kl import RANDOM_STARTS, constant_logits, kl_divergence, kl_from, kl_pgd
from dyart.data import load
from dyart.engine.views import Views
from harness import RESULTS, share, write

WEIGHTS = Path(__file__).parents[1] / "models" / "cifar10-resnet18-dyart-bf16-search-seed0.safetensors"
RADIUS = 8 / 255
STEPS = {10: 2 / 255, 3: 4 / 255}  # as recipes have them: with the size of a step
LINE = "{start:8} {steps:2d} steps  {precision}  KL {kl:.4f}, minus float32 {difference:+.4f} +- {error:.4f}  "
LINE += "first step as in float32 {first_step:.3f}"


def first_step(views: Views, x: Tensor, start: Tensor) -> Tensor:
    """Return the signs of the first step."""
    with views.searching(x.device):
        objective = kl_from(constant_logits(views.search, x))
        leaf = start.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(views.search(leaf).float(), x).sum(), leaf)
    return gradient.sign()


def measured(net: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Return one record per start, number of steps and precision."""
    example = torch.zeros_like(x[:2])
    all_views = {"fp32": Views(net, False), "bf16": Views(net, False, torch.bfloat16, example)}
    records: list[dict[str, Any]] = []
    for start in RANDOM_STARTS:
        begin = kl_pgd(net, x, y, RADIUS, 0, RADIUS, start=start)
        signs = {name: first_step(views, x, begin) for name, views in all_views.items()}
        for steps, size in STEPS.items():
            reached: dict[str, Tensor] = {}
            for name, views in all_views.items():
                with views.searching(x.device):
                    points = kl_pgd(views.search, x, y, RADIUS, steps, size, start=start)
                with torch.no_grad():
                    reached[name] = kl_divergence(net(x), net(points))
                more = reached[name] - reached["fp32"]
                records.append({
                    "start": start, "steps": steps, "precision": name, "examples": len(x),
                    "kl": float(reached[name].mean()), "difference": float(more.mean()),
                    "error": float(more.std() / len(x) ** 0.5), "first_step": share(signs[name] == signs["fp32"]),
                })  # fmt: skip
                print(LINE.format(**records[-1]), flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="a described file of weights")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = torch.device(options.device)
    data = load("cifar10")
    rows = data.fit[: options.count]
    x = torch.as_tensor(data.train.images[rows]).to(device).float() / 255
    y = torch.as_tensor(data.train.labels[rows]).to(device).long()
    net = dyart.models.load(options.weights).to(device).eval()
    settings = {"weights": options.weights.name, "images": len(x), "radius": "8/255", "data": "cifar10, training"}
    write("kl_precision", device, settings, measured(net, x, y), options.out)


if __name__ == "__main__":
    main()
