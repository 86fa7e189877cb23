"""What a step costs as a formula, fitted to measurements; and what larger trainings would take by it.

    python benchmarks/scaling.py

Reads results/steps.json (`dyart bench --gpu`), writes results/scaling.json. A step's time, for one network on one GPU:

    milliseconds = passes (launch + per_image * batch) + fixed

passes: the step's arithmetic in forward passes of its batch (counted). The three numbers are solved from three measured
steps (natural and AT at one batch size, AT at another); all other steps of the file are predictions, and checked.

Peak memory: MiB = fixed + per_image * images, where images are those of the update's one pass, which DyART and TRADES
take with twice the batch. The two numbers are solved from AT at two batch sizes.

Larger trainings, which were not run: a step = passes * launch * layers / 18 + batch / GPUs * passes * operations / rate
+ waiting, where launch is that of ResNet-18 (18 layers), and rate that of the measured network closest in kind once its
own launches are taken off its time. Gradients are exchanged in fp32 around a ring after the backward pass, which hides
none of it: waiting = 2 (n - 1) / n * bytes / bandwidth. Bandwidths are assumptions (see ASSUMED), not
measurements.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from harness import RESULTS

FITTED = (("natural", 128), ("at", 128), ("at", 512))
# Gigabytes per second that one GPU gets for the exchange: within a machine of 8 (NVLink), and between machines (400
# Gbit/s each). Taken from data sheets at about two thirds; no several-GPU machine was measured.
ASSUMED = {"within": 300.0, "between": 33.0}
PER_MACHINE = 8
GPUS = (8, 64, 512)
LAYERS = {"resnet18": 18, "wrn28-10": 28}
# Methods whose update takes clean images and others through one pass.
JOINT = ("dyart", "trades")
# Parameters; multiply-adds of one forward pass; layers; images seen in training; batch over all GPUs; the measured
# network whose utilisation is taken.
PLANS: dict[str, dict[str, Any]] = {
    "WRN-70-16, 50 M generated CIFAR-10 images": {
        "parameters": 267e6, "multiply_adds": 38.8e9, "layers": 70, "examples": 100e6, "batch": 1024,
        "like": "wrn28-10",
    },
    "ResNet-50, ImageNet, 90 epochs": {
        "parameters": 25.6e6, "multiply_adds": 4.1e9, "layers": 50, "examples": 1.281e6 * 90, "batch": 2048,
        "like": "resnet18",
    },
}  # fmt: skip


def fit(records: list[dict[str, Any]]) -> dict[str, float]:
    """Solve the formula's three numbers from three steps of one network."""
    by_name = {(record["method"], record["batch"]): record for record in records}
    natural, small, large = (by_name[name] for name in FITTED)
    at_small = (small["ms"] - natural["ms"]) / (small["passes"] - natural["passes"])
    fixed = natural["ms"] - natural["passes"] * at_small
    at_large = (large["ms"] - fixed) / large["passes"]
    per_image = (at_large - at_small) / (large["batch"] - small["batch"])
    return {"launch_ms": at_small - per_image * small["batch"], "per_image_ms": per_image, "fixed_ms": fixed}


def fit_memory(records: list[dict[str, Any]]) -> dict[str, float]:
    """Solve the two numbers of the peak memory."""
    small, large = (r for r in sorted(records, key=lambda r: r["batch"]) if r["method"] == "at")
    per_image = (large["peak_mib"] - small["peak_mib"]) / (large["batch"] - small["batch"])
    return {"per_image_mib": per_image, "fixed_mib": small["peak_mib"] - per_image * small["batch"]}


def peak(numbers: dict[str, float], record: dict[str, Any]) -> float:
    """Return a step's peak memory by the formula."""
    images = record["batch"] * (2 if record["method"] in JOINT else 1)
    return numbers["fixed_mib"] + numbers["per_image_mib"] * images


def predicted(numbers: dict[str, float], record: dict[str, Any]) -> float:
    """Return a step's milliseconds by the formula."""
    per_pass = numbers["launch_ms"] + numbers["per_image_ms"] * record["batch"]
    return float(record["passes"] * per_pass + numbers["fixed_ms"])


def checks(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fit every network with enough measurements, and predict its other steps."""
    made = []
    for key in sorted({(record["network"], record["normalization"]) for record in records}):
        own = [record for record in records if (record["network"], record["normalization"]) == key]
        if not {(record["method"], record["batch"]) for record in own} >= set(FITTED):
            continue
        numbers, memory = fit(own), fit_memory(own)
        others = [record for record in own if (record["method"], record["batch"]) not in FITTED]
        made.append(
            {
                "network": key[0],
                "normalization": key[1],
                **numbers,
                **memory,
                "checked": [
                    {
                        "method": record["method"],
                        "batch": record["batch"],
                        "measured_ms": record["ms"],
                        "predicted_ms": predicted(numbers, record),
                        "error": predicted(numbers, record) / record["ms"] - 1,
                        "measured_mib": record["peak_mib"],
                        "predicted_mib": peak(memory, record),
                        "memory_error": peak(memory, record) / record["peak_mib"] - 1,
                    }
                    for record in others
                ],
            }
        )
    return made


def plans(content: dict[str, Any], launch_ms: float) -> list[dict[str, Any]]:
    """Return what the larger trainings would take."""
    made = []
    for name, plan in PLANS.items():
        like = [r for r in content["records"] if r["network"] == plan["like"] and r["method"] == "dyart"]
        best = max((r for r in like if r["normalization"] == "batch"), key=lambda r: r["of_product"])
        own = best["passes"] * launch_ms * LAYERS[plan["like"]] / 18
        working = best["of_product"] * best["ms"] / (best["ms"] - own)  # utilisation beside the launches
        rate = working * content["machine"]["bf16_product"]
        compute = plan["examples"] * best["passes"] * 2 * plan["multiply_adds"] / rate
        steps = plan["examples"] / plan["batch"]
        for count in GPUS:
            size = 4 * plan["parameters"]
            bandwidth = ASSUMED["within" if count <= PER_MACHINE else "between"] * 1e9
            waiting = 2 * (count - 1) / count * size / bandwidth
            launching = best["passes"] * launch_ms / 1000 * plan["layers"] / 18
            per_step = compute / count / steps + launching
            made.append(
                {
                    "training": name,
                    "gpus": count,
                    "images_per_gpu": plan["batch"] / count,
                    "utilisation": working,
                    "step_ms": 1000 * (per_step + waiting),
                    "launching_ms": 1000 * launching,
                    "waiting_ms": 1000 * waiting,
                    "efficiency": compute / count / steps / (per_step + waiting),
                    "hours": steps * (per_step + waiting) / 3600,
                }
            )
    return made


def main() -> None:
    """Fit, check, and plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=Path, default=RESULTS / "steps.json")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    content = json.loads(options.steps.read_text())
    fitted = checks(content["records"])
    resnet18 = next(one for one in fitted if (one["network"], one["normalization"]) == ("resnet18", "batch"))
    planned = plans(content, resnet18["launch_ms"])
    for one in fitted:
        words = "{network} ({normalization}): passes ({launch_ms:.3f} + {per_image_ms:.5f} batch) + {fixed_ms:.2f} ms"
        print(words.format(**one))
        words = (
            "  {method:8} batch {batch:4}: {measured_ms:6.2f} ms, by the formula {predicted_ms:6.2f} ({error:+.1%}); "
        )
        words += "{measured_mib:.0f} MiB, by the formula {predicted_mib:.0f} ({memory_error:+.0%})"
        for check in one["checked"]:
            print(words.format(**check))
    words = "{training}: {gpus} GPUs, {images_per_gpu:g} images each, {step_ms:.0f} ms a step "
    words += "(launching {launching_ms:.0f}, waiting {waiting_ms:.0f}), efficiency {efficiency:.0%}, {hours:.1f} hours"
    for plan in planned:
        print(words.format(**plan))
    result = {
        "measured": {"machine": content["machine"], "versions": content["versions"]},
        "assumed": {"gigabytes_per_second": ASSUMED, "plans": PLANS},
        "fits": fitted,
        "plans": planned,
    }
    (options.out / "scaling.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
