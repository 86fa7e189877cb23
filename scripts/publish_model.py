"""Make a published model: models/NAME.safetensors (16 bit, under 25 MB) and its card, models/NAME.md.

    python scripts/publish_model.py NAME --weights runs/queue/weights         what the queue kept, as it was measured
    python scripts/publish_model.py NAME --run runs/NAME                      from a run's folder, rounded here
    python scripts/publish_model.py NAME --card                               the card alone, after a new evaluation

The card is written from results/NAME.json. The weights must be those that the JSON was measured with, by their sha256,
must fit the network that the JSON describes, and must classify some test images as the JSON says, but for rounding.
"""

import argparse
import hashlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: its modules have common names

from run_records import CLEAN, flags_of, read  # noqa: E402

LARGEST = 25_000_000
# Of predictions that may differ from the recorded ones: another device rounds otherwise.
DIFFERENT = 0.005
LIMITS = """\
- Robust accuracies are upper bounds: an attack that fails proves nothing, and none of them is a certificate.
- It was trained and measured against changes of at most the stated radii in {norm}, on {data} alone. Nothing is known
  of other changes (other norms, rotations, blur, other data).
- One training with one seed: others with the same settings differ.
- It is meant for research: for comparing attacks, defences and margins."""


class PublishError(RuntimeError):
    """What was named cannot be published; the message says why."""


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_digest(path: Path) -> str:
    """Return the sha256 of the weights as they are saved without a description, which is what a run records."""
    from safetensors.torch import load_file, save

    return hashlib.sha256(save(load_file(path))).hexdigest()


def model_arguments(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `dyart.models.build` needs to make the network of a record, beside classes and shape."""
    settings = {key: value for key, value in record["settings"]["model"].items() if value is not None}
    return {"name": settings.pop("name"), **settings}


def command(weights: str, attack: str = "apgd") -> str:
    """Return the command that evaluates a published model."""
    return f"dyart evaluate {weights} --attack {attack}"


def card(record: Mapping[str, Any], file: Path) -> str:
    """Return the card of a model as Markdown, from its record and its file of weights."""
    settings, method = record["settings"], dict(record["settings"]["method"])
    name, place = method.pop("name"), f"models/{file.name}"
    values = ", ".join(f"{key} {value}" for key, value in method.items()) or "its defaults"
    burn_in = f", {record['burn_in']} of them natural training first" if record.get("burn_in") else ""
    optim, train = settings["optim"], settings["train"]
    clip = f", gradients clipped at {optim['clip']}" if optim["clip"] else ""
    lines = [
        f"# {record['name']}",
        "",
        f"{settings['model']['name']} with {record['normalization']} norm, trained by {name} on {record['data']}. "
        "Inputs are images in [0, 1]; whatever normalisation there is, is part of the network. MIT licence.",
        "",
        f"`{file.name}`: {file.stat().st_size / 1e6:.1f} MB, 16 bit, sha256 `{digest(file)}`.",
        "",
        "## Use",
        "",
        "Measure it, offline:",
        "",
        "```bash",
        command(place),
        "```",
        "",
        "Or in Python:",
        "",
        "```python",
        "import dyart.models",
        "",
        f'model = dyart.models.load("{place}")',
        "```",
        "",
        "## Training",
        "",
        f"- method: {name} ({values})",
        f"- {record['epochs']} epochs{burn_in}; batches of {train['batch_size']}, {train['precision']}",
        f"- SGD, rate {optim['lr']}, {optim['schedule']}, warm-up {optim['warmup']:.1%}, momentum {optim['momentum']}, "
        f"decay {optim['weight_decay']}{clip}; weights averaged ({optim['average']})",
        f"- seed {record['seed']}; recipe `{record['recipe']}` as it was then; {record['gpu']}, "
        f"torch {record['versions']['torch']}; {record['wall_seconds']:.0f} s",
        f"- these weights: averaged, epoch {record['best_epoch']}, the best by validation on held-out training images",
        f"- additional images: {settings['data']['auxiliary'] or 'none'}",
        "",
        "## Measured",
        "",
        *_measured(record),
        "",
        "## Limits",
        "",
        LIMITS.format(data=record["data"], norm=record["settings"]["eval"]["norm"]),
        "",
        f"All settings and the verdict on every image: `results/{record['name']}.json`.",
    ]
    return "\n".join(lines) + "\n"


def _measured(record: Mapping[str, Any]) -> list[str]:
    evaluations = [one for one in record["evaluations"] if one["checkpoint"] == "best"]
    lines = []
    for one in evaluations:
        lines += [
            f"{one['tier']} ({one['attack']}), {one['norm']}, {one['images']:,} test images, "
            f"{one['view']['device']}, {one['wall_seconds']:.0f} s:",
            "",
            "| | accuracy, % | 95 % interval |",
            "|---|---|---|",
        ]
        for name, share in {CLEAN: one[CLEAN], **one["robust"]}.items():
            low, high = one["intervals"][name]
            lines.append(f"| {name} | {100 * share:.2f} | {100 * low:.1f} to {100 * high:.1f} |")
        lines += ["", *(f"Alarm: {alarm}" for alarm in one["alarms"])]
    return lines[:-1] if lines and not lines[-1] else lines


def checked(record: Mapping[str, Any], file: Path, images: int) -> None:
    """Check size, sha256, network and predictions of a file of weights.

    Raises:
        PublishError: one of them is not what it should be.
    """
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from dyart.cli.networks import sample
    from dyart.data import load
    from dyart.data.loader import as_tensors
    from dyart.models import build

    if file.stat().st_size > LARGEST:
        size = file.stat().st_size / 1e6
        raise PublishError(f"{file} has {size:.1f} MB, above {LARGEST / 1e6:.0f}: keep it in 16 bit")
    known = record.get("weights", {}).get("best")
    if known is not None and weights_digest(file) != known:
        raise PublishError(f"{file} is not what results/{record['name']}.json was measured with: their sha256 differ")
    if not images:
        return
    data = load(record["data"])
    model = build(classes=len(data.classes), shape=data.shape, **model_arguments(record)).eval()
    model.load_state_dict(load_file(file))
    best = next(one for one in record["evaluations"] if one["checkpoint"] == "best")
    rows = sample(len(data.test), best["images"], 0)[:images]
    inputs, labels = as_tensors(data.test, rows, torch.device("cpu"))
    with torch.no_grad():
        right = torch.cat([model(x).argmax(dim=1) for x in inputs.split(100)]) == labels
    differ = float(np.mean(right.numpy() != flags_of(best, CLEAN)[: len(labels)]))
    if differ > DIFFERENT:
        raise PublishError(f"{file} classifies {differ:.1%} of {len(labels)} test images otherwise than recorded")


def describe(record: Mapping[str, Any], file: Path) -> None:
    """Write into a file of weights which network it is of."""
    from safetensors.torch import load_file

    from dyart.models.described import Description, packed

    settings = model_arguments(record)
    name = settings.pop("name")
    described = Description(name, record["classes"], tuple(record["shape"]), record["data"], settings)
    file.write_bytes(packed(load_file(file), described))


def from_run(run: Path, target: Path) -> None:
    """Write the averaged weights of a run's best epoch in 16 bit."""
    from safetensors.torch import save_file

    from dyart.engine.stored import averaged_weights
    from train_and_attack import halved

    save_file(halved(averaged_weights(run)), target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish one model; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the run, as in results/NAME.json")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", type=Path, help="folder with NAME.safetensors")
    source.add_argument("--run", type=Path, help="a run's folder")
    source.add_argument("--card", action="store_true", help="write the card of a model that is there anew")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "models")
    parser.add_argument("--images", type=int, default=500, help="test images to compare predictions on (default: 500)")
    options = parser.parse_args(arguments)
    record = read(options.results / f"{options.name}.json")
    target = options.out / f"{options.name}.safetensors"
    partial = target.with_suffix(".part")
    try:
        if not record.get("evaluations") or "failed" in record:
            raise PublishError(f"{options.results / options.name}.json has no evaluation: train and attack it first")
        options.out.mkdir(parents=True, exist_ok=True)
        if options.run is not None:
            from_run(options.run, partial)
        else:
            place = target if options.card else options.weights / target.name
            if not place.is_file():
                raise PublishError(f"there is no {place}")
            shutil.copyfile(place, partial)
        checked(record, partial, options.images)
        describe(record, partial)
        partial.replace(target)
    except PublishError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        partial.unlink(missing_ok=True)
    target.chmod(0o644)
    (options.out / f"{options.name}.md").write_text(card(record, target), encoding="utf-8")
    print(f"{target} ({target.stat().st_size / 1e6:.1f} MB) and its card")
    return 0


if __name__ == "__main__":
    sys.exit(main())
