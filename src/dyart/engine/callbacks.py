"""What can listen to a training: displays, loggers, and whatever a higher layer or a user adds."""

from typing import TYPE_CHECKING

from dyart.data.loader import Batch
from dyart.engine.metrics import Record

if TYPE_CHECKING:
    from dyart.engine.fit import Training


class Callback:
    """Called at the moments of a training. Every method does nothing here; override what is needed."""

    def on_start(self, training: "Training") -> None:
        """Before the first step, also of a resumed run."""

    def on_step_begin(self, training: "Training", batch: Batch) -> None:
        """Before every step, with its batch: weights and buffers are those that it begins with."""

    def on_step(self, training: "Training") -> None:
        """After every step of the optimizer. A host synchronisation here slows the training down."""

    def on_record(self, training: "Training", record: Record) -> None:
        """After a line was written to ``metrics.jsonl``; ``record["kind"]`` is ``"step"`` or ``"epoch"``."""

    def on_end(self, training: "Training") -> None:
        """After the last epoch, or when the training stops early or by an error."""
