"""The card of an exported network: what it is, how it was made and measured, how it is used."""

from pathlib import Path
from typing import Any

from dyart.data import DataSet
from dyart.models.factory import is_factory
from dyart.recipes import Config
from dyart.recipes.config import BURN_INS

USE = """\
```python
import torch
from network import load  # this folder's network.py, which needs {needs}

model = load()
logits = model(torch.rand(1, {shape}))  # images in [0, 1]
```
"""


def card(
    config: Config,
    data: DataSet,
    evaluation: dict[str, Any],
    record: dict[str, Any],
    checkpoint: Path,
    parameters: int,
) -> str:
    """Return the card as Markdown.

    Args:
        config: of the run.
        data: that it was trained on.
        evaluation: the run's record, empty if there is none of this checkpoint.
        record: of ``submission``.
        checkpoint: where the weights come from.
        parameters: of the network.
    """
    method = dict(config.method)
    name = method.pop("name")
    needs = f"{config.model.name.partition(':')[0]} and dyart" if is_factory(config.model.name) else "torch alone"
    settings = ", ".join(f"{key} {value}" for key, value in method.items()) or "its defaults"
    burn_in, first = config.train.burn_in, BURN_INS[config.train.burn_in_method]
    lines = [
        f"# {config.model.name}, {name}, {data.name}",
        "",
        f"{record['model_info']['architecture']}, {parameters:,} parameters, {len(data.classes)} classes: "
        f"{_enumerated(data.classes)}.",
        "",
        "## Use",
        "",
        USE.format(needs=needs, shape=", ".join(map(str, data.shape))),
        "`model.safetensors` and `model.pt` hold the same weights; both are read without executing code.",
        "",
        "## Training",
        "",
        f"- method: {name} ({settings})",
        f"- {config.train.epochs} epochs, batches of {config.train.batch_size}, learning rate {config.optim.lr}, seed "
        f"{config.seed}" + (f", {burn_in} epochs of {first} first" if burn_in else ""),
        f"- weights: averaged, of checkpoint {checkpoint.name}",
        f"- additional images: {'yes, ' + Path(config.data.auxiliary).name if config.data.auxiliary else 'none'}",
        "",
        "## Measured",
        "",
        *_measured(evaluation),
        "",
        "## Before a submission to RobustBench",
        "",
        f"`robustbench.json` has what is known; to be filled in: {', '.join(record['unknown']) or 'nothing'}.",
        *(f"- {note}" for note in record["notes"]),
    ]
    return "\n".join(lines) + "\n"


def _measured(evaluation: dict[str, Any]) -> list[str]:
    if not evaluation:
        return ["Nothing is recorded for this checkpoint."]
    intervals = evaluation.get("intervals", {})
    rows = {"clean": evaluation.get("clean"), **evaluation.get("robust", {})}
    lines = [
        f"{evaluation.get('images')} test images, {evaluation.get('norm')}; attack: {evaluation.get('attack')}. Robust "
        "accuracies are upper bounds of the true ones.",
        "",
        "| | accuracy, % | 95 % interval |",
        "|---|---|---|",
    ]
    for name, share in rows.items():
        low, high = intervals.get(name, (None, None))
        interval = "" if low is None else f"{100 * low:.1f} to {100 * high:.1f}"
        lines.append(f"| {name} | {100 * share:.2f} | {interval} |")
    return lines


def _enumerated(names: tuple[str, ...], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
