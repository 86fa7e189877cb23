"""Train a recipe and attack the result: one JSON per run, `results/<name>.json`.

    python benchmarks/train_and_attack.py cifar10-resnet18-dyart --name cifar10-resnet18-dyart-seed0 --seed 0

Attack: the AutoAttack authors' APGD-CE, then APGD-T with nine targets on what is left (pyautoattack), in float32 with
TF32 convolutions, on the averaged weights of the best epoch by validation; whatever is found is checked again in plain
float32. Clean accuracy is of the test set; the radii other than the first use the first images only.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dyart.attacks.accuracy import correct
from dyart.attacks.radius import Radius
from dyart.boundary.model import ieee_float32
from dyart.data.loader import to_unit
from dyart.engine.display import Display
from dyart.engine.fit import Training
from dyart.engine.run import averaged_weights, environment, make_model, train
from dyart.engine.views import compiled
from dyart.recipes import resolve

LOGGED = ("epoch", "val_clean", "val_robust", "loss", "gradient_norm", "phi_shift", "used", "margin_q50")


class Bucketed(nn.Module):
    """A network compiled for a few batch sizes; others are filled up to the next one with copies of an example."""

    def __init__(self, model: nn.Module, sizes: tuple[int, ...], compile: bool) -> None:
        super().__init__()
        self.model = compiled(model, compile)
        self.sizes = sorted(sizes) if compile else []

    def forward(self, x: Tensor) -> Tensor:
        size = next((size for size in self.sizes if size >= len(x)), len(x))
        if size == len(x):
            return self.model(x)
        return self.model(torch.cat([x, x[:1].detach().expand(size - len(x), *x.shape[1:])]))[: len(x)]


def attacked(view: nn.Module, model: nn.Module, inputs: Tensor, labels: Tensor, radius: float, batch: int) -> Tensor:
    """Return which examples resist: right in plain float32 as they are and at the point that the attack found."""
    from pyautoattack import AutoAttack

    attacks = ["apgd-ce", "apgd-t"]
    attack = AutoAttack(
        view, attacks=attacks, device=inputs.device, eps=float(radius), norm="Linf", seed=0, version="custom"
    )
    attack.apgd.n_restarts = attack.apgd_targeted.n_restarts = 1
    attack.apgd_targeted.n_target_classes = 9
    points, _ = attack.run_standard_evaluation(inputs, labels, batch_size=batch)
    assert (points - inputs).abs().amax().item() <= float(radius) + 1e-6
    with ieee_float32(inputs.device):
        return correct(model, inputs, labels) & correct(model, points, labels)


def attackable(training: Training, batch: int) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Return a run's best averaged weights as a network, a quick view of it, and the test set, all on the device."""
    data, device = training.data, training.fabric.device
    assert training.folder is not None
    model = make_model(training.config, data).to(device).eval().requires_grad_(False)
    model.load_state_dict(averaged_weights(training.folder))
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    torch.set_float32_matmul_precision("high")
    view = Bucketed(model, (batch // 5, batch // 2, batch), training.compile)
    inputs = to_unit(torch.from_numpy(np.ascontiguousarray(data.test.images))).to(device)
    labels = torch.from_numpy(np.asarray(data.test.labels)).to(device)
    return model, view, inputs, labels


def plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Radius) and "/" in value.text else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--name", required=True, help="of the JSON file")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--keep", type=Path, help="folder for the averaged weights of the best epoch, in 16 bit")
    parser.add_argument("--radii", default="8/255,2/255,4/255,12/255,16/255", help="the first one on --images")
    parser.add_argument("--images", type=int, default=10_000, help="for the first radius")
    parser.add_argument("--fewer", type=int, default=1_000, help="images for the other radii")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--resume", action="store_true", help="go on with the run, or only attack it if it is finished")
    options, overrides = parser.parse_known_args()

    config = resolve(options.recipe, overrides)
    started = time.perf_counter()
    training = train(config, resume=options.resume, callbacks=[Display(options.name)])
    whole = time.perf_counter() - started
    data, device = training.data, training.fabric.device
    folder = training.folder
    assert folder is not None
    model, view, inputs, labels = attackable(training, options.batch)
    epochs = [record for record in training.history if record["kind"] == "epoch"]
    facts = environment(config, training.fabric)
    result = {
        "data": data.name, "network": config.model.name, "normalization": config.model.normalization,
        "method": config.method["name"], "recipe": config.recipe, "settings": plain(asdict(config)),
        "seed": config.seed, "epochs": training.epochs,
        "train_seconds": sum(record["train_seconds"] for record in epochs), "wall_seconds": whole,
        "seconds_per_epoch": float(np.median([r["train_seconds"] for r in epochs if r["phase"] == "train"])),
        "gpu": facts["device"], "versions": facts["versions"], "runs": 1,
        "images": {}, "attack": "APGD-CE, APGD-T (pyautoattack)", "checkpoint": "best",
        "best_epoch": training.best_epoch,
        "validation": [{key: record.get(key) for key in LOGGED} for record in epochs],
    }  # fmt: skip
    with ieee_float32(device):
        result["clean"] = correct(model, inputs, labels).float().mean().item()
    result["robust"] = {}
    options.results.mkdir(parents=True, exist_ok=True)
    for position, text in enumerate(options.radii.split(",")):
        count = min(options.images if position == 0 else options.fewer, len(inputs))
        began = time.perf_counter()
        resists = attacked(view, model, inputs[:count], labels[:count], Radius(text), options.batch)
        result["images"][text], result["robust"][text] = count, resists.float().mean().item()
        print(f"{options.name} {text}: {100 * result['robust'][text]:.2f} on {count} images, "
              f"clean {100 * result['clean']:.2f}, {time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip
        (options.results / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if options.keep is not None:
        from safetensors.torch import save_file

        options.keep.mkdir(parents=True, exist_ok=True)
        halves = {k: v.half() if v.is_floating_point() else v for k, v in averaged_weights(folder).items()}
        save_file(halves, options.keep / f"{options.name}.safetensors")


if __name__ == "__main__":
    main()
