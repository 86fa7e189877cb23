"""Watches the decision boundary through a whole training, anybody's (the paper's appendix, "Further analysis")."""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dyart.attacks.radii import check_unit
from dyart.attacks.radius import Radius
from dyart.boundary import validation
from dyart.boundary.margins import BOUNDARIES, Boundary
from dyart.boundary.model import evaluation_mode, ieee_float32, ordinary, unchanged, underlying
from dyart.boundary.norms import NORMS, Norm
from dyart.boundary.validation import Bounds
from dyart.dynamics.movement import Search, Weights, movement, weights_of
from dyart.dynamics.observation import Observation, from_record, summarise
from dyart.dynamics.recorded import RecordedSearches
from dyart.engine.files import write_whole
from dyart.engine.metrics import MetricsFile, Record, read_metrics

Select = Callable[[nn.Module], nn.Module]


class _Begun(NamedTuple):
    """A step that is being taken."""

    module: nn.Module
    step: int
    epoch: float | None
    weights: Weights | None
    """Before the step; None: it is not observed."""
    probe: tuple[Tensor, Tensor] | None
    """Examples of its own; None: the monitor's."""


class BoundaryMonitor:
    """Observes every so many steps whether a training moves the boundary away from the examples that need it.

    A step is what happens to the weights between ``before`` and ``after``: with momentum, decay, clipping, perturbed
    weights (AWP) and BatchNorm's statistics in it. For a fixed set of examples (the probe) an observation has their
    margins with the weights before the step, the speed of the boundary under it, and how far the boundary did move.

        monitor = dyart.BoundaryMonitor(images, labels, every=50, radius=8 / 255)
        for batch in loader:
            with monitor.watching(model):
                train_step(model, batch)        # forward, backward, optimizer.step()
        monitor.observations[-1].negative_share

    A fixed probe shows how margins grow: of examples that are trained on, whether the training does what it is meant
    to do; of others, whether that carries over. A single step has hardly seen it, so that nearly half of its speeds
    are negative even where all margins grow in the long run. The paper looks at the batch of the step itself, where
    fewer are: ``watching(model, probe=batch)``.

    The training stays bit for bit what it is without a monitor: modes, gradients, buffers, random generators and the
    storage of weights are as they were after every call. The network runs uncompiled, in eval mode, in plain float32.

    Cost of an observation, in passes over the probe for K classes: 1.5 steps + 2 follow_steps + 6 forward and
    1.5 steps + 2 follow_steps + min(K - 1, 9) + 1 backward passes, and one forward pass with tangents: 42, 46 and 1 by
    default (``"l1"``: one forward pass more). With ``every`` 50, 64 examples and PGD-10 at batch 128 that is 4 % of the
    training's passes (``benchmarks/monitor.py`` measures the time: 4 % on a CPU; on a GPU, where launches count, 17 %
    of a ResNet-18 with ``record``, 35 % without). Between observations: nothing. Memory: a copy of the weights during
    an observed step, two more while it is evaluated.

    Args:
        probe_inputs: ``[N, ...]``, floating point, inside the bounds; a copy follows the model to its device.
        probe_labels: ``[N]``, integers.
        every: steps from one observation to the next; the first is of step number ``every``.
        radius: examples with a margin below it are vulnerable: the radius to be robust at, a number or a text
            such as ``"8/255"``.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        steps: of the search for boundary points.
        follow_steps: of the searches that follow them (see ``dyart.dynamics.movement``). Margins are those after half
            as many further ``steps`` and these: a little smaller than a search of ``steps`` alone finds.
        bounds: of the inputs, ``(low, high)``, numbers or tensors; None: no bounds.
        boundary: ``"exact"`` or ``"soft"``.
        beta: inverse temperature of the soft boundary.
        path: a file to write observations to, one line of JSON each (``monitor.jsonl``); begun anew by the first
            observation, unless ``resume`` was called: an earlier one is kept beside it, as ``monitor.jsonl.before``.
        index: names of the examples, for the file; None: their places.
        batch_size: examples per pass; None: all at once.
        record: on a GPU, record the searches as CUDA graphs and replay them: several times as fast for a network of
            many small layers. The model must keep its weights where they are, as optimizers do, and its forward pass
            must be without host synchronisation; the search for the points uses TF32 where torch allows it.
    """

    def __init__(
        self,
        probe_inputs: Tensor,
        probe_labels: Tensor,
        every: int = 50,
        radius: float | str = 8 / 255,
        norm: Norm = "linf",
        steps: int = 20,
        follow_steps: int = 3,
        bounds: Bounds = (0.0, 1.0),
        boundary: Boundary = "exact",
        beta: float = 5.0,
        path: str | os.PathLike[str] | None = None,
        index: Sequence[int] | Tensor | None = None,
        batch_size: int | None = None,
        record: bool = False,
    ) -> None:
        """Check the probe and the settings; the model is seen at the first observation."""
        if isinstance(probe_inputs, nn.Module):
            raise TypeError(
                "a monitor is made of examples, BoundaryMonitor(images, labels); watching(model) names the model"
            )
        validation.check_inputs(probe_inputs, bounds)
        validation.check_labels(probe_labels, probe_inputs)
        validation.check_choice("norm", norm, NORMS)
        validation.check_choice("boundary", boundary, BOUNDARIES)
        radius = Radius(radius)
        validation.check_positive("radius", radius)
        check_unit("radius", radius, norm, bounds)
        validation.check_positive("beta", beta)
        for name, value, least in (("every", every, 1), ("steps", steps, 2), ("follow_steps", follow_steps, 2)):
            validation.check_count(name, value, least)
        bounds = None if bounds is None else validation.as_pair(bounds)
        names = list(range(len(probe_inputs))) if index is None else [int(name) for name in index]
        if len(names) != len(probe_inputs):
            raise ValueError(f"index names {len(names)} examples, the probe has {len(probe_inputs)}")
        self.inputs, self.labels = ordinary(probe_inputs).clone(), ordinary(probe_labels).long().clone()
        # As Python has them: numpy's numbers are none to JSON.
        self.index, self.every, self.radius = names, int(every), float(radius)
        self.search = Search(norm, boundary, float(beta), bounds, int(steps), int(follow_steps), batch_size)
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.is_dir():
            raise ValueError(f"path={str(path)!r} is a folder: name a file in it, e.g. {self.path / 'monitor.jsonl'}")
        self.observations: list[Observation] = []
        """All so far, oldest first."""
        self.step = 0
        """Steps that were taken."""
        self._begun: _Begun | None = None
        self._file: MetricsFile | None = None
        self._fits = False
        self.record = record
        self._recorded: RecordedSearches | None = None

    @contextmanager
    def watching(
        self, model: nn.Module, epoch: float | None = None, probe: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[None]:
        """Watch one step of the model: everything that moves its weights and buffers belongs inside.

        Args:
            model: that is trained, from inputs to logits; compiled or wrapped for data parallelism, if you like.
            epoch: to be noted, if you like.
            probe: inputs and labels to observe at this step instead of the monitor's, e.g. those of its batch.
        """
        self.before(model, epoch=epoch, probe=probe)
        try:
            yield
        except BaseException:
            self._begun = None
            raise
        self._observe(stacklevel=4)

    def before(
        self,
        model: nn.Module,
        step: int | None = None,
        epoch: float | None = None,
        probe: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Take note that a step begins.

        Args:
            model: that is trained.
            step: the number of the step, from 1 on; None: one more than the last.
            epoch: to be noted.
            probe: inputs and labels to observe at this step instead of the monitor's.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"a monitor watches the weights of an nn.Module, got {type(model).__name__}")
        number, module = self.step + 1 if step is None else step, underlying(model)
        observed = number % self.every == 0
        if observed and probe is not None:
            validation.check_inputs(probe[0], self.search.bounds)
            validation.check_labels(probe[1], probe[0])
            probe = (ordinary(probe[0]).clone(), ordinary(probe[1]).long().clone())
        self._begun = _Begun(module, number, epoch, weights_of(module) if observed else None, probe)

    def after(self) -> Observation | None:
        """Take note that the step is done; return its observation, if it is observed."""
        return self._observe(stacklevel=3)

    def _observe(self, stacklevel: int) -> Observation | None:
        if self._begun is None:
            raise RuntimeError("after() without before(): call before(model) first, or use `with watching(model):`")
        begun, self._begun = self._begun, None
        self.step = begun.step
        if begun.weights is None:
            return None
        inputs, labels = self._meet(begun.module) if begun.probe is None else _met(begun.module, *begun.probe)
        recorded = self._searches(begun.module, inputs, labels)
        if not self.observations and _same(begun.weights, weights_of(begun.module)):
            words = "nothing moved in the step that was watched: is optimizer.step() inside?"
            warnings.warn(words, stacklevel=stacklevel)
        moved = movement(begun.module, begun.weights, inputs, labels, self.search, recorded)
        observation = summarise(moved, self.radius, begun.step, begun.epoch)
        self._write(observation, fixed=begun.probe is None)
        self.observations.append(observation)
        return observation

    def resume(self, step: int) -> None:
        """Go on after step number ``step``, as from a checkpoint: later observations are dropped, here and in the file.

        Where there is a file of an earlier process, its observations up to that step are taken back from it.
        """
        if self.path is not None and self._file is None:
            kept = [record for record in read_metrics(self.path) if record["step"] <= step]
            self.observations = [from_record(record) for record in kept]
            if self.path.is_file():  # without the lines that cannot be read, what is kept is its first ones
                write_whole(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self.observations = [observation for observation in self.observations if observation.step <= step]
        self.step, self._begun = step, None
        if self.path is not None:
            self._file = self._opened(len(self.observations))

    def lightning_callback(self, select: Select | None = None) -> Any:  # noqa: ANN401
        """Return a callback for Lightning's Trainer that watches with this monitor.

        Args:
            select: from the LightningModule to the module that maps inputs to logits; None: itself.
        """
        from dyart.dynamics.lightning import MonitorCallback

        return MonitorCallback(self, select)

    def huggingface_callback(self, select: Select | None = None) -> Any:  # noqa: ANN401
        """Return a callback for Hugging Face's Trainer that watches with this monitor.

        Args:
            select: from the trained model to the module that maps inputs to logits; None: itself.
        """
        from dyart.dynamics.huggingface import MonitorCallback

        return MonitorCallback(self, select)

    def _meet(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the probe on the model's device; once, see that the two fit."""
        self.inputs, self.labels = _met(module, self.inputs, self.labels, check=not self._fits)
        self._fits = True
        return self.inputs, self.labels

    def _searches(self, module: nn.Module, inputs: Tensor, labels: Tensor) -> RecordedSearches | None:
        if not (self.record and inputs.is_cuda and self.search.batch_size is None):
            return None
        known = self._recorded
        if known is None or known.model is not module or known.inputs.shape != inputs.shape:
            self._recorded = known = RecordedSearches(module, self.search, inputs, labels)
        return known

    def _write(self, observation: Observation, fixed: bool) -> None:
        if self.path is None:
            return
        if self._file is None:
            self._keep_earlier()
            self._file = self._opened(0)
        record = observation.record()
        if not self._file.lines:
            record |= {"settings": {"probe": "fixed" if fixed else "of every step", **self._settings()}}
            record |= {"index": self.index} if fixed else {}
        self._file.write(record)

    def _keep_earlier(self) -> None:
        """Move a file of observations, which nobody asked to go on with, out of the way."""
        assert self.path is not None
        if not self.path.is_file() or not read_metrics(self.path):
            return
        before = self.path.with_name(f"{self.path.name}.before")
        self.path.replace(before)
        warnings.warn(f"{self.path} had observations of an earlier training: they are in {before} now", stacklevel=4)

    def _opened(self, lines: int) -> MetricsFile:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return MetricsFile(self.path, lines)

    def _settings(self) -> Record:
        search = self.search
        return {
            "every": self.every,
            "radius": self.radius,
            "norm": search.norm,
            "boundary": search.boundary,
            "beta": search.beta,
            "bounds": _written(search.bounds),
            "steps": search.steps,
            "follow_steps": search.follow_steps,
            "torch": torch.__version__,
        }


def _met(module: nn.Module, inputs: Tensor, labels: Tensor, check: bool = True) -> tuple[Tensor, Tensor]:
    """Return a probe on the model's device; check its labels by the logits of one example."""
    parameter = next(module.parameters(), None)
    if parameter is not None and parameter.device != inputs.device:
        inputs, labels = inputs.to(parameter.device), labels.to(parameter.device)
    if check and len(inputs):
        with ieee_float32(inputs.device), evaluation_mode(module), unchanged(module, inputs.device):
            classes = validation.first_logits(module, inputs[:1]).shape[1]
        validation.check_label_range(labels, classes)
    return inputs, labels


def _written(bounds: Bounds) -> list[float] | str | None:
    """Return a box as JSON can have it: its two ends, if they are numbers."""
    if bounds is None:
        return None
    numbers = all(torch.as_tensor(bound).ndim == 0 for bound in bounds)
    return [float(bound) for bound in bounds] if numbers else "per feature"


def _same(before: Weights, after: Weights) -> bool:
    return before.keys() == after.keys() and all(torch.equal(tensor, after[name]) for name, tensor in before.items())
