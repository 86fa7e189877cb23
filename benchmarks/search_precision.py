"""What half precision does to the boundary search of a training step.

    python benchmarks/search_precision.py --images images.npy --labels labels.npy

DyART's search (soft boundary, L-inf) on the ResNet-18 of the pyautoattack wheel, whose margins are around 1/255: in
bfloat16 and float16, with and without finer ends (`dyart.engine.fine_ends`), and with convolutions in TF32. Uncompiled.
Distances are over those of 100 steps in plain float32; conditions (a) and (b) are those that the search itself sees, as
in a training. Writes results/search_precision.json.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dyart
from dyart.engine import fine_ends
from dyart.engine.views import Views
from dyart.methods import DyART
from harness import RESULTS, autoattack_resnet18, load_images, share, write

STEPS = (7, 8, 9, 10, 20)
REFERENCE = 100
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": None}
ENDS = {"as they are": (), "inputs finer": (fine_ends.FirstConv2d,), "logits finer": (fine_ends.LastLinear,)}
ENDS["both finer"] = (fine_ends.FirstConv2d, fine_ends.LastLinear)
LINE = "{precision} {ends:12} {steps:3d} steps  found {found:.3f}  (a) {a:.3f}  (b) {b:.3f}  both {conditions_ab:.3f}  "
LINE += "distance {mean_over_reference:.3f}"


def view(net: nn.Module, half: torch.dtype | None, kept: tuple[type[nn.Module], ...], example: Tensor) -> Views:
    """Return a view of a network with these finer ends alone."""
    views = Views(net, compile=False, half=half, example=example)
    assert isinstance(views.search, nn.Module)
    for layer in views.search.modules():
        if type(layer) in (fine_ends.FirstConv2d, fine_ends.LastLinear) and type(layer) not in kept:
            layer.__class__ = type(layer).__base__
    return views


def measured(net: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Return one record per precision, ends and number of steps."""
    with torch.no_grad():
        inside = dyart.soft_logit_margin(net(x), y) > 0
    x, y = x[inside], y[inside]
    best = dyart.closest_boundary_points(net, x, y, boundary="soft", rivals=1, steps=REFERENCE).margin
    records = []
    for name, half in HALVES.items():
        for which, kept in ENDS.items() if half is not None else [("as they are", ())]:
            views = view(net, half, kept, x[:2])
            for steps in STEPS:
                with views.searching(x.device):
                    found = DyART(steps=steps).search(views.search, x, y)
                a, b, _ = found.conditions
                records.append({
                    "precision": name, "ends": which, "steps": steps, "examples": len(x),
                    "found": share(found.found), "a": share(a), "b": share(b), "conditions_ab": share(a & b),
                    "mean_over_reference": float((found.margin / best)[found.found].mean()),
                })  # fmt: skip
                print(LINE.format(**records[-1]), flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = torch.device(options.device)
    x = load_images(options.images, options.count).to(device)
    y = torch.from_numpy(np.load(options.labels)[: options.count]).long().to(device)
    settings = {"network": "ResNet-18 (pyautoattack wheel)", "images": options.count, "reference_steps": REFERENCE}
    write("search_precision", device, settings, measured(autoattack_resnet18(device), x, y), options.out)


if __name__ == "__main__":
    main()
