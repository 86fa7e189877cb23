"""How often every sign of masked gradients is seen, on networks that mask and on networks that do not.

    OMP_NUM_THREADS=1 python benchmarks/masking.py --seeds 0 1

Small CNNs on the embedded set, trained here:

    natural, AT, DyART          with the recipes' settings and fewer epochs
    10 %-winners-take-all       naturally, every activation but the largest tenth set to zero instead of ReLU
    levels                      naturally, activations on three levels, the derivative of rounding taken as 1; attacked
                                as they are (no derivative), with that same derivative (straight-through), and with
                                steep sigmoids between the levels (hard to attack, but smooth)
    natural, logits x 100       the softmax saturates

Each is evaluated as `dyart evaluate` does by default: boundary search, PGD-20, APGD-CE, APGD-T, FAB-T, Square, each
example attacked in full at the largest radius below the closest point known. Every seed has test images of its own. The
shares are of the correctly classified examples, as `dyart.evaluation.alarms` takes them: its limits lie between those
of the networks that mask and of the first three, and the table there is this script's. About 15 minutes of one core.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dyart.data import DataSet, load
from dyart.data.loader import as_tensors
from dyart.engine.run import train
from dyart.engine.stored import averaged_weights
from dyart.evaluation.alarms import SIGNS, alarm_counts
from dyart.evaluation.evaluate import evaluate
from dyart.evaluation.intervals import wilson
from dyart.evaluation.preflight import preflight
from dyart.evaluation.result import Evaluation
from dyart.models import build
from dyart.recipes import resolve
from harness import RESULTS, write

DEVICE = torch.device("cpu")
RADII = ("0.05", "0.1", "0.2")
WINNERS, LEVELS, LARGEST, SCALE = 0.1, 2, 4.0, 100.0
EPOCHS = {"natural": 6, "at": 6, "dyart": 4, "winners": 6, "levels": 6}
BURN_IN = {"dyart": 2}
STEEPNESS = 40.0
Change = Callable[[nn.Module], nn.Module]


class Winners(nn.Module):
    """Keeps the largest activations of every example and sets the others to zero: discontinuous everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = flat.topk(max(int(WINNERS * flat.shape[1]), 1), dim=1).values[:, -1:]
        return torch.where(flat >= least, flat, 0.0).view_as(x)


class Levels(nn.Module):
    """Activations between 0 and 4 on three levels."""

    way = "straight-through"

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x).clamp(max=LARGEST) * LEVELS / LARGEST
        if self.way == "smooth":
            level = x.floor() + torch.sigmoid(STEEPNESS * (x - x.floor() - 0.5))
        elif self.way == "rounded":
            level = x.round()
        else:  # the derivative is that of the activation before rounding
            level = x + (x.round() - x).detach()
        return level * LARGEST / LEVELS


class Scaled(nn.Module):
    """A network with its logits multiplied."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return SCALE * self.network(x)


def winners(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return with_activation(build("cnn", classes, shape), Winners)


def levels(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return with_activation(build("cnn", classes, shape), Levels)


def with_activation(network: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    for name, part in network.named_children():
        if isinstance(part, nn.ReLU):
            setattr(network, name, make())
        else:
            with_activation(part, make)
    return network


def on_levels(way: str) -> Change:
    """Return what makes the levels of a network rounded (no derivative) or smooth (steep sigmoids between them)."""

    def changed(network: nn.Module) -> nn.Module:
        for part in network.modules():
            if isinstance(part, Levels):
                part.way = way
        return network

    return changed


def unchanged(network: nn.Module) -> nn.Module:
    return network


# By name: what it is trained as, what is made of it to be attacked, and whether that masks (None: hard to attack).
NETWORKS: dict[str, tuple[str, Change, bool | None]] = {
    "natural": ("natural", unchanged, False),
    "AT": ("at", unchanged, False),
    "DyART": ("dyart", unchanged, False),
    "10 %-winners-take-all": ("winners", unchanged, True),
    "levels, rounded": ("levels", on_levels("rounded"), True),
    "levels, straight-through": ("levels", unchanged, True),
    "levels, steep and smooth": ("levels", on_levels("smooth"), None),
    "natural, logits x 100": ("natural", Scaled, True),
}
MAKE: dict[str, Callable[[int, tuple[int, ...]], nn.Module]] = {"winners": winners, "levels": levels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    data = load("fashion-mini")
    settings = {
        "data": "fashion-mini", "network": "cnn", "images": options.images, "radii": RADII, "norm": "linf",
        "attack": "autoattack", "strict": False, "seeds": options.seeds, "epochs": EPOCHS, "burn_in": BURN_IN,
        "winners": WINNERS, "levels": LEVELS + 1, "steepness": STEEPNESS, "logits_times": SCALE,
        "limits": {kind: sign.limit for kind, sign in SIGNS.items()},
    }  # fmt: skip
    records: list[dict[str, Any]] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for name in options.networks:
                records.append(judged(name, data, Path(folder), seed, options.images))
                show(records[-1])
                write("masking", DEVICE, settings, records, options.out)


def judged(name: str, data: DataSet, folder: Path, seed: int, images: int) -> dict[str, Any]:
    kind, change, masks = NETWORKS[name]
    started = time.process_time()
    network = trained(kind, data, folder / kind, seed)
    trained_by = time.process_time()
    attacked = change(network).eval()
    inputs, labels = as_tensors(data.test, slice(seed * images, (seed + 1) * images), DEVICE)
    findings = preflight(attacked, inputs, labels, norm="linf", bounds=(0.0, 1.0))
    result = evaluate(attacked, inputs, labels, RADII, preflight=False, seed=seed)
    return {
        "network": name,
        "masks": masks,
        "seed": seed,
        "train_cpu_seconds": trained_by - started,
        "evaluation_cpu_seconds": time.process_time() - trained_by,
        "preflight": [finding.kind for finding in findings],
    } | measured(result)


def trained(kind: str, data: DataSet, folder: Path, seed: int) -> nn.Module:
    """The averaged weights after the last epoch; trained once per seed."""
    if not folder.is_dir():
        recipe = f"fashion-mini-cnn-{'natural' if kind in MAKE else kind}"
        words = ["--out", str(folder), "--seed", str(seed), "--train.epochs", str(EPOCHS[kind])]
        words += ["--train.burn_in", str(BURN_IN.get(kind, 0)), "--train.loggers", "[]", "--eval.every", "99"]
        words += ["--train.device", "cpu"] + (["--model.name", f"masking:{kind}"] if kind in MAKE else [])
        train(resolve(recipe, words), data=data)
    make = MAKE.get(kind, lambda classes, shape: build("cnn", classes, shape))
    network = make(len(data.classes), data.shape)
    network.load_state_dict(averaged_weights(folder, "last"))
    return network


def measured(result: Evaluation) -> dict[str, Any]:
    verdicts = result.verdicts
    correct, counts = int(verdicts.correct.sum()), alarm_counts(verdicts)
    return {
        "images": len(verdicts),
        "correct": correct,
        "clean": result.clean_accuracy,
        "robust_after": {name: {str(r): v for r, v in after.items()} for name, after in result.after.items()},
        "signs": {
            kind: {"count": count, "share": count / correct, "low": wilson(count, correct)[0]}
            for kind, count in counts.items()
        },
        "alarms": [alarm.kind for alarm in result.alarms],
    }


def show(record: dict[str, Any]) -> None:
    signs = ", ".join(f"{kind} {100 * sign['share']:.0f} %" for kind, sign in record["signs"].items())
    print(
        f"seed {record['seed']}, {record['network']}: {record['correct']} of {record['images']} correct; {signs}\n"
        f"  alarms: {', '.join(record['alarms']) or 'none'}; preflight: {', '.join(record['preflight']) or 'nothing'}; "
        f"{record['train_cpu_seconds']:.0f} + {record['evaluation_cpu_seconds']:.0f} s of CPU",
        flush=True,
    )


if __name__ == "__main__":
    main()
