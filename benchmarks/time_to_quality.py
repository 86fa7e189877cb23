"""Seconds of training to a robust accuracy: several seeds of one recipe, each trained and attacked in full.

    python benchmarks/time_to_quality.py cifar10-resnet18-at --name fast-45 --target 0.45 --seeds 0 1 2 \
        --method.steps 3 --method.step_size 4/255 --train.epochs 24 --eval.every 6

"wall_seconds" is everything from the call of `train` to its return: reading the data, compiling, training, validation,
checkpoints. "seconds" leaves out what the first epoch of each phase takes longer than the median one: compiling and
recording, which are done once per machine. Which epoch's weights are attacked is decided on the hold-out alone. Attack:
the tier apgd of `dyart.evaluate` (search, PGD, the AutoAttack authors' APGD-CE and APGD-T with nine targets) on the
whole test set; whatever is found counts after a check in plain float32.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dyart.engine.display import Display
from dyart.engine.fit import Training
from dyart.engine.run import averaged_weights, environment, make_model, train
from dyart.recipes import resolve
from train_and_attack import attacked, plain


def start_up(training: Training) -> float:
    """Return what the first epoch of each phase took longer than the phase's median one."""
    phases: dict[str, list[float]] = {}
    for record in training.history:
        phases.setdefault(record["phase"], []).append(record["train_seconds"])
    return sum(max(0.0, seconds[0] - statistics.median(seconds)) for seconds in phases.values())


def measured(training: Training, images: int, batch: int | None) -> dict[str, float]:
    """Return clean and robust accuracy of the best epoch's averaged weights on the test set."""
    config, data, device = training.config, training.data, training.fabric.device
    assert training.folder is not None
    model = make_model(config, data).to(device).eval().requires_grad_(False)
    model.load_state_dict(averaged_weights(training.folder))
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    found = attacked(model, data, ["8/255"], "apgd", device, images=images, batch=batch)
    return {"clean": found["clean"], "robust": found["robust"]["8/255"], "images": found["images"]}


def main() -> None:
    """Train and attack every seed, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--name", required=True, help="of the JSON file")
    parser.add_argument("--target", type=float, required=True, help="robust accuracy at 8/255 to be reached, e.g. 0.45")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for the runs")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, help="of the attack; default: that of dyart.evaluate")
    options, overrides = parser.parse_known_args()
    records: list[dict[str, Any]] = []
    for seed in options.seeds:
        out = options.runs / f"{options.name}-seed{seed}"
        config = resolve(options.recipe, [*overrides, "--seed", str(seed), "--out", str(out)])
        began = time.perf_counter()
        training = train(config, callbacks=[Display(f"{options.name} {seed}")])
        wall = time.perf_counter() - began
        record = {"seed": seed, "wall_seconds": wall, "seconds": wall - start_up(training)}
        record |= {"epochs": training.epochs, "best_epoch": training.best_epoch}
        record |= {"validation": training.history[training.best_epoch - 1]["val_robust"]}
        record |= measured(training, options.images, options.batch)
        records.append(record)
        print("seed {seed}: {seconds:.1f} s ({wall_seconds:.1f} s with the start), clean {clean:.2%}, "
              "APGD {robust:.2%}".format(**record), flush=True)  # fmt: skip
        facts = environment(config, training.fabric)
        content = {
            "target": options.target,
            "reached": sum(one["robust"] >= options.target for one in records),
            "runs": len(records),
            "seconds": statistics.mean(one["seconds"] for one in records),
            "recipe": config.recipe,
            "settings": plain(asdict(config)),
            "gpu": facts["device"],
            "versions": facts["versions"],
            "attack": "dyart.evaluate, apgd, at 8/255",
            "records": records,
        }
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / f"{options.name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
