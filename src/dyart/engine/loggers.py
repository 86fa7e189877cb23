"""Loggers of the field as callbacks: CSV and TensorBoard through Fabric, W&B and MLflow through their own packages."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyart.engine.callbacks import Callback
from dyart.engine.files import write_whole
from dyart.engine.metrics import Record
from dyart.recipes.config import Logger

if TYPE_CHECKING:
    from dyart.engine.fit import Training


class LoggersCallback(Callback):
    """All loggers that a configuration names (``train.loggers``), made when the training begins."""

    def on_start(self, training: "Training") -> None:
        """Make them."""
        folder = training.folder
        names = training.config.train.loggers
        self.loggers = [] if folder is None else make_loggers(names, folder, dataclasses.asdict(training.config))
        for logger in self.loggers:
            logger.on_start(training)

    def on_record(self, training: "Training", record: Record) -> None:
        """Pass a record on."""
        for logger in self.loggers:
            logger.on_record(training, record)

    def on_end(self, training: "Training") -> None:
        """Flush them all."""
        for logger in self.loggers:
            logger.on_end(training)


def make_loggers(names: Sequence[Logger], folder: Path, config: dict[str, Any]) -> list[Callback]:
    """Return callbacks for the named loggers. TensorBoard is left out where its package is missing.

    Raises:
        ImportError: W&B or MLflow was asked for and its package is missing; the message says how to get it.
    """
    makers = {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
    made = [makers[name](folder, config) for name in names]
    return [logger for logger in made if logger is not None]


class FabricLogger(Callback):
    """Sends every epoch to a logger with ``log_metrics`` and ``finalize``.

    A resumed run begins its log anew, with the epochs that are done: what a killed process wrote after its last
    checkpoint happens again.

    Args:
        make: makes the logger.
        folder: where it writes.
    """

    def __init__(self, make: Callable[[], Any], folder: Path) -> None:
        """Make nothing yet."""
        self.make, self.folder = make, folder

    def on_start(self, training: "Training") -> None:
        """Make the logger, and log what is done already."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.logger = self.make()
        for record in training.history:
            self.on_record(training, record)

    def on_record(self, training: "Training", record: Record) -> None:
        """Log the epoch's numbers."""
        if record["kind"] == "epoch":
            self.logger.log_metrics(_numbers(record), record["step"])

    def on_end(self, training: "Training") -> None:
        """Flush."""
        self.logger.finalize("success")


class WandbLogger(Callback):
    """Sends every record to Weights & Biases."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        """Begin a run there, or go on with the one of a resumed training."""
        import wandb

        known, place = _known_as(folder / ".wandb-run"), str(folder)
        self.run = wandb.init(
            project="dyart", name=folder.name, dir=place, config=config, id=known, resume="allow" if known else None
        )
        write_whole(folder / ".wandb-run", self.run.id)

    def on_record(self, training: "Training", record: Record) -> None:
        """Log all numbers of a record."""
        self.run.log({f"{record['kind']}/{name}": value for name, value in _numbers(record).items()}, record["step"])

    def on_end(self, training: "Training") -> None:
        """Finish the run."""
        self.run.finish()


class MlflowLogger(Callback):
    """Sends every record to MLflow."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        """Begin a run there, or go on with the one of a resumed training."""
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment("dyart")
        run = mlflow.start_run(run_id=_known_as(folder / ".mlflow-run"), run_name=folder.name)
        write_whole(folder / ".mlflow-run", run.info.run_id)
        mlflow.log_dict(config, "config.json")

    def on_record(self, training: "Training", record: Record) -> None:
        """Log all numbers of a record."""
        self.mlflow.log_metrics(
            {f"{record['kind']}/{name}": value for name, value in _numbers(record).items()}, record["step"]
        )

    def on_end(self, training: "Training") -> None:
        """Finish the run."""
        self.mlflow.end_run()


def _csv(folder: Path, config: dict[str, Any]) -> Callback:
    make = _fabric_loggers().CSVLogger
    return FabricLogger(lambda: make(str(folder), name="", version="csv", flush_logs_every_n_steps=1), folder / "csv")


def _tensorboard(folder: Path, config: dict[str, Any]) -> Callback | None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return None
    make = _fabric_loggers().TensorBoardLogger
    return FabricLogger(lambda: make(str(folder), name="", version="tensorboard"), folder / "tensorboard")


def _wandb(folder: Path, config: dict[str, Any]) -> Callback:
    return _needs("wandb", lambda: WandbLogger(folder, config))


def _mlflow(folder: Path, config: dict[str, Any]) -> Callback:
    return _needs("mlflow", lambda: MlflowLogger(folder, config))


def _needs(package: str, make: Callable[[], Callback]) -> Callback:
    try:
        return make()
    except ImportError as error:
        raise ImportError(f"the logger {package!r} needs its package: pip install {package}") from error


def _known_as(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _fabric_loggers() -> Any:  # noqa: ANN401
    try:
        from lightning.fabric import loggers
    except ImportError:
        from lightning_fabric import loggers
    return loggers


def _numbers(record: Record) -> dict[str, float]:
    return {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
