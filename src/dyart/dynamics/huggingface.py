"""The monitor as a callback of Hugging Face's Trainer; imported by ``BoundaryMonitor.huggingface_callback``."""

import importlib
from typing import Any

from dyart.dynamics.monitor import BoundaryMonitor, Select


def _callback() -> Any:  # noqa: ANN401
    """Return the base class of the Trainer's callbacks."""
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise ImportError(
            "a callback for Hugging Face's Trainer needs its package: pip install transformers"
        ) from error


class MonitorCallback(_callback()):  # type: ignore[misc]
    """Watches every step of the optimizer, of the first process; observations also go to the Trainer's log history.

    Args:
        monitor: that watches.
        select: from the trained model to the module that maps inputs to logits; None: itself.
    """

    def __init__(self, monitor: BoundaryMonitor, select: Select | None = None) -> None:
        """Watch nothing yet."""
        self.monitor, self.select = monitor, select

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Go on from the checkpoint's step; later observations are dropped."""
        if state.is_world_process_zero:
            self.monitor.resume(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Begin a step."""
        if state.is_world_process_zero:
            model = kwargs["model"]
            model = model if self.select is None else self.select(model)
            self.monitor.before(model, state.global_step + 1, state.epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """End it."""
        if not state.is_world_process_zero:
            return
        observation = self.monitor.after()
        if observation is not None:
            values = {f"boundary_{name}": value for name, value in observation.numbers().items()}
            state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})
