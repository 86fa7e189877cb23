"""What a person sees of a training: a progress bar with the time left, and one line per epoch."""

import time
from typing import TYPE_CHECKING

from dyart.engine.callbacks import Callback
from dyart.engine.metrics import Record

if TYPE_CHECKING:
    from rich.console import Console

    from dyart.engine.fit import Training

# Clean and robust accuracy on training images, of a training that is measured on them.
TRACKED = "on training"
COLUMNS = {"epoch": 7, "phase": 8, "loss": 9, "clean": 7, "robust": 7, TRACKED: 11, "used": 6, "margin": 8, "s": 6}


class Display(Callback):
    """A table that grows by a line per epoch and, on a terminal, a progress bar below it.

    The table is what a training has to say: it goes to standard output, into a file if that is one. The bar is for
    somebody who waits: it is drawn where a terminal is, and never in the file.

    Args:
        title: above the table.
        console: of rich, for both; None: standard output, and standard error for the bar if that alone is a terminal.
    """

    def __init__(self, title: str = "", console: "Console | None" = None) -> None:
        """Draw nothing yet."""
        from rich.console import Console

        self.title, self.console = title, console or Console(highlight=False)
        aside = console is None and not self.console.is_terminal
        self.bar = Console(stderr=True, highlight=False) if aside else self.console

    def on_start(self, training: "Training") -> None:
        """Print what will be done, and begin the bar."""
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        config = training.config
        # A network of somebody's own has what layers it has.
        norms = "" if ":" in config.model.name else f" ({config.model.normalization} norm)"
        epochs = " + ".join(str(phase.epochs) for phase in training.phases)
        self.console.print(
            f"[bold]{escape(self.title or config.recipe or 'training')}[/]: {config.method['name']} on "
            f"{escape(training.data.name)}, {config.model.name}{norms}, "
            f"{epochs} epochs of {len(training.loader)} steps, {_where(training)}"
            + (f", from step {training.steps_done}" if training.steps_done else ""),
            soft_wrap=True,
        )
        for note in (*training.data.notes, *_shares(training)):
            self.console.print(f"note: {escape(note)}", style="dim", soft_wrap=True)
        self.columns = {name: COLUMNS[name] for name in COLUMNS if name != TRACKED or training.tracking is not None}
        self.console.print(" ".join(f"{name:>{width}}" for name, width in self.columns.items()), style="dim")
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.bar,
            transient=True,
            disable=not self.bar.is_terminal,
        )
        total = training.epochs * len(training.loader)
        self.task = self.progress.add_task("training", total=total, completed=training.steps_done)
        self.progress.start()
        self.shown = time.monotonic()

    def on_step(self, training: "Training") -> None:
        """Move the bar, ten times a second at most."""
        if time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            self.progress.update(self.task, completed=training.steps_done)

    def on_record(self, training: "Training", record: Record) -> None:
        """Print an epoch's line."""
        if record["kind"] != "epoch":
            return
        self.progress.update(self.task, completed=training.steps_done)
        values = {
            "epoch": f"{record['epoch']}/{training.epochs}",
            "phase": record["phase"],
            "loss": _number(record.get("loss"), 3),
            "clean": _percent(record.get("val_clean")),
            "robust": _percent(record.get("val_robust")),
            TRACKED: " / ".join(_percent(record[name]) for name in ("train_clean", "train_robust") if name in record),
            "used": _percent(record.get("used")),
            "margin": _number(record.get("margin_q50"), 4),
            "s": f"{record['train_seconds'] + record['validation_seconds']:.1f}",
        }
        cells = " ".join(f"{values[name]:>{width}}" for name, width in self.columns.items())
        self.console.print(cells + (" *" if record["best"] else ""))

    def on_end(self, training: "Training") -> None:
        """Take the bar away and say where the results are."""
        self.progress.stop()
        if training.folder is not None and training.index.get("best"):
            place = training.folder / "checkpoints" / training.index["best"]
            epoch = place.name.removeprefix("epoch-").lstrip("0")  # a better one may have come, and not been saved
            words = f"best by validation: epoch {epoch} (*), {place}{_as_good(training, int(epoch))}"
            self.console.print(words, style="dim", markup=False, soft_wrap=True)


def _as_good(training: "Training", best: int) -> str:
    """Return a note on later epochs that the validation cannot tell from the best one; "" where there are none."""
    figures = {
        record["epoch"]: (record["val_clean"], record["val_robust"])
        for record in training.history
        if "val_clean" in record
    }
    later = [epoch for epoch, figure in figures.items() if epoch > best and figure == figures.get(best)]
    if not later:
        return ""
    number = "one later epoch is" if len(later) == 1 else f"{len(later)} later epochs are"
    return f"; {number} as good by it, up to {later[-1]}: another eval.radius would tell them apart"


def _where(training: "Training") -> str:
    fabric = training.fabric
    return str(fabric.device) if fabric.world_size == 1 else f"{fabric.world_size} processes ({fabric.device.type})"


def _shares(training: "Training") -> list[str]:
    """Return what is not as in one process, in words."""
    from torch import nn

    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    own = any(isinstance(module, kinds) for module in training.model.modules())  # SyncBatchNorm is none of them
    if training.fabric.world_size == 1 or not own:
        return []
    return [
        "BatchNorm takes its statistics from every process's own share of a batch, unlike in one process "
        "(on GPUs, train.sync_batchnorm takes those of the whole batch)"
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
