"""Clean and PGD accuracy after every epoch: on the hold-out, which checkpoints are chosen by, or on training images."""

import numpy as np
import torch

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.boundary.model import Model
from dyart.data import draws
from dyart.data.loader import as_tensors
from dyart.data.ranks import gathered, shard_of
from dyart.data.sets import DataSet
from dyart.engine.fabric import Fabric
from dyart.recipes.config import Config


class Validation:
    """Measures one network on some training images, never augmented.

    Nothing of a training depends on it: it draws from a stream of its own, and leaves the network as it was.

    Args:
        data: the set.
        rows: places of the images in its training split.
        fabric: device and precision.
        view: the network in eval mode, without parameter gradients, perhaps compiled.
        config: radius, norm and steps of PGD; the batch size.
    """

    def __init__(self, data: DataSet, rows: np.ndarray, fabric: Fabric, view: Model, config: Config) -> None:
        """Put the images on the device; of several processes, each has its share."""
        self.shard = shard_of(len(rows), fabric.global_rank, fabric.world_size)
        self.places = torch.arange(len(rows), device=fabric.device)
        if self.shard is not None:
            rows, self.places = rows[self.shard.rows], self.places[self.shard.rows]
        self.inputs, self.labels = as_tensors(data.train, rows, fabric.device)
        self.fabric, self.view, self.config = fabric, view, config

    def __call__(self) -> dict[str, float]:
        """Return ``clean`` and ``robust`` accuracy. The attack's start is the same every time."""
        settings, batch = self.config.eval, self.config.train.batch_size
        key = draws.key(self.config.seed, "validation")
        with self.fabric.autocast():
            clean = correct(self.view, self.inputs, self.labels, batch)
            robust = resists_pgd(
                self.view,
                self.inputs,
                self.labels,
                settings.radius,
                steps=settings.steps,
                norm=settings.norm,
                key=key,
                index=self.places,
                batch_size=batch,
            )
        both = {"clean": clean, "robust": robust}
        return {name: gathered(flags.float(), self.shard).mean().item() for name, flags in both.items()}


def tracked_rows(config: Config, data: DataSet, trained_on: np.ndarray) -> np.ndarray:
    """Return the places of the training images to measure on: the first that are trained on, a fair sample."""
    count = config.eval.train_examples
    if count is None:
        count = len(data.holdout) if config.monitor.every is not None else 0
    return trained_on[:count]
