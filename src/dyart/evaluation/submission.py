"""What a submission to RobustBench asks for, as far as a run knows it.

``model_info`` has the keys of the leaderboard's own files (one JSON per model), ``issue`` what its form for new models
asks for besides. What a run cannot know is null and listed under ``unknown``.
"""

from typing import Any

from dyart.data import DataSet
from dyart.recipes import Config

ARCHITECTURES = {
    "wrn28-10": "WideResNet-28-10",
    "wrn34-10": "WideResNet-34-10",
    "preactresnet18": "PreActResNet-18",
    "resnet18": "ResNet-18",
}
THREATS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
# Of images and radius: what the leaderboard counts.
WHOLE = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}


def submission(config: Config, data: DataSet, evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the record: ``model_info``, ``issue``, ``unknown`` (names of nulls) and ``notes`` (what to look at)."""
    radius = str(config.eval.radius)
    robust = evaluation.get("robust", {}).get(radius) if evaluation.get("tier") == "autoattack" else None
    norm = evaluation.get("norm", config.eval.norm)
    name = config.model.name
    architecture = ARCHITECTURES.get(name, name)
    if config.model.normalization == "group":
        architecture += " with GroupNorm"
    model_info = {
        "link": None,
        "name": None,
        "authors": None,
        "additional_data": None if config.data.auxiliary else False,
        "number_forward_passes": 1,
        "dataset": data.name,
        "venue": None,
        "architecture": architecture,
        "eps": radius,
        "clean_acc": _percent(evaluation.get("clean")),
        "reported": None,
        "autoattack_acc": _percent(robust),
        "footnote": f"It uses additional images in training ({config.data.auxiliary_fraction:.0%} of every batch)."
        if config.data.auxiliary
        else None,
        "unreliable": bool(evaluation.get("alarms")) if robust is not None else None,
    }
    issue = {
        "threat_model": THREATS[norm],
        "robust_accuracy": _percent(robust),
        "evaluation_method": evaluation.get("attack"),
        "checkpoint_and_code": None,
        "architecture_in_model_zoo": None,
        "license": None,
    }
    empty = [key for part in (model_info, issue) for key, value in part.items() if value is None and key != "footnote"]
    return {
        "model_info": model_info,
        "issue": issue,
        "unknown": empty,
        "notes": _notes(data, evaluation, robust, radius),
    }


def _notes(data: DataSet, evaluation: dict[str, Any], robust: float | None, radius: str) -> list[str]:
    """Return why a leaderboard would not take it as it is."""
    notes = []
    if data.name not in WHOLE:
        notes.append(f"RobustBench has no leaderboard for {data.name}; its sets are {', '.join(WHOLE)}")
    elif evaluation and evaluation.get("images") != WHOLE[data.name]:
        notes.append(f"{evaluation.get('images')} images were evaluated; the leaderboard counts {WHOLE[data.name]:,}")
    if robust is None:
        notes.append(
            f"no AutoAttack at {radius} is recorded: run `dyart evaluate RUN --attack autoattack`, then export"
        )
    inferred = (evaluation.get("inferred") or {}).get(radius, 0)
    if robust is not None and inferred and not evaluation.get("strict"):
        notes.append(
            f"{inferred} examples are taken to resist at {radius} because they did at a larger radius: --strict"
        )
    notes += [
        f"alarm: {alarm.get('message', alarm)}" for alarm in evaluation.get("alarms") or [] if isinstance(alarm, dict)
    ]
    return notes


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f}"
