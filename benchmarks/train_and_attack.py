"""Train a recipe and attack the result: one JSON per run, `results/NAME.json`.

    python benchmarks/train_and_attack.py cifar10-resnet18-dyart --name mine-seed0 --seed 0 --train.epochs 45
    python benchmarks/train_and_attack.py ... --stage train         # the training alone; resumed if it was begun
    python benchmarks/train_and_attack.py ... --stage attack        # what is missing of the attacks, from the weights

What is attacked: the averaged weights of the best epoch by validation, with every attack of --attacks at all radii in
one call of `dyart.evaluate`; and those of the last epoch with the tier apgd at 8/255 alone. Both are first rounded to
the 16 bits in which they are kept (--weights), so that a kept file is exactly what was measured. The attack stage needs
the JSON and the kept weights, and no run folder. Stopped by SIGTERM, the training keeps a checkpoint and attacks keep a
journal: the same command goes on. Exit status 75: stopped and to be gone on with; 1: failed, and the JSON says so.

With --judge N, the last N training images are neither trained on nor used for selection, and are attacked instead of
test images: to choose settings by.
"""

import argparse
import hashlib
import statistics
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dyart
from dyart.attacks.radius import Radius
from dyart.cli.networks import sample
from dyart.data import DataSet, load
from dyart.data.sets import Split
from dyart.engine.display import Display
from dyart.engine.environment import environment
from dyart.engine.fabric import make_fabric
from dyart.engine.files import write_whole
from dyart.engine.fit import Training, TrainingError
from dyart.engine.run import make_model, train
from dyart.engine.stored import averaged_weights
from dyart.evaluation.records import accuracies
from dyart.evaluation.result import Evaluation
from dyart.evaluation.tiers import PGD
from dyart.evaluation.verdicts import Status
from dyart.recipes import Config, resolve
from run_records import CLEAN, evaluation_of, packed, read, with_evaluation, write

# What an epoch's seconds are spent on. A process that was killed has left no other trace of its time.
SPENT = ("train_seconds", "validation_seconds", "checkpoint_seconds")
LOGGED = ("epoch", "val_clean", "val_robust", "train_clean", "train_robust", "loss", "gradient_norm")
LOGGED += ("clean_loss", "phi_shift", "inside", "used", "lost", "margin_q10", "margin_q50")
STOPPED = 75
CHECKPOINTS = ("best", "last")
CLOCK = "wall_seconds.txt"


def plain(value: object) -> object:
    """Return settings as JSON has them: a number written as a fraction as its text."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Radius) and "/" in value.text else value


def halved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in 16 bit.

    Raises:
        ValueError: one of them is too large for it.
    """
    halves = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    lost = [name for name, value in halves.items() if not bool(value.isfinite().all())]
    if lost:
        raise ValueError(f"weights that 16 bits do not hold: {', '.join(lost[:3])}")
    return halves


def weights_file(folder: Path, name: str, checkpoint: str) -> Path:
    """Return where the weights of a checkpoint are kept."""
    return folder / (f"{name}.safetensors" if checkpoint == "best" else f"{name}-{checkpoint}.safetensors")


def training_record(training: Training, wall: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is known after the training."""
    config, data = training.config, training.data
    epochs = [record for record in training.history if record["kind"] == "epoch"]
    trained = [record for record in epochs if record["phase"] == "train"]
    facts = environment(config, training.fabric)
    settings = plain(asdict(config))
    assert isinstance(settings, dict)
    settings.pop("out")
    settings["data"].pop("root")  # of the machine alone
    return {
        "name": options.name, "data": data.name, "classes": len(data.classes), "shape": list(data.shape),
        "network": config.model.name,
        "normalization": config.model.normalization, "method": config.method["name"], "recipe": config.recipe,
        "settings": settings, "seed": config.seed, "epochs": training.epochs, "burn_in": config.train.burn_in,
        "train_seconds": sum(record["train_seconds"] for record in epochs),
        "wall_seconds": max(wall, sum(record.get(key) or 0.0 for record in epochs for key in SPENT)),
        "start_seconds": start_up(epochs),
        "seconds_per_epoch": float(np.median([record["train_seconds"] for record in trained])),
        "validation_seconds_per_epoch": float(np.mean([record["validation_seconds"] for record in trained])),
        "gpu": facts["device"], "versions": facts["versions"], "commit": facts["commit"], "runs": 1,
        "together": options.together, "judge": options.judge,
        "best_epoch": training.best_epoch,
        "validation": {key: [_short(record.get(key)) for record in epochs] for key in LOGGED},
    }  # fmt: skip


def start_up(epochs: Sequence[Mapping[str, Any]]) -> float:
    """Return what the first epoch of each phase took longer than the phase's median: compiling and recording."""
    phases: dict[str, list[float]] = {}
    for record in epochs:
        phases.setdefault(record["phase"], []).append(record["train_seconds"])
    return sum(max(0.0, seconds[0] - statistics.median(seconds)) for seconds in phases.values())


def _short(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def trained(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    """Train, or go on; keep the weights; return the record."""
    from safetensors.torch import save_file

    folder = Path(config.out)
    resume = (folder / "config.yaml").is_file()
    began = time.monotonic()
    try:
        training = train(config, resume=resume, callbacks=[Display(options.name)])
    finally:
        clock(folder, time.monotonic() - began)
    options.weights.mkdir(parents=True, exist_ok=True)
    digests = {}
    for checkpoint in CHECKPOINTS:
        file = weights_file(options.weights, options.name, checkpoint)
        save_file(halved(averaged_weights(folder, checkpoint)), file)
        digests[checkpoint] = hashlib.sha256(file.read_bytes()).hexdigest()
    return training_record(training, clock(folder, 0.0), options) | {"weights": digests}


def clock(folder: Path, seconds: float) -> float:
    """Add to the seconds that a run has taken in all processes, and return them."""
    if not folder.is_dir():
        return seconds
    path = folder / CLOCK
    total = (float(path.read_text()) if path.is_file() else 0.0) + seconds
    write_whole(path, f"{total:.3f}\n")
    return total


def network(config: Config, data: DataSet, weights: Path, device: torch.device) -> nn.Module:
    """Return the configured network with kept weights, ready to be attacked."""
    from safetensors.torch import load_file

    model = make_model(config, data)
    model.load_state_dict(load_file(weights))  # into float32
    model = model.to(device).eval().requires_grad_(False)
    return model.to(memory_format=torch.channels_last) if device.type == "cuda" else model


def check_same(config: Config, record: Mapping[str, Any], checkpoint: str, weights: Path) -> None:
    """Raise unless a file has the weights that a record is of, and the recipe still makes the same network.

    Raises:
        ValueError: the file is another, or the recipe's network, data or norm has changed since.
    """
    known = record["weights"][checkpoint]
    if hashlib.sha256(weights.read_bytes()).hexdigest() != known:
        raise ValueError(f"{weights} is not what was trained: the record has the sha256 {known}")
    now = plain(asdict(config))
    assert isinstance(now, dict)
    for part, keys in (("model", tuple(now["model"])), ("data", ("name",)), ("eval", ("norm",))):
        then = record["settings"][part]
        changed = [f"{part}.{key}" for key in keys if key in then and then[key] != now[part][key]]
        if changed:
            raise ValueError(f"trained with another setting of {', '.join(changed)} than this call has")


def judged(data: DataSet, count: int) -> DataSet:
    """Return a set with its last ``count`` images for training, the hold-out aside, in place of the test images."""
    rows = data.fit[-count:]
    return replace(data, test=Split(data.train.images[rows], data.train.labels[rows]))


def attacked(
    model: nn.Module,
    data: DataSet,
    radii: list[str],
    attack: str,
    device: torch.device,
    *,
    norm: str = "linf",
    images: int = 10_000,
    batch: int | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Return clean and robust accuracies on some test images, and every verdict as a bit.

    They are drawn as `dyart evaluate --count` draws them, all where there are no more, and come in their order: some
    sets are stored class by class.
    """
    began = time.monotonic()
    result = dyart.evaluate(
        model, data.test.images, data.test.labels, radii, attack, norm,
        batch_size=batch, device=device, index=sample(len(data.test), images, 0), folder=folder,
    )  # fmt: skip
    wall = time.monotonic() - began
    held = {CLEAN: result.verdicts.correct, **result.resisting}
    return {
        "tier": attack,
        "attack": result.words,
        "norm": norm,
        **accuracies(result.verdicts.correct, result.resisting),
        "inferred": {str(radius): count for radius, count in result.inferred.items()},
        "alarms": [str(alarm) for alarm in result.alarms],
        "seconds": result.seconds,
        "wall_seconds": max(wall, result.seconds),  # of one that was resumed, a part alone was measured
        "passes": result.passes,
        "costs": {name: dict(cost) for name, cost in result.costs.items()},
        "view": dict(result.view),
        "versions": dict(result.versions),
        "resists": {name: packed(flags) for name, flags in held.items()},
        "resists_pgd": {name: packed(flags) for name, flags in resisting_pgd(result).items()},
    }


def resisting_pgd(result: Evaluation) -> dict[str, np.ndarray]:
    """Return by radius which images resist PGD, whatever other attacks found: how much more they find tells of a loss
    that misleads gradients. Empty where PGD was not tried on all images that are right.
    """
    verdicts = result.verdicts
    if (status := verdicts.status.get(PGD)) is None:
        return {}
    if not np.isin(status, (Status.RESISTED, Status.BROKEN))[verdicts.correct].all():
        return {}
    resists = verdicts.correct[:, None] & ~verdicts.broken_by(PGD)  # a point counts at every radius from its own on
    return {str(radius): resists[:, i] for i, radius in enumerate(verdicts.radii)}


def wanted(options: argparse.Namespace) -> list[tuple[str, str, list[str]]]:
    """Return checkpoint, attack and radii of every evaluation; what takes longest comes last."""
    all_radii = options.radii.split(",")
    both = [("best", attack, all_radii) for attack in options.attacks]
    both += [("last", "apgd", [options.last])] if options.last else []
    return sorted(both, key=lambda one: one[1] == "autoattack")


def same_weights(record: dict[str, Any], checkpoint: str, attack: str, radii: list[str]) -> dict[str, Any] | None:
    """Return the evaluation of the last epoch where that was the best one and is attacked already; else None."""
    best = evaluation_of(record, "best", attack)
    if checkpoint != "last" or best is None or record["best_epoch"] != record["epochs"]:
        return None
    if not set(radii) <= set(best["robust"]):
        return None
    kept = {key: best[key] for key in ("tier", "attack", "norm", "images", "clean", "view", "versions")}
    parts = {key: {name: best[key][name] for name in radii} for key in ("robust", "inferred")}
    both = {key: {name: best[key][name] for name in (CLEAN, *radii)} for key in ("intervals", "resists")}
    both["resists_pgd"] = {name: flags for name, flags in best.get("resists_pgd", {}).items() if name in radii}
    return {"checkpoint": "last", "same_as": "best", **kept, **parts, **both, "wall_seconds": 0.0}


def attack_stage(config: Config, record: dict[str, Any], options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Attack what has not been attacked yet, and write the record after each."""
    if record.get("judge", 0) != options.judge:
        raise ValueError(f"{path} was trained with --judge {record.get('judge', 0)}, this call has {options.judge}")
    left = [one for one in wanted(options) if evaluation_of(record, *one[:2]) is None]
    if not left:
        return record
    data = _data(config)
    data = judged(data, options.judge) if options.judge else data
    device = make_fabric(config.train.device, config.train.precision).device
    for checkpoint, attack, radii in left:
        if (same := same_weights(record, checkpoint, attack, radii)) is not None:
            record = with_evaluation(record, same)
            write(path, record)
            continue
        kept = weights_file(options.weights, options.name, checkpoint)
        check_same(config, record, checkpoint, kept)
        model = network(config, data, kept, device)
        settings: dict[str, Any] = {"norm": config.eval.norm, "images": options.images, "batch": options.batch}
        folder = Path(config.out) / f"attack-{checkpoint}"  # one: apgd is the beginning of autoattack
        found = {"checkpoint": checkpoint} | attacked(model, data, radii, attack, device, folder=folder, **settings)
        record = with_evaluation(record, found)
        write(path, record)
        words = ", ".join(f"{radius} {100 * share:.2f}" for radius, share in found["robust"].items())
        print(f"{options.name}, {checkpoint}, {attack}: clean {100 * found['clean']:.2f}, {words}; "
              f"{found['wall_seconds']:.0f} s", flush=True)  # fmt: skip
    return record


def _data(config: Config) -> DataSet:
    return load(config.data.name, Path(config.data.root) if config.data.root else None)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("recipe")
    made.add_argument("--name", required=True, help="of the JSON file")
    made.add_argument("--stage", default="all", choices=["all", "train", "attack"])
    made.add_argument("--results", type=Path, default=Path("results"))
    made.add_argument("--weights", type=Path, default=Path("runs/weights"), help="folder for the weights, in 16 bit")
    made.add_argument("--attacks", nargs="+", default=["apgd"], choices=["margins", "pgd", "apgd", "autoattack"])
    made.add_argument("--radii", default="2/255,4/255,8/255,12/255,16/255")
    made.add_argument("--last", default="8/255", help="radius for the last epoch's weights; '' for none")
    made.add_argument("--images", type=int, default=10_000)
    made.add_argument("--judge", type=int, default=0, metavar="N", help="attack N training images that are left out")
    made.add_argument("--batch", type=int, help="default: that of dyart.evaluate")
    made.add_argument("--together", type=int, default=1, help="trainings at a time on the device, to be noted")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing of a run; return the exit status."""
    options, overrides = parser().parse_known_args(arguments)
    if not any(word.partition("=")[0] == "--out" for word in overrides):
        overrides += ["--out", f"runs/{options.name}"]
    config = resolve(options.recipe, overrides)
    if "autoattack" in options.attacks and options.stage != "train" and find_spec("pyautoattack") is None:
        raise SystemExit("--attacks autoattack needs the package pyautoattack: pip install pyautoattack")
    if options.judge < 0:
        raise SystemExit(f"--judge is a number of images, got {options.judge}")
    if options.judge:
        left = len(_data(config).fit) - options.judge
        if left < 1:
            raise SystemExit(f"--judge {options.judge} leaves no images to train on")
        config = resolve(options.recipe, [*overrides, "--data.limit", str(min(left, config.data.limit or left))])
    path = options.results / f"{options.name}.json"
    record = {key: value for key, value in read(path).items() if key != "failed"}
    stage, began = "train", time.monotonic()
    try:
        if "train_seconds" not in record and options.stage != "attack":
            record = trained(config, options)
            write(path, record)
        stage = "attack"
        if options.stage != "train":
            if "train_seconds" not in record:
                raise FileNotFoundError(f"{path} has no training to attack: run --stage train first")
            record = attack_stage(config, record, options, path)
            if read(path) != record:  # it had failed before
                write(path, record)
    except TrainingError as error:
        if str(error).startswith("stopped by"):
            print(error, file=sys.stderr)
            return STOPPED
        failure: Exception = error
    except Exception as error:  # whatever it is, a run that failed is listed
        failure = error
    else:
        return 0
    traceback.print_exception(failure)
    # Places on this machine help nobody who reads the record.
    words = f"{type(failure).__name__}: {failure}".replace(str(config.out), "RUN")
    head = {"name": options.name, "recipe": options.recipe, "seed": config.seed}
    write(path, head | read(path) | {"failed": {"stage": stage, "error": words, "seconds": time.monotonic() - began}})
    return 1


if __name__ == "__main__":
    sys.exit(main())
