"""The monitor as a callback of Lightning's Trainer; imported when ``BoundaryMonitor.lightning_callback`` is called."""

import importlib
import sys
from typing import Any

from dyart.dynamics.monitor import BoundaryMonitor, Select

PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def lightning_package() -> Any:  # noqa: ANN401
    """Return Lightning: whichever of its two packages is imported already, else installed."""
    names = sorted(PACKAGES, key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(PACKAGES[name])
        except ImportError:
            continue
    raise ImportError("this needs Lightning's package: pip install lightning")


class MonitorCallback(lightning_package().Callback):  # type: ignore[misc]
    """Watches every step of the optimizer, of rank zero; observations also go to the Trainer's loggers.

    With accumulated gradients, a step is all batches up to the optimizer's. The monitor's count of steps is part of
    Lightning's checkpoints.

    Args:
        monitor: that watches.
        select: from the LightningModule to the module that maps inputs to logits; None: itself.
    """

    def __init__(self, monitor: BoundaryMonitor, select: Select | None = None) -> None:
        """Watch nothing yet."""
        super().__init__()
        self.monitor, self.select = monitor, select
        self.begun_at: int | None = None
        self.resumed_at: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """Go on from a checkpoint's step; later observations are dropped."""
        self.begun_at = None
        if self.resumed_at is not None and trainer.is_global_zero:
            self.monitor.resume(self.resumed_at)
        self.resumed_at = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Begin a step, unless one is going on."""
        if trainer.is_global_zero and self.begun_at is None:
            self.begun_at = trainer.global_step
            model = pl_module if self.select is None else self.select(pl_module)
            self.monitor.before(model, epoch=trainer.current_epoch + 1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """End the step, if the optimizer has taken it."""
        if self.begun_at is None or trainer.global_step == self.begun_at:
            return
        self.begun_at = None
        observation = self.monitor.after()
        if observation is not None:
            values = {f"boundary/{name}": value for name, value in observation.numbers().items()}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"step": self.monitor.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back; every process does, so that files are left to the first."""
        self.resumed_at = state_dict["step"]
