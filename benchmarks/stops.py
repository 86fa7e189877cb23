"""Trainings that end before their time: at an accuracy that is enough, or by the clock, to be gone on with later."""

import time
from collections.abc import Callable
from pathlib import Path

from dyart.engine.callbacks import Callback
from dyart.engine.fit import Training, TrainingError
from dyart.engine.metrics import Record
from dyart.engine.run import train
from dyart.recipes import Config

REACHED, LATE = "as good as asked for", "out of time"
MARK = "reached.txt"


class OutOfTimeError(RuntimeError):
    """The clock stopped a training; its last checkpoint is kept, and the same call goes on from there."""


class Stop(Callback):
    """Stops a training when a validation says so, or at a time.

    Args:
        enough: of the record of an epoch; None: it goes on to its end.
        deadline: of ``time.monotonic``.
    """

    def __init__(self, enough: Callable[[Record], bool] | None, deadline: float) -> None:
        self.enough, self.deadline = enough, deadline

    def on_step(self, training: Training) -> None:
        if time.monotonic() > self.deadline:
            training.stop_reason = LATE

    def on_record(self, training: Training, record: Record) -> None:
        measured = record["kind"] == "epoch" and "val_clean" in record
        if measured and self.enough is not None and self.enough(record):
            training.stop_reason = REACHED


def train_until(
    config: Config, enough: Callable[[Record], bool] | None, deadline: float, callbacks: list[Callback] | None = None
) -> Path:
    """Train, or go on, until it is enough or to the end; return the run's folder. A finished one is left as it is.

    Raises:
        OutOfTimeError: the time is over first.
        TrainingError: the training fails.
    """
    assert config.out is not None
    folder = Path(config.out)
    if (folder / MARK).is_file():
        return folder
    words = "its last epoch"
    try:
        train(config, resume=(folder / "config.yaml").is_file(), callbacks=[*(callbacks or []), Stop(enough, deadline)])
    except TrainingError as error:
        if str(error).startswith(LATE):
            raise OutOfTimeError(f"{folder}: {error}") from error
        if not str(error).startswith(REACHED):
            raise
        words = REACHED
    (folder / MARK).write_text(f"{words}\n")
    return folder
