"""One step of training: craft the points, take the loss, move the weights."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dyart.boundary.messages import first_line
from dyart.boundary.validation import as_bounds, beyond_bounds
from dyart.data.loader import Batch
from dyart.engine.capture import Captured, CaptureError, Pool
from dyart.engine.fabric import Fabric
from dyart.engine.views import Views
from dyart.methods.base import Method, Metrics, check_parts, perturbs

Work = tuple[Tensor, Metrics, list[Tensor | None]]
# Names of a run's own in metrics.jsonl.
RESERVED = {
    *("kind", "epoch", "step", "phase", "lr", "loss", "gradient_norm", "best", "skipped_steps"),
    *("val_clean", "val_robust", "train_clean", "train_robust"),
    *("train_seconds", "validation_seconds", "checkpoint_seconds"),
}


class Stepper:
    """Runs a method's steps on one network.

    Args:
        fabric: device and precision.
        views: of the network, which is trained in place.
        method: what is trained on.
        capture: record a step, up to the gradients, as one CUDA graph; its crafting alone where batches are split, the
            loss cannot be recorded, or several processes exchange a perturbation of the weights on the way.
        accumulate: parts that a batch is split into.
    """

    def __init__(
        self, fabric: Fabric, views: Views, method: Method[Any], capture: bool = False, accumulate: int = 1
    ) -> None:
        """Record nothing yet."""
        check_parts(method, accumulate)
        self.fabric, self.views, self.method, self.accumulate = fabric, views, method, accumulate
        self.capture = method.compiled = capture
        method.static = views.folded is not None
        self.whole = capture and accumulate == 1 and not (perturbs(method) and fabric.world_size > 1)
        self.parameters = [parameter for parameter in views.model.parameters() if parameter.requires_grad]
        self.stage: Hashable = object()  # equal to no method's
        self.looked = False
        self.pool, self.recorded = Pool(), dict[Hashable, tuple[Callable[[Batch], Any], Callable[[Batch], Work]]]()
        self.advance(0.0)

    def advance(self, fraction: float) -> None:
        """Tell the method how much of its training is done; a new stage of it is captured anew, an old one is kept."""
        self.method.advance(fraction)
        if self.method.stage != self.stage:
            self.stage = self.method.stage
            self._begin()

    def gradients(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Give the parameters the gradients of one batch, and return loss and metrics, detached, on the device."""
        self.views.model.train()
        try:
            loss, metrics, gradients = self.work(batch)
        except CaptureError as error:
            self._record_less(first_line(error))
            loss, metrics, gradients = self.work(batch)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss, metrics

    def _record_less(self, reason: str) -> None:
        what, rest = ("loss", "only its crafting is") if self.whole else ("crafting", "nothing is")
        self.fabric.print(f"the {what} of {self.method.name} cannot be recorded ({reason}): {rest}")
        self.whole, self.capture = False, self.whole
        self.recorded.clear()
        self._begin()

    def _begin(self) -> None:
        if self.stage not in self.recorded:
            apart = self.capture and not self.whole
            craft = Captured(self._craft, pool=self.pool) if apart else self._craft
            work = Captured(self._work, self._changed, self.pool) if self.whole else self._work
            self.recorded[self.stage] = craft, work
        self.craft, self.work = self.recorded[self.stage]

    def _changed(self) -> Iterator[Tensor]:
        yield from self.views.model.buffers()
        yield from self.method.state_dict().values()

    def _work(self, batch: Batch) -> Work:
        self.views.model.zero_grad(set_to_none=True)
        parts = split(batch, self.accumulate)
        total: Tensor | None = None
        summed: Metrics = {}
        for part in parts:
            crafted = self.craft(part)
            self._look(part, crafted)
            with ExitStack() as moved:
                with self.fabric.autocast():
                    moved.enter_context(self.method.perturbed(self.views.model, self.views.update, part, crafted))
                    returned = self.method.loss(self.views.update, part, crafted)
                    if not isinstance(returned, tuple):
                        raise ValueError(f"the loss of the method {self.method.name!r} must return (loss, metrics)")
                    loss, metrics = returned
                    self._check(loss, metrics)
                    loss = loss.reshape(()) / len(parts)
                self.fabric.backward(loss)
            metrics = {name: value.reshape(()) / len(parts) for name, value in metrics.items()}
            summed = {name: summed[name] + value if summed else value for name, value in metrics.items()}
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total, summed, [parameter.grad for parameter in self.parameters]

    def _look(self, batch: Batch, crafted: object) -> None:
        """Say at the first step, before anything is recorded, if points are crafted where inputs cannot be."""
        if self.looked or self.method.bounds is None:
            return
        self.looked = True
        points = crafted[0] if isinstance(crafted, tuple) and crafted else crafted
        if not isinstance(points, Tensor) or points.shape != batch.inputs.shape or not points.is_floating_point():
            return
        lower, upper = as_bounds(self.method.bounds, batch.inputs)
        assert lower is not None
        assert upper is not None
        if beyond := beyond_bounds(points.detach().to(batch.inputs), lower, upper):
            self.fabric.print(
                f"the method {self.method.name!r} crafts points up to {beyond:g} outside its bounds: if that is not "
                "meant, clip them"
            )

    def _check(self, loss: Tensor, metrics: Metrics) -> None:
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            got += "" if not isinstance(loss, Tensor) or loss.requires_grad else " without a gradient (detached?)"
            raise ValueError(f"the loss of the method {self.method.name!r} must be a scalar with a gradient, got {got}")
        for name, value in metrics.items():
            if name in RESERVED:
                raise ValueError(
                    f"the method {self.method.name!r} logs {name!r}, a name of the run's own: choose another"
                )
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"the metric {name!r} of the method {self.method.name!r} must be a tensor, e.g. loss.detach(), got "
                    f"{type(value).__name__}"
                )
            if value.numel() != 1:
                raise ValueError(
                    f"the metric {name!r} of the method {self.method.name!r} must be one number, e.g. its mean, got a "
                    f"tensor of shape {tuple(value.shape)}"
                )

    def _craft(self, batch: Batch) -> Any:  # noqa: ANN401
        self.views.refresh()
        with self.views.searching(self.fabric.device):
            return self.method.craft(self.views.search, batch)


def split(batch: Batch, parts: int) -> list[Batch]:
    """Return a batch as equal parts, to be worked on one after the other."""
    if parts == 1:
        return [batch]
    rows = torch.arange(len(batch), device=batch.labels.device).chunk(parts)
    fields = ("inputs", "labels", "index", "targets", "placement")
    return [
        replace(batch, **{name: value[row] for name in fields if (value := getattr(batch, name)) is not None})
        for row in rows
    ]
