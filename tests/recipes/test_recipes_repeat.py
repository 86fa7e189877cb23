"""A run repeated from its ``config.yaml`` gives the same numbers."""

import pytest

from dyart.engine.metrics import read_metrics
from dyart.engine.run import train
from dyart.engine.stored import CONFIG
from dyart.recipes import resolve

SHORT = [
    *("--data.limit", "96", "--train.batch_size", "32", "--train.epochs", "1", "--train.burn_in", "1"),
    *("--train.log_every", "1", "--eval.steps", "1", "--train.device", "cpu", "--train.loggers", "[]"),
]
CLOCK = ("seconds", "time", "memory", "images_per_second")


def numbers(folder) -> list[dict]:
    """Every line of metrics.jsonl without what a clock says."""
    records = read_metrics(folder / "metrics.jsonl")
    return [{key: value for key, value in record.items() if not any(c in key for c in CLOCK)} for record in records]


@pytest.mark.parametrize("method", ["at", "dyart"])
def test_a_run_repeated_from_its_configuration(tmp_path, method):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    train(resolve(f"fashion-mini-cnn-{method}", [*SHORT, "--seed", "5", "--out", str(first)]))
    train(resolve(first / CONFIG, ["--out", str(second)]))
    assert len(numbers(first)) >= 6 + 2
    assert numbers(second) == numbers(first)
    train(resolve(first / CONFIG, ["--out", str(other), "--seed", "6"]))
    assert numbers(other) != numbers(first)
