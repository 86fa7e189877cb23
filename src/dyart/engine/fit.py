"""The training loop: burn-in, then the method; validation and a checkpoint after every epoch."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dyart.data.loader import Loader
from dyart.data.sets import DataSet
from dyart.engine import checkpoint as store
from dyart.engine.averaging import WeightAverage
from dyart.engine.callbacks import Callback
from dyart.engine.fabric import Fabric
from dyart.engine.metrics import Meter, MetricsFile, Record, read_metrics
from dyart.engine.optimizer import make_optimizer
from dyart.engine.schedules import rates
from dyart.engine.steps import Stepper
from dyart.engine.validation import Validation
from dyart.engine.views import Views
from dyart.methods.base import Method
from dyart.methods.natural import Natural
from dyart.recipes.config import Config, Optim

# Share of a phase in which the average follows the weights.
AVERAGING_WARMUP = 0.025


class TrainingError(RuntimeError):
    """The training ended before its time; the message says why, and what was kept."""


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs with one method and one schedule."""

    name: str
    method: Method[Any]
    optim: Optim
    first: int
    epochs: int


@dataclass
class Position:
    """Where a training is: the next step to take."""

    epoch: int = 0
    step: int = 0
    """In the epoch."""


class Training:
    """A training in progress. ``run`` runs it; callbacks may read its parts.

    Args:
        config: everything resolved.
        data: the set; the hold-out is validated on and never trained on.
        model: the network, on the device.
        method: what is trained on after the burn-in.
        fabric: device and precision.
        folder: of the run; None: nothing is written.
        callbacks: listeners.
        compile: compile the network and capture the crafting.
    """

    def __init__(
        self,
        config: Config,
        data: DataSet,
        model: nn.Module,
        method: Method[Any],
        fabric: Fabric,
        loader: Loader,
        folder: Path | None = None,
        callbacks: Sequence[Callback] = (),
        compile: bool = False,
    ) -> None:
        """Get ready; nothing is trained yet."""
        self.config, self.data, self.model, self.method, self.fabric = config, data, model, method, fabric
        self.loader, self.folder, self.callbacks, self.compile = loader, folder, list(callbacks), compile
        optim, burn_in = config.optim, config.train.burn_in
        natural = replace(optim, schedule="constant", lr=optim.burn_in_lr or optim.lr, clip=optim.burn_in_clip)
        self.phases = [Phase("train", method, optim, burn_in, config.train.epochs)]
        if burn_in:
            self.phases.insert(0, Phase("burn-in", Natural(), natural, 0, burn_in))
        self.epochs = burn_in + config.train.epochs
        self.average = WeightAverage(model, optim.average, optim.averaging)
        self.validation = Validation(data, fabric, self.average.model, config, compile)
        self.views = Views(model, compile)
        self.position, self.best, self.best_epoch = Position(), (-1.0, -1.0), -1
        self.means, self.window = Meter(), Meter()
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=fabric.device)
        self.stop_reason = ""
        self.index: dict[str, str] = {}
        self.history: list[Record] = []
        self.metrics: MetricsFile | None = None
        self._begin(self.phases[0])

    @property
    def steps_done(self) -> int:
        """Steps of the optimizer since the beginning, burn-in included."""
        return self.position.epoch * len(self.loader) + self.position.step

    def run(self) -> "Training":
        """Train to the end and return self.

        Raises:
            TrainingError: a loss that is not finite, or a signal to stop; the last good checkpoint is kept.
        """
        if self.folder is not None:
            path = self.folder / "metrics.jsonl"
            self.metrics = MetricsFile(path, self.steps_done or None)
            self.history = [record for record in read_metrics(path) if record["kind"] == "epoch"]
        self._tell("on_start")
        try:
            with _signals(self):
                while self.position.epoch < self.epochs and not self._patience_lost():
                    self._epoch()
        finally:
            self._tell("on_end")
        return self

    def begin_from(self, weights: Mapping[str, Tensor]) -> "Training":
        """Begin with these weights instead of random ones, e.g. those of a burn-in, and return self.

        Raises:
            TrainingError: they belong to another network.
        """
        try:
            self.model.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise TrainingError(f"the weights to begin with do not fit the network: {error}") from error
        self.average.restart()
        return self

    def phase(self, epoch: int) -> Phase:
        """Return the phase of an epoch."""
        return next(phase for phase in reversed(self.phases) if epoch >= phase.first)

    def _begin(self, phase: Phase) -> None:
        """Start a phase with a new optimizer and, after a burn-in, from its averaged weights."""
        if phase.first > 0:
            self.model.load_state_dict(self.average.model.state_dict())
            self.average.restart()
        self.optimizer = make_optimizer(self.model, phase.optim)
        self.window = Meter()
        capture = self.compile and self.fabric.device.type == "cuda"
        self.stepper = Stepper(self.fabric, self.views, phase.method, capture, self.config.train.accumulate)

    def _epoch(self) -> None:
        phase, started = self.phase(self.position.epoch), time.monotonic()
        if self.position.epoch == phase.first > 0 and self.position.step == 0:
            self._begin(phase)
        if self.position.step == 0:
            self.means = Meter()
        for batch in self.loader.epoch(self.position.epoch, self.position.step):
            self._step(phase, batch)
            if self.stop_reason:
                self._save(best=False, name=f"step-{self.steps_done:08d}")
                raise TrainingError(f"{self.stop_reason}: saved at step {self.steps_done}; --resume goes on from there")
        self._check_finite()
        trained = time.monotonic() - started
        self.position = Position(self.position.epoch + 1, 0)
        self._finish_epoch(phase, trained, time.monotonic())

    def _step(self, phase: Phase, batch: Any) -> None:  # noqa: ANN401
        in_phase = self.steps_done - phase.first * len(self.loader)
        total = phase.epochs * len(self.loader)
        now = rates(phase.optim, in_phase, total, len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"], group["momentum"] = now.lr, now.momentum
        self.optimizer.zero_grad(set_to_none=True)
        loss, metrics = self.stepper.gradients(batch)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), phase.optim.clip or torch.inf)
        self.optimizer.step()
        self.average.update(AVERAGING_WARMUP * total)
        self.position.step += 1
        self._note(metrics | {"loss": loss, "gradient_norm": norm})
        self._tell("on_step")
        if self.steps_done % self.config.train.log_every == 0:
            self._check_finite()
            self._record({"kind": "step", "epoch": self.position.epoch, "step": self.steps_done, "lr": now.lr})

    def _note(self, metrics: dict[str, Tensor]) -> None:
        bad = ~metrics["loss"].isfinite() | ~metrics["gradient_norm"].isfinite()
        self.bad_step = torch.where(bad & (self.bad_step < 0), self.steps_done, self.bad_step)
        self.means.add(metrics)
        self.window.add(metrics)
        if self.fabric.device.type == "cpu":
            self._check_finite()

    def _record(self, record: Record) -> None:
        if record["kind"] == "step":
            record |= self.window.means()
            self.window = Meter()
        else:
            self.history.append(record)
        if self.metrics is not None:
            self.metrics.write(record)
        self._tell("on_record", record)

    def _check_finite(self) -> None:
        step = int(self.bad_step)
        if step < 0:
            return
        kept = f"the last good checkpoint is {self.index['last']}" if self.index else "no checkpoint was written yet"
        raise TrainingError(
            f"loss or gradient of step {step} (epoch {(step - 1) // len(self.loader)}) is not finite; {kept}. Usual "
            "causes: a learning rate that is too high (halve optim.lr), no clipping (set optim.clip 1.0), images that "
            "are not finite"
        )

    def _finish_epoch(self, phase: Phase, train_seconds: float, started: float) -> None:
        done = self.position.epoch
        record: Record = {"kind": "epoch", "epoch": done, "phase": phase.name, "step": self.steps_done}
        record |= self.means.means()
        last = done in (phase.first + phase.epochs, self.epochs)
        better = False
        if last or done % self.config.eval.every == 0:
            measured = self.validation()
            record |= {f"val_{name}": value for name, value in measured.items()}
            rank = phase.method.rank(measured["clean"], measured["robust"])
            better = phase.name == "train" and rank > self.best
            if better:
                self.best, self.best_epoch = rank, done
        record |= {"best": better, "train_seconds": train_seconds, "validation_seconds": time.monotonic() - started}
        self._record(record)
        if self.folder is not None and (better or last or done % self.config.train.checkpoint_every == 0):
            self._save(better, f"epoch-{done:04d}", record)

    def _save(self, best: bool, name: str, record: Record | None = None) -> None:
        if self.folder is None:
            return
        state = {
            "epoch": self.position.epoch,
            "step": self.position.step,
            "best": list(self.best),
            "best_epoch": self.best_epoch,
            "updates": self.average.updates,
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "means": self.means.state_dict(),
            "window": self.window.state_dict(),
        }
        weights = {"model": self.model.state_dict(), "averaged": self.average.model.state_dict()}
        facts = {"epoch": self.position.epoch, "step": self.steps_done, "record": record}
        folder = self.folder / "checkpoints"
        store.save(folder, name, weights, state, facts)
        self.index = {**self.index, "last": name} | ({"best": name} if best else {})
        store.write_index(folder, self.index, self.config.train.keep)

    def resume(self) -> "Training":
        """Go on from the last checkpoint of the folder, and return self.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        assert self.folder is not None
        folder = self.folder / "checkpoints"
        self.index = store.read_index(folder)
        if not self.index:
            raise store.CheckpointError(f"{folder} has no checkpoint to resume from: train without --resume")
        last = folder / self.index["last"]
        store.read_facts(last)
        state = store.read_state(last)
        self.position = Position(state["epoch"], state["step"])
        finished = self.position.epoch >= self.epochs
        phase = self.phase(self.position.epoch - 1 if finished else self.position.epoch)
        fresh = self.position.epoch == phase.first and self.position.step == 0
        if phase is not self.phases[0] and not fresh:
            self._begin(phase)
        self.model.load_state_dict(store.read_weights(last, "model"))
        self.average.model.load_state_dict(store.read_weights(last, "averaged"))
        self.average.updates = state["updates"]
        if not fresh:
            self.optimizer.load_state_dict(state["optimizer"])
        self.method.load_state_dict(state["method"])
        self.means.load_state_dict(state["means"], self.fabric.device)
        self.window.load_state_dict(state["window"], self.fabric.device)
        self.best, self.best_epoch = (state["best"][0], state["best"][1]), state["best_epoch"]
        return self

    def _patience_lost(self) -> bool:
        patience = self.config.train.early_stop
        return patience is not None and self.best_epoch >= 0 and self.position.epoch - self.best_epoch >= patience

    def _tell(self, moment: str, *details: Any) -> None:  # noqa: ANN401
        for callback in self.callbacks:
            getattr(callback, moment)(self, *details)


@contextmanager
def _signals(training: Training) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into a stop after the current step; a second one stops at once."""

    def stop(number: int, _: object) -> None:
        training.stop_reason = f"stopped by {signal.Signals(number).name}"
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
