"""Every method trains: in seconds, from its recipe for the embedded set, to far more robustness than natural training.

Settings are the recipes' but for the size of the trial; robust accuracy is on the hold-out at radius 0.1.
"""

import json
from functools import cache

import pytest

from dyart.engine.run import train
from dyart.methods.base import registered
from dyart.recipes import resolve

TRIAL = "--data.limit 896 --train.batch_size 64 --train.epochs 3 --eval.every 3 --eval.steps 10 --eval.attack none"
QUICK = "--method.steps 5"


@cache
def trained(method: str, folder) -> dict[str, float]:
    """What was measured after the last epoch."""
    words = [*TRIAL.split(), "--train.loggers", "[]", "--out", str(folder / method)]
    if method != "natural":
        words += QUICK.split()
    if method.startswith("dyart"):  # whose burn-in is natural training: that of the comparison serves
        words += ["--train.burn_in", "0", "--train.burn_in_from", str(folder / "natural")]
    train(resolve(f"fashion-mini-cnn-{method}", words))
    lines = (folder / method / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if "val_robust" in line][-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.mark.parametrize("method", sorted(set(registered()) - {"natural"}))
def test_a_method_makes_robust(method, folder):
    natural, robust = trained("natural", folder), trained(method, folder)
    assert robust["val_robust"] > natural["val_robust"] + 0.15
    # Far from a constant, which resists everything: one class in ten.
    assert robust["val_clean"] > 0.5
