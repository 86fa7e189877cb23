"""The training loop: burn-in, then the method; validation and a checkpoint after every epoch."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dyart.data import draws
from dyart.data.loader import Batch, Loader
from dyart.data.ranks import align
from dyart.data.sets import DataSet
from dyart.engine import state
from dyart.engine.averaging import WeightAverage
from dyart.engine.callbacks import Callback
from dyart.engine.checkpoint import epoch_name
from dyart.engine.fabric import Fabric, possible_precision
from dyart.engine.metrics import Meter, MetricsFile, Record
from dyart.engine.numbers import Guard, NotFiniteError
from dyart.engine.optimizer import make_optimizer
from dyart.engine.phases import Phase, Position, phases_of
from dyart.engine.reduction import Reduction
from dyart.engine.saver import Saver
from dyart.engine.schedules import rates
from dyart.engine.seeds import seeding
from dyart.engine.signals import on_signals
from dyart.engine.steps import Stepper
from dyart.engine.tensors import TensorPlaces
from dyart.engine.validation import Judge, Validation, tracked_rows
from dyart.engine.views import Views, compiled
from dyart.methods.base import Method
from dyart.recipes import Config, dump

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
        view, tracked = compiled(self.average.model, compile), tracked_rows(config, data, loader.indices.numpy())
        judge = Judge(fabric, view, config, compile)
        self.validation = Validation(data, data.holdout, fabric, judge)
        self.tracking = Validation(data, tracked, fabric, judge) if len(tracked) else None
        precision, _ = possible_precision(config.train.precision, fabric.device.type)
        half = method.crafting if precision == "bf16" else None
        self.views = Views(model, compile, half, torch.zeros((2, *data.shape), device=fabric.device))
        self.places = TensorPlaces(model)
        self.position, self.best, self.best_epoch = Position(), (-1.0, -1.0), -1
        self.means, self.window = Meter(), Meter()
        self.epoch_began, self.seconds_before = time.monotonic(), 0.0  # this epoch's, in this process and before it
        # On a GPU to look at every step's loss would be to wait for it.
        waits = fabric.device.type != "cpu"
        self.guard = Guard(model, fabric.device, config.train.skip_bad_batches, waits)
        self.saver, self.save_seconds = Saver(), 0.0
        self.stop_reason = ""
        self.taken = 0
        """Steps that this process has taken, of a resumed run since then."""
        # What a network draws by itself, such as dropout's masks, must differ from process to process.
        self.apart = [fabric.global_rank] if fabric.global_rank else []
        self.index: dict[str, str] = {}
        self.history: list[Record] = []
        self.metrics: MetricsFile | None = None
        self.lines = 0
        method.prepare(loader.examples, fabric.device)
        self.begin(self.phases[0])

    def __repr__(self) -> str:
        """Return what is trained, how far it is and where it is kept."""
        what = f"{self.config.method['name']} on {self.data.name}, {self.config.model.name}"
        best = f", best {self.best_epoch}" if self.best_epoch > 0 else ""
        where = "" if self.folder is None else f", in {self.folder}"
        return f"<Training of {what}: epoch {self.position.epoch} of {self.epochs}{best}{where}>"

    @property
    def steps_done(self) -> int:
        """Steps of the optimizer since the beginning, burn-in included."""
        return self.position.epoch * len(self.loader) + self.position.step

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train: all epochs are done, or patience is lost."""
        return self.position.epoch >= self.epochs or self._patience_lost()

    @cached_property
    def config_text(self) -> str:
        """The configuration as YAML, for every checkpoint; made once: it takes longer than small weights do."""
        return dump(self.config)

    def run(self) -> "Training":
        """Train to the end and return self. Torch's generators are left as they were.

        Raises:
            TrainingError: a loss that is not finite, a full disk or memory, or a signal to stop; the last good
                checkpoint is kept.
            NetworkError: the network replaces a tensor of its own.
        """
        try:
            self._run()
        except NotFiniteError as error:
            raise TrainingError(self._not_finite(error)) from error
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"out of memory in step {self.steps_done + 1}; {self._last_good()}. Split every batch with "
                f"train.accumulate {self._more_parts()}, which changes nothing but BatchNorm's batches and weights "
                "that are relative to a batch's (GAIRAT, MAIL's normalize, DyART's relative; methods with AWP take "
                "whole batches), or use train.precision bf16"
            ) from error
        except OSError as error:
            place = error.filename or self.folder or "a callback"
            raise TrainingError(
                f"{error.strerror or error} ({place}) at step {self.steps_done}; {self._last_good()}"
            ) from error
        return self

    def resume(self) -> bool:
        """Go on from the last checkpoint of the folder; False: there is none yet, and nothing has changed.

        Raises:
            CheckpointError: it is damaged, or does not fit the configuration.
        """
        return state.restore(self)

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
        self.reduction = Reduction(self.model, self.loader.shard)
        capture = self.compile and self.fabric.device.type == "cuda"
        self.stepper = Stepper(self.fabric, self.views, phase.method, capture, self.config.train.accumulate)
        self.uncompiled = self.compile  # until its first step

    def _run(self) -> None:
        if self.folder is not None:
            self.metrics = MetricsFile(self.folder / "metrics.jsonl", self.lines)
            self.history = [record for record in self.metrics.kept if record["kind"] == "epoch"]
        with ExitStack() as stack:
            seed = stack.enter_context(seeding(self.fabric.device))
            stack.enter_context(on_signals(self._wish_to_stop, self.fabric.is_global_zero))
            if self.loader.shard is not None:
                align(self.model, self.average.model)
            for callback in self.callbacks:
                callback.on_start(self)
                stack.callback(callback.on_end, self)
            stack.enter_context(self.saver)
            while not self.finished:
                self._epoch(seed)

    def _epoch(self, seed: Callable[[int], None]) -> None:
        phase, started = self.phase(self.position.epoch), time.monotonic()
        self.epoch_began = started
        if self.position.step == 0:
            self.means, self.seconds_before = Meter(), 0.0
            if self.position.epoch == phase.first > 0:
                self.begin(phase)
        self.stepper.advance((self.position.epoch - phase.first) / phase.epochs)
        for batch in self.loader.epoch(self.position.epoch, self.position.step):
            seed(draws.key(self.config.seed, "network", self.steps_done, *self.apart))
            self._step(phase, batch)
            if self.uncompiled:
                self._say_compiled(phase, time.monotonic() - started)
            self.saver.look()
            if self.reduction.stops(bool(self.stop_reason)):
                self._stop()
        self.guard.check(weights=True)
        trained = self.epoch_seconds
        self.position = Position(self.position.epoch + 1, 0)
        self._finish_epoch(phase, trained, time.monotonic())
        alone = self.loader.shard is None  # several processes agree on it in a step
        if alone and self.stop_reason and self.position.epoch < self.epochs:
            self._stop()

    @property
    def epoch_seconds(self) -> float:
        """How long the steps of this epoch have taken, also before a resume in the middle of it."""
        return self.seconds_before + time.monotonic() - self.epoch_began

    def _step(self, phase: Phase, batch: Batch) -> None:
        for callback in self.callbacks:
            callback.on_step_begin(self, batch)
        in_phase = self.steps_done - phase.first * len(self.loader)
        total = phase.epochs * len(self.loader)
        now = rates(phase.optim, in_phase, total, len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"], group["momentum"] = now.lr, now.momentum
        self.guard.remember(self._carried(phase), self.optimizer)
        loss, metrics = self.reduction(*self.stepper.gradients(batch), bool(self.stop_reason))
        norm = self.guard.clip(phase.optim.clip or torch.inf)
        self.guard.look(self.steps_done + 1, loss, norm)
        self.optimizer.step()
        self.average.update(AVERAGING_WARMUP * total)
        self.guard.settle(self._carried(phase), self.optimizer)
        self.position.step += 1
        self.taken += 1
        if self.taken == 1:
            self.places.check()
        metrics = metrics | {"loss": loss, "gradient_norm": norm}
        self.means.add(metrics)
        self.window.add(metrics)
        for callback in self.callbacks:
            callback.on_step(self)
        if self.steps_done % self.config.train.log_every == 0:
            self.guard.check()
            where = {"kind": "step", "epoch": self.position.epoch + 1, "step": self.steps_done, "lr": now.lr}
            self._record(where | self.window.means())
            self.window = Meter()

    def _carried(self, phase: Phase) -> Iterable[Tensor]:
        """Return what a step changes besides network and optimizer: what the method keeps, and the average."""
        return chain(phase.method.state_dict().values(), self.average.tensors)

    def _say_compiled(self, phase: Phase, seconds: float) -> None:
        """Say how long the first step took: nearly all of it is the compiler's time, and of a GPU nobody waits here."""
        self.uncompiled = False
        self.fabric.print(
            f"{phase.name}: compiled in {seconds:.1f} s, kept for the next time by torch (TORCHINDUCTOR_CACHE_DIR)"
        )

    def _record(self, record: Record) -> None:
        if record["kind"] == "epoch":
            self.history.append(record)
        if self.metrics is not None:
            self.metrics.write(record)
        for callback in self.callbacks:
            callback.on_record(self, record)

    def _finish_epoch(self, phase: Phase, train_seconds: float, started: float) -> None:
        self.places.check()
        done = self.position.epoch
        record: Record = {"kind": "epoch", "epoch": done, "phase": phase.name, "step": self.steps_done}
        record |= self.means.means()
        last = done in (phase.first + phase.epochs, self.epochs) or self._patience_lost()
        better = False
        measuring = last or done % self.config.eval.every == 0
        if measuring and self.tracking is not None:
            record |= {f"train_{name}": value for name, value in self.tracking().items()}
        if measuring and len(self.data.holdout):
            measured = self.validation()
            record |= {f"val_{name}": value for name, value in measured.items()}
            rank = self._rank(phase.method, measured["clean"], measured["robust"])
            better = phase.name == "train" and rank > self.best
            if better:
                self.best, self.best_epoch = rank, done
        record |= {"best": better, "train_seconds": train_seconds, "validation_seconds": time.monotonic() - started}
        self._save(None)
        # What the training waited for checkpoints since the line before: this epoch's own is written when its line is.
        record["checkpoint_seconds"], self.save_seconds = self.save_seconds, 0.0
        if self.guard.skip:
            record["skipped_steps"] = int(self.guard.skipped)
        self._record(record)
        if self.folder is not None and (better or last or done % self.config.train.checkpoint_every == 0):
            self._save(epoch_name(done), better, record)

    def _rank(self, method: Method[Any], clean: float, robust: float) -> tuple[float, float]:
        return method.rank(clean, robust) if self.config.eval.select == "method" else ((clean + robust) / 2, robust)

    def _patience_lost(self) -> bool:
        patience = self.config.train.early_stop
        return patience is not None and self.best_epoch >= 0 and self.position.epoch - self.best_epoch >= patience

    def _wish_to_stop(self, reason: str) -> None:
        self.stop_reason = reason

    def _stop(self) -> None:
        self.guard.check(weights=True)
        if self.folder is not None:
            self._save(f"step-{self.steps_done:08d}")
            self.saver.wait()
        self.fabric.barrier()  # nobody leaves before it is saved
        reason = self.stop_reason or "stopped by a signal to another process"
        raise TrainingError(f"{reason} after step {self.steps_done}; {self._last_good()}")

    def _save(self, name: str | None, best: bool = False, record: Record | None = None) -> None:
        """Begin to write a checkpoint; without a name, see that the one before is written."""
        started = time.monotonic()
        if name is None:
            self.saver.wait()
        else:
            state.save(self, name, best, record)
        self.save_seconds += time.monotonic() - started

    def _more_parts(self) -> int:
        """Return into how many parts a batch can be split next."""
        size, parts = self.config.train.batch_size, self.config.train.accumulate
        return next((more for more in range(2 * parts, size) if size % more == 0), size)

    def _not_finite(self, error: NotFiniteError) -> str:
        step = error.step if error.step >= 0 else self.steps_done
        epoch, place = divmod(step - 1, len(self.loader))
        batch = next(iter(self.loader.epoch(epoch, place)))
        rows = (~batch.inputs.isfinite()).flatten(1).any(dim=1)
        broken = f", the inputs of examples {batch.index[rows].tolist()}" if bool(rows.any()) else ""
        skipping = "" if self.guard.skip else ". train.skip_bad_batches true leaves single bad batches out"
        return (
            f"step {step} (epoch {epoch + 1}) is not finite: {error}{broken}; {self._last_good()}. Usual causes: a "
            "learning rate that is too high (halve optim.lr), no clipping (set optim.clip 1.0), images that are not "
            f"finite{skipping}"
        )

    def _last_good(self) -> str:
        if self.folder is None or not self.index:
            return "no checkpoint was written yet"
        last = self.folder / "checkpoints" / self.index["last"]
        return f"the last good checkpoint is {last}, --resume goes on from there"
