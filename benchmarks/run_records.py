"""The JSON of a published training: verdicts on every test image as bits, evaluations side by side, small and readable.

{"name", "recipe", "settings", "seed", "epochs", "train_seconds", "gpu", "versions", ...       the training
 "validation": {"epoch": [...], "val_clean": [...], ...},
 "evaluations": [{"checkpoint": "best", "tier": "apgd", "images", "clean", "robust", "intervals",
                  "resists": {"clean": HEX, "8/255": HEX}, "resists_pgd": {"8/255": HEX}, "seconds", ...}, ...],
 "clean", "robust", "images", "attack", "checkpoint",                        those of the first evaluation again
 "failed": {"stage", "error"}}                                                            only of a run that failed
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CLEAN = "clean"


def packed(flags: np.ndarray) -> str:
    """Return flags as hexadecimal text, eight to a byte."""
    return np.packbits(flags).tobytes().hex()


def unpacked(text: str, count: int) -> np.ndarray:
    """Return the flags in a text of ``packed``."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count).astype(bool)


def evaluation_of(record: Mapping[str, Any], checkpoint: str, tier: str) -> dict[str, Any] | None:
    """Return one evaluation of a run, if it has it."""
    found = [one for one in record.get("evaluations", []) if (one["checkpoint"], one["tier"]) == (checkpoint, tier)]
    return found[0] if found else None


def flags_of(evaluation: Mapping[str, Any], radius: str) -> np.ndarray:
    """Return which images resist at a radius ("clean": are classified as labelled)."""
    return unpacked(evaluation["resists"][radius], evaluation["images"])


def with_evaluation(record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with one more evaluation, in place of one of the same kind; its first one stands for the run."""
    key = evaluation["checkpoint"], evaluation["tier"]
    others = [one for one in record.get("evaluations", []) if (one["checkpoint"], one["tier"]) != key]
    evaluations = sorted([*others, dict(evaluation)], key=lambda one: (one["checkpoint"] != "best", one["tier"]))
    first = evaluations[0]
    shown = {key: first[key] for key in ("clean", "robust", "attack", "checkpoint")}
    images = dict.fromkeys(first["robust"], first["images"])
    return {**record, **shown, "images": images, "evaluations": evaluations}


def read(path: Path) -> dict[str, Any]:
    """Return a record; an empty one where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, lists of numbers on one line each, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    partial = path.with_suffix(".part")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
