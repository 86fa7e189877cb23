"""Clean and PGD accuracy after every epoch: on the hold-out, which checkpoints are chosen by, or on training images."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dyart.attacks.accuracy import judged
from dyart.boundary.memory import Pieces
from dyart.boundary.messages import first_line
from dyart.boundary.model import Model, evaluation_mode, unchanged
from dyart.data import draws
from dyart.data.loader import Batch, as_tensors
from dyart.data.ranks import gathered, shard_of
from dyart.data.sets import DataSet
from dyart.engine.capture import Captured, CaptureError
from dyart.engine.fabric import Fabric
from dyart.recipes.config import Config

Flags = tuple[Tensor, Tensor]


class Judge:
    """Says which images a network gets right, as they are and under PGD from a start that is the same every time.

    Where the network is compiled, the last, short batch is filled up with copies of an example: one shape is compiled,
    and on a GPU a whole batch's attack is recorded as one CUDA graph, as the crafting of a training step is.

    Args:
        fabric: device and precision.
        view: the network in eval mode, without parameter gradients, perhaps compiled. Its tensors stay where they are.
        config: radius, norm and steps of PGD; the batch size.
        compile: the network is compiled.
    """

    def __init__(self, fabric: Fabric, view: Model, config: Config, compile: bool) -> None:
        """Record nothing yet."""
        self.fabric, self.view, self.config, self.filled = fabric, view, config, compile
        self.key = torch.full((), draws.key(config.seed, "validation"), dtype=torch.int64, device=fabric.device)
        self.capture = compile and fabric.device.type == "cuda"
        self.judge: Callable[[Batch], Flags] = Captured(self._judged) if self.capture else self._judged

    def __call__(self, inputs: Tensor, labels: Tensor, names: Tensor) -> Flags:
        """Return who is right, ``[N]``, and who still is under attack; ``names`` are the images' in the draws."""
        device, size = inputs.device, self.config.train.batch_size
        pieces, every = Pieces("validation"), torch.arange(len(inputs), device=device)

        def flags(rows: Tensor) -> Tensor:
            # Where memory ran out, pieces are smaller from there on.
            whole = size if pieces.size is None else pieces.size
            return torch.stack(self._filled(Batch(inputs[rows], labels[rows], names[rows], self.key), whole))

        with torch.inference_mode(False), evaluation_mode(self.view), unchanged(self.view, device):
            # Of many processes with few examples, some have none.
            none = torch.zeros(2, 0, dtype=torch.bool, device=device)
            parts = [part for rows in every.split(size) for part in pieces(flags, rows)] if len(every) else [none]
            clean, robust = torch.cat(parts, dim=1)
        return clean, robust

    def _filled(self, batch: Batch, size: int) -> Flags:
        count = len(batch)
        if self.filled and count < size:
            rows = torch.arange(size, device=batch.index.device).clamp(max=count - 1)
            batch = Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows], batch.key)
        try:
            clean, robust = self.judge(batch)
        except CaptureError as error:
            self.fabric.print(f"the validation cannot be recorded ({first_line(error)}): it runs as it is")
            self.judge = self._judged
            clean, robust = self.judge(batch)
        return clean[:count], robust[:count]

    def _judged(self, batch: Batch) -> Flags:
        settings = self.config.eval
        with self.fabric.autocast():  # inside what is recorded: it keeps weights that it has cast until its end
            return judged(
                self.view,
                batch.inputs,
                batch.labels,
                settings.radius,
                settings.steps,
                norm=settings.norm,
                key=batch.key,
                index=batch.index,
                compile=self.capture,
            )


class Validation:
    """Measures one network on some training images, never augmented.

    Nothing of a training depends on it: it draws from a stream of its own, and leaves the network as it was.

    Args:
        data: the set.
        rows: places of the images in its training split.
        fabric: device and precision.
        judge: of the network.
    """

    def __init__(self, data: DataSet, rows: np.ndarray, fabric: Fabric, judge: Judge) -> None:
        """Put the images on the device; of several processes, each has its share."""
        self.shard = shard_of(len(rows), fabric.global_rank, fabric.world_size)
        self.places = torch.arange(len(rows), device=fabric.device)
        if self.shard is not None:
            rows, self.places = rows[self.shard.rows], self.places[self.shard.rows]
        self.inputs, self.labels = as_tensors(data.train, rows, fabric.device)
        self.judge = judge

    def __call__(self) -> dict[str, float]:
        """Return ``clean`` and ``robust`` accuracy."""
        both = dict(zip(("clean", "robust"), self.judge(self.inputs, self.labels, self.places), strict=True))
        return {name: gathered(flags.float(), self.shard).mean().item() for name, flags in both.items()}


def tracked_rows(config: Config, data: DataSet, trained_on: np.ndarray) -> np.ndarray:
    """Return the places of the training images to measure on: the first that are trained on, a fair sample."""
    count = config.eval.train_examples
    if count is None:
        count = len(data.holdout) if config.monitor.every is not None else 0
    return trained_on[:count]
