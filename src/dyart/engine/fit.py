"""The training loop: burn-in, then the method; validation and a checkpoint after every epoch."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dyart.data import draws
from dyart.data.loader import Batch, Loader
from dyart.data.sets import DataSet
from dyart.engine import state
from dyart.engine.averaging import WeightAverage
from dyart.engine.callbacks import Callback
from dyart.engine.fabric import Fabric
from dyart.engine.metrics import Meter, MetricsFile, Record
from dyart.engine.optimizer import make_optimizer
from dyart.engine.phases import Phase, Position, phases_of
from dyart.engine.schedules import rates
from dyart.engine.seeds import seeding
from dyart.engine.signals import on_signals
from dyart.engine.steps import Stepper
from dyart.engine.validation import Validation
from dyart.engine.views import Views
from dyart.methods.base import Method
from dyart.recipes.config import Config

# Share of a phase in which the average follows the weights.
AVERAGING_WARMUP = 0.025


class TrainingError(RuntimeError):
    """The training ended before its time; the message says why, and what was kept."""


class Training:
    """A training in progress. ``run`` runs it; callbacks may read its parts.

    Args:
        config: everything resolved.
        data: the set; the hold-out is validated on and never trained on.
        model: the network, on the device.
        method: what is trained on after the burn-in.
        fabric: device and precision.
        loader: the batches that are trained on.
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
        self.phases = phases_of(config, method)
        self.epochs = sum(phase.epochs for phase in self.phases)
        self.average = WeightAverage(model, config.optim.average, config.optim.averaging)
        self.validation = Validation(data, fabric, self.average.model, config, compile)
        self.views = Views(model, compile)
        self.position, self.best, self.best_epoch = Position(), (-1.0, -1.0), -1
        self.means, self.window = Meter(), Meter()
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=fabric.device)
        # On a GPU to look at every step's loss would be to wait for it.
        self.waits = fabric.device.type != "cpu"
        self.stop_reason = ""
        self.index: dict[str, str] = {}
        self.history: list[Record] = []
        self.metrics: MetricsFile | None = None
        self.lines = 0
        method.prepare(loader.examples, fabric.device)
        self.begin(self.phases[0])

    @property
    def steps_done(self) -> int:
        """Steps of the optimizer since the beginning, burn-in included."""
        return self.position.epoch * len(self.loader) + self.position.step

    def run(self) -> "Training":
        """Train to the end and return self. Torch's generators are left as they were.

        Raises:
            TrainingError: a loss that is not finite, a full disk, or a signal to stop; the last good checkpoint is
                kept.
        """
        try:
            self._run()
        except OSError as error:
            place = error.filename or self.folder or "a callback"
            raise TrainingError(
                f"{error.strerror or error} ({place}) at step {self.steps_done}; {self._kept()}"
            ) from error
        return self

    def resume(self) -> bool:
        """Go on from the last checkpoint of the folder; False: there is none yet, and nothing has changed.

        Raises:
            CheckpointError: it is damaged, or does not fit the configuration.
        """
        return state.restore(self)

    def begin_from(self, weights: Mapping[str, Tensor]) -> "Training":
        """Begin with these weights instead of random ones, e.g. those of a burn-in, and return self.

        Raises:
            TrainingError: they belong to another network.
        """
        own = self.model.state_dict()
        for name in {**own, **weights}:
            if (here := _shape(own, name)) != (there := _shape(weights, name)):
                raise TrainingError(
                    f"the weights to begin with are of another network: {name} is {there} there, {here} here"
                )
        self.model.load_state_dict(dict(weights))
        self.average.restart()
        return self

    def phase(self, epoch: int) -> Phase:
        """Return the phase of an epoch."""
        return next(phase for phase in reversed(self.phases) if epoch >= phase.first)

    def begin(self, phase: Phase) -> None:
        """Start a phase with a new optimizer and, after a burn-in, from its averaged weights."""
        if phase.first > 0:
            self.model.load_state_dict(self.average.model.state_dict())
            self.average.restart()
        self.optimizer = make_optimizer(self.model, phase.optim)
        self.window = Meter()
        capture = self.compile and self.fabric.device.type == "cuda"
        self.stepper = Stepper(self.fabric, self.views, phase.method, capture, self.config.train.accumulate)

    def _run(self) -> None:
        if self.folder is not None:
            self.metrics = MetricsFile(self.folder / "metrics.jsonl", self.lines)
            self.history = [record for record in self.metrics.kept if record["kind"] == "epoch"]
        with ExitStack() as stack:
            seed = stack.enter_context(seeding(self.fabric.device))
            stack.enter_context(on_signals(self._wish_to_stop))
            for callback in self.callbacks:
                callback.on_start(self)
                stack.callback(callback.on_end, self)
            while self.position.epoch < self.epochs and not self._patience_lost():
                self._epoch(seed)

    def _epoch(self, seed: Callable[[int], None]) -> None:
        phase, started = self.phase(self.position.epoch), time.monotonic()
        if self.position.step == 0:
            self.means = Meter()
            if self.position.epoch == phase.first > 0:
                self.begin(phase)
        self.stepper.advance((self.position.epoch - phase.first) / phase.epochs)
        for batch in self.loader.epoch(self.position.epoch, self.position.step):
            seed(draws.key(self.config.seed, "network", self.steps_done))
            self._step(phase, batch)
            if self.stop_reason:
                self._stop()
        self._check_finite()
        trained = time.monotonic() - started
        self.position = Position(self.position.epoch + 1, 0)
        self._finish_epoch(phase, trained, time.monotonic())

    def _step(self, phase: Phase, batch: Batch) -> None:
        for callback in self.callbacks:
            callback.on_step_begin(self, batch)
        in_phase = self.steps_done - phase.first * len(self.loader)
        total = phase.epochs * len(self.loader)
        now = rates(phase.optim, in_phase, total, len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"], group["momentum"] = now.lr, now.momentum
        self.optimizer.zero_grad(set_to_none=True)
        loss, metrics = self.stepper.gradients(batch)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), phase.optim.clip or torch.inf)
        self.optimizer.step()
        phase.method.restore(self.model)
        self.average.update(AVERAGING_WARMUP * total)
        self.position.step += 1
        self._note(metrics | {"loss": loss, "gradient_norm": norm})
        for callback in self.callbacks:
            callback.on_step(self)
        if self.steps_done % self.config.train.log_every == 0:
            self._check_finite()
            where = {"kind": "step", "epoch": self.position.epoch + 1, "step": self.steps_done, "lr": now.lr}
            self._record(where | self.window.means())
            self.window = Meter()

    def _note(self, metrics: dict[str, Tensor]) -> None:
        bad = ~metrics["loss"].isfinite() | ~metrics["gradient_norm"].isfinite()
        self.bad_step = torch.where(bad & (self.bad_step < 0), self.steps_done, self.bad_step)
        self.means.add(metrics)
        self.window.add(metrics)
        if not self.waits:
            self._check_finite()

    def _record(self, record: Record) -> None:
        if record["kind"] == "epoch":
            self.history.append(record)
        if self.metrics is not None:
            self.metrics.write(record)
        for callback in self.callbacks:
            callback.on_record(self, record)

    def _finish_epoch(self, phase: Phase, train_seconds: float, started: float) -> None:
        done = self.position.epoch
        record: Record = {"kind": "epoch", "epoch": done, "phase": phase.name, "step": self.steps_done}
        record |= self.means.means()
        last = done in (phase.first + phase.epochs, self.epochs) or self._patience_lost()
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
            state.save(self, f"epoch-{done:04d}", better, record)

    def _patience_lost(self) -> bool:
        patience = self.config.train.early_stop
        return patience is not None and self.best_epoch >= 0 and self.position.epoch - self.best_epoch >= patience

    def _wish_to_stop(self, reason: str) -> None:
        self.stop_reason = reason

    def _stop(self) -> None:
        self._check_finite()
        if self.folder is not None:
            state.save(self, f"step-{self.steps_done:08d}", best=False)
        raise TrainingError(f"{self.stop_reason} after step {self.steps_done}; {self._kept()}")

    def _check_finite(self) -> None:
        step = int(self.bad_step)
        if step >= 0:
            raise TrainingError(
                f"loss or gradient of step {step} (epoch {(step - 1) // len(self.loader) + 1}) is not finite; "
                f"{self._kept()}. Usual causes: a learning rate that is too high (halve optim.lr), no clipping (set "
                "optim.clip 1.0), images that are not finite"
            )

    def _kept(self) -> str:
        if self.folder is None or not self.index:
            return "no checkpoint was written yet"
        last = self.folder / "checkpoints" / self.index["last"]
        return f"the last good checkpoint is {last}, --resume goes on from there"


def _shape(weights: Mapping[str, Tensor], name: str) -> str:
    return "x".join(str(size) for size in weights[name].shape) or "a number" if name in weights else "missing"
