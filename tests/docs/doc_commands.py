"""What is done with the commands of the README and of the documentation.

Each is run as it stands, in the order of its page, unless it begins with one of the lines below. The longest such line
counts. ``stand_ins`` makes what the README speaks of and a reader brings along.
"""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import torch

_BRIEF = "--train.epochs 1 --train.burn_in 1 --eval.radii [0.1] --eval.steps 1"

# Words that are added: the same work, with less of it. What is printed is then not compared.
QUICKER = {
    # Of bf16 this much: on a CPU whose virtual machine announces AMX and has none, oneDNN's bf16 ends the process.
    "dyart train cifar10-resnet18-dyart --optim.lr": "--model.name cnn --train.epochs 1 --train.burn_in 4 "
    "--train.batch_size 10 --train.precision fp32 --method.steps 2 --eval.steps 1",
    "dyart train fashion-mini-cnn-dyart --out runs/dyart": f"{_BRIEF} --data.limit 384 --eval.every 9",
    "dyart train fashion-mini-cnn-dyart --method.adaptive_steps": f"{_BRIEF} --data.limit 384 --eval.every 9",
    "dyart train fashion-mini-cnn-dyart --method.lam": f"{_BRIEF} --data.limit 256",
    "dyart train fashion-mini-cnn-dyart --method.name inverse:InverseDyART": f"{_BRIEF} --data.limit 256",
    "dyart train fashion-mini-cnn-natural": "--data.limit 512 --train.epochs 1 --eval.radii [0.1] --eval.steps 1 "
    "--quiet",
    "dyart train fashion-mini-cnn-at --method.name half_margin:HalfMargin": f"{_BRIEF} --data.limit 256 "
    "--method.steps 2 --method.search_steps 4",
    "dyart compare": f"{_BRIEF} --data.limit 128 --method.steps 2 --seeds 0",
    "dyart evaluate runs/dyart --attack margins": "--count 20 --steps 10 --restarts 1 --radii 0.1",
    "dyart evaluate runs/dyart --count 1000": "--count 4 --radii 0.1",
    "dyart evaluate runs/mine": "--count 4 --radii 8/255",
    "dyart evaluate runs/mine --attack margins": "",  # quick as it is
    "dyart evaluate --model my.package:factory": "--count 8",
    "dyart evaluate models/": "--count 4 --attack clean",
    "dyart dynamics runs/mine": "--count 20 --steps 10",
    "dyart dynamics runs/natural": "--count 64 --steps 10",
    "dyart dynamics runs/half": "--count 64 --steps 10",
    "dyart plane": "--frames 2",
    "dyart doctor": "--seconds 1",
}

# What is run in their place.
INSTEAD = {"make demo": "dyart demo --quick", "dyart report evaluation-w-1000": "dyart report evaluation-w-8"}

# What is not run, and why; their options, recipes, extras and targets are looked at all the same.
PARSED = {
    "pip install": "it installs the environment that tests run in",
    "make install": "it installs the environment that tests run in",
    "make test": "it runs these tests",
    "make test-browser": "CI runs it apart",
    "make docs": "CI runs it apart",
    "dyart margins --model timm:create_model": "timm needs torchvision, which has no build for the pinned CPU torch",
    "dyart train cifar10-resnet18-dyart --devices 8": "it needs eight GPUs",
    "dyart train cifar10-wrn28-10-dyart --devices 8": "it needs four machines",
    "dyart evaluate runs/mine --devices 8": "it needs eight GPUs",
    "dyart train fashion-mini-cnn-dyart --data.limit 1500": "it compares two states of the repository",
    "python benchmarks/": "it takes hours of a GPU, and writes into the repository",
    "python scripts/": "it writes into the repository",
    "dyart plane --out": "it is the command that the README has, too",
}

MODELS = Path(__file__).parents[2] / "models"
if not MODELS.is_dir():
    PARSED["dyart evaluate models/"] = "a source distribution is without the models"


def listed(command: str, table: dict[str, str]) -> str | None:
    """Return the longest line of a table that a command begins with; None if there is none."""
    words = " ".join(command.split())
    begun = [line for line in table if f"{words} ".startswith(line if line.endswith("/") else f"{line} ")]
    return max(begun, key=len, default=None)


def decided(command: str) -> tuple[list[str] | None, bool]:
    """Return the words to run, None where a command is parsed alone, and whether its output is as the page says."""
    found = {name: listed(command, table) for name, table in (("not", PARSED), ("less", QUICKER), ("other", INSTEAD))}
    best = max((name for name in found if found[name]), key=lambda name: len(found[name] or ""), default=None)
    if best == "not":
        return None, False
    if best == "other":
        return shlex.split(INSTEAD[str(found["other"])]), False
    added = QUICKER[str(found["less"])] if best == "less" else ""
    return shlex.split(command) + shlex.split(added), not added


def commands_in(text: str) -> list[str]:
    """Return a shell line's commands, one after the other."""
    return [part.strip() for part in re.split(r"\s&&\s", text)]


def stand_ins(folder: Path) -> None:
    """Make what the README takes for granted: ``my.package:factory``, its weights, a small ``cifar10``, our models."""
    from safetensors.torch import save_file

    from dyart.data.names import CIFAR10
    from dyart.data.raw import Raw
    from dyart.data.store import save

    (folder / "models").symlink_to(MODELS)
    (folder / "my").mkdir()
    (folder / "my" / "package.py").write_text(
        "from torch import nn\n\n\n"
        "def factory(classes, shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
    )
    weights = {"1.weight": 0.01 * torch.randn(10, 3072), "1.bias": torch.zeros(10)}
    torch.save(weights, folder / "w.pt")
    save_file(weights, folder / "w.safetensors")
    random = np.random.RandomState(0)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = random.randint(0, 64, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10
        images[np.arange(count), :, 3 * labels] += 190  # a bright line tells the class
        return images, labels

    save(Path(os.environ["DYART_DATA"]) / "cifar10", "cifar10", Raw(*part(100), *part(40), CIFAR10), "drawn", "drawn")
