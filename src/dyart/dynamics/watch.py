"""The monitor in a training of the engine: what ``monitor.every`` of a configuration switches on."""

from typing import TYPE_CHECKING

from dyart.data.loader import Batch, as_tensors
from dyart.dynamics.monitor import BoundaryMonitor
from dyart.engine.callbacks import Callback

if TYPE_CHECKING:
    from dyart.engine.fit import Training

FILE = "monitor.jsonl"


class Watch(Callback):
    """Watches a training as ``monitor.*`` of its configuration says; does nothing where ``monitor.every`` is None."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.monitor: BoundaryMonitor | None = None

    def on_start(self, training: "Training") -> None:
        """Make the monitor. Of a resumed run, what was observed after the checkpoint is observed again."""
        self.monitor = make_monitor(training)
        if self.monitor is not None:
            self.monitor.resume(training.steps_done)
            steps = sum(phase.epochs for phase in training.phases) * len(training.loader)
            if self.monitor.every > steps:
                training.fabric.print(f"monitor.every {self.monitor.every}: nothing is observed in {steps} steps")

    def on_step_begin(self, training: "Training", batch: Batch) -> None:
        """Remember the weights, if this step is observed."""
        if self.monitor is not None:
            settings = training.config.monitor
            own = (batch.inputs[: settings.examples], batch.labels[: settings.examples])
            probe = own if settings.probe == "batch" else None
            self.monitor.before(training.model, training.steps_done + 1, training.position.epoch + 1, probe)

    def on_step(self, training: "Training") -> None:
        """Observe."""
        if self.monitor is not None:
            self.monitor.after()


def make_monitor(training: "Training") -> BoundaryMonitor | None:
    """Return the monitor that a training's configuration asks for, or None."""
    config, data = training.config, training.data
    settings = config.monitor
    if settings.every is None:
        return None
    rows = data.holdout if settings.probe == "holdout" else training.loader.indices.numpy()
    rows = rows[: settings.examples]
    inputs, labels = as_tensors(data.train, rows, training.fabric.device)
    return BoundaryMonitor(
        inputs,
        labels,
        every=settings.every,
        radius=config.eval.radius if settings.radius is None else settings.radius,
        norm=config.eval.norm,
        steps=settings.steps,
        path=None if training.folder is None else training.folder / FILE,
        index=rows.tolist(),
        record=training.compile,
    )
