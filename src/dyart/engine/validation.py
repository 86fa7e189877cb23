"""Clean and PGD accuracy on the hold-out, after every epoch: what checkpoints are chosen by."""

from torch import nn

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.data import draws
from dyart.data.loader import as_tensors
from dyart.data.sets import DataSet
from dyart.engine.fabric import Fabric
from dyart.engine.views import compiled
from dyart.recipes.config import Config


class Validation:
    """Measures one network on the hold-out of a data set.

    Args:
        data: its hold-out is measured on, never augmented.
        fabric: device and precision.
        model: in eval mode, without parameter gradients.
        config: radius, norm and steps of PGD; the batch size.
        compile: compile the network.
    """

    def __init__(self, data: DataSet, fabric: Fabric, model: nn.Module, config: Config, compile: bool = False) -> None:
        """Put the hold-out on the device."""
        self.inputs, self.labels = as_tensors(data.train, data.holdout, fabric.device)
        self.fabric, self.config = fabric, config
        self.view = compiled(model, compile)

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
                batch_size=batch,
            )
        return {"clean": clean.float().mean().item(), "robust": robust.float().mean().item()}
