"""What a DyART step costs beside an AT step, and how good its search is, in one run.

    python benchmarks/speed_bars.py --images images.npy --labels labels.npy

First the search of DyART's steps, as a training runs it (compiled, fp16), and the same in fp32, on the ResNet-18 of the
pyautoattack wheel: soft boundary, L-inf. "Best" is, per example, the closest point that these and four longer searches
have found. Images: uint8 [N, H, W, C] and labels [N], e.g. of the CIFAR-10 test set. Then `dyart bench --gpu`:
ResNet-18 with BatchNorm and GroupNorm in batches of 128 (four methods) and 512 (AT and DyART), and WRN-28-10 in batches
of 256.

Writes results/steps.json, the quality beside the steps, and prints what was aimed at. On a CPU, --device cpu runs the
first part alone, uncompiled.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dyart
from dyart.boundary.model import ieee_float32
from dyart.boundary.points import BoundaryPoints
from dyart.cli import main as command
from dyart.cli.bench import SEARCH_STEPS
from dyart.engine.files import write_json
from dyart.engine.views import Views
from dyart.methods import DyART
from harness import RESULTS, autoattack_resnet18, load_images, share

LONG = {"300 steps": {"steps": 300}, "9 x 20 steps": {"steps": 20, "restarts": 9, "rivals": 9}}
LONG |= {f"classic FAB, {steps} steps": {"steps": steps, "solver": "fab"} for steps in (20, 100)}
BENCH = ["--batches 128", "--batches 512 --methods at,dyart", "--networks wrn28-10 --batches 256 --methods at,dyart"]
Bar = tuple[str, float, float]


def searched(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, BoundaryPoints]:
    """Return what every search finds, by name."""
    problem: dict[str, Any] = {"boundary": "soft", "rivals": 1}
    found = {f"{SEARCH_STEPS} steps": dyart.closest_boundary_points(net, x, y, steps=SEARCH_STEPS, **problem)}
    found |= {name: dyart.closest_boundary_points(net, x, y, **(problem | setting)) for name, setting in LONG.items()}
    views = Views(net, x.is_cuda, DyART.crafting, x[:2])
    method = DyART(steps=SEARCH_STEPS)
    method.compiled = x.is_cuda
    with views.searching(x.device):
        found[f"{SEARCH_STEPS} steps, as trained"] = method.search(views.search, x, y)
    return found


def quality(net: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Return one record per search, over the examples that are inside their class."""
    with torch.no_grad():
        inside = dyart.soft_logit_margin(net(x), y) > 0
    x, y = x[inside], y[inside]
    found = searched(net, x, y)
    distances = torch.stack([torch.where(one.found, one.margin, torch.inf) for one in found.values()])
    best = distances.amin(dim=0)
    records = []
    for (name, one), distance in zip(found.items(), distances, strict=True):
        both = one.conditions.a & one.conditions.b
        with torch.no_grad(), ieee_float32(x.device):
            holds = one.found & (dyart.soft_logit_margin(net(one.points), y) <= 0)
        records.append({
            "search": name, "examples": len(x), "found": share(one.found), "holds_in_fp32": share(holds),
            "mean_over_best": float((distance / best)[one.found].mean()), "conditions_ab": share(both),
        })  # fmt: skip
        print("{search:24} mean over best {mean_over_best:.3f}  found {found:.4f}  (a), (b) {conditions_ab:.3f}  "
              "across in fp32 {holds_in_fp32:.3f}".format(**records[-1]), flush=True)  # fmt: skip
    return records


def bars(content: dict[str, Any]) -> tuple[list[Bar], list[Bar]]:
    """Return name, value and limit of what is to be at most, and of what is to be at least."""
    steps = {(r["network"], r["normalization"], r["batch"], r["method"]): r for r in content["records"]}
    pairs = [key[:3] for key in steps if key[3] == "dyart" and (*key[:3], "at") in steps]
    most: list[Bar] = []
    for pair in pairs:
        ratio = steps[*pair, "dyart"]["ms"] / steps[*pair, "at"]["ms"]
        most.append(("DyART over AT, {}, {} norm, batch {}".format(*pair), ratio, 1.0))
    most.append(("ms, DyART, ResNet-18-GN, batch 128", steps["resnet18", "group", 128, "dyart"]["ms"], 34.0))
    for network, batch, seconds in (("resnet18", 512, 5.0), ("wrn28-10", 256, 40.0)):
        epoch = steps[network, "batch", batch, "dyart"]["cifar10_epoch_seconds"]
        most.append((f"s, CIFAR-10 epoch of DyART, {network}", epoch, seconds))
    of_product = steps["resnet18", "batch", 512, "dyart"]["of_product"]
    trained = next(record for record in content["quality"]["records"] if record["search"].endswith("as trained"))
    most.append(("distance over best, as trained", trained["mean_over_best"], 1.4))
    least = [("of the product, DyART, ResNet-18-BN, batch 512", of_product, 0.35)]
    return most, [*least, ("share with conditions (a), (b), as trained", trained["conditions_ab"], 0.95)]


def report(content: dict[str, Any]) -> None:
    """Print the bars, and whether each is met."""
    most, least = bars(content)
    for sign, part in ((1, most), (-1, least)):
        for name, value, limit in part:
            words = "met" if sign * value <= sign * limit else "MISSED"
            print(f"{name}: {value:.3f} ({'at most' if sign > 0 else 'at least'} {limit:g}): {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--out", type=Path, default=RESULTS / "steps.json")
    options = parser.parse_args()
    device = torch.device(options.device)
    x = load_images(options.images, options.count).to(device)
    y = torch.from_numpy(np.load(options.labels)[: options.count]).long().to(device)
    records = quality(autoattack_resnet18(device), x, y)
    if device.type != "cuda":
        return
    part = options.out.with_suffix(".part.json")  # an earlier measurement stays until this one is whole
    part.unlink(missing_ok=True)
    for words in BENCH:
        if command(["bench", "--gpu", "--merge", *words.split(), "--out", str(part)]):
            raise SystemExit("dyart bench failed")
    network = "ResNet-18 (pyautoattack wheel, BatchNorm in eval mode)"
    content = json.loads(part.read_text(encoding="utf-8"))
    content["quality"] = {"network": network, "images": options.count, "boundary": "soft", "records": records}
    write_json(options.out, content)
    part.unlink()
    report(content)


if __name__ == "__main__":
    main()
