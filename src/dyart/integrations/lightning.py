"""Training by any method of this package in Lightning's Trainer; the monitor's callback is here, too."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dyart.attacks.accuracy import correct, resists_pgd
from dyart.attacks.pgd import ATTACK_NORMS
from dyart.boundary import validation
from dyart.boundary.model import Model, logits_of
from dyart.data import draws
from dyart.data.loader import Batch
from dyart.dynamics.lightning import MonitorCallback, lightning_package
from dyart.methods.base import Method, find
from dyart.methods.natural import Natural

__all__ = ["DyARTModule", "MonitorCallback"]

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class DyARTModule(lightning_package().LightningModule):  # type: ignore[misc]
    """A LightningModule that trains a classifier by DyART or any other method of this package.

        module = DyARTModule(network, "dyart", r0=16 / 255, lam=300.0, radius=8 / 255)
        Trainer(max_epochs=30).fit(module, train_batches, validation_batches)

    Batches are pairs of inputs in the method's ``bounds``, [0, 1] unless it is told otherwise, and integer labels. It
    logs the loss and what the method tells of itself under ``train/``, and clean and robust accuracy under ``val/``.
    Points are crafted with the network in eval mode, the loss is taken in training mode. Random starts depend on seed,
    step, process and place in the batch alone: a training that goes on from a checkpoint draws as if it had not
    stopped. For an optimizer, a schedule or batches of your own, override ``configure_optimizers`` or ``examples``; in
    a module of your own, ``loss, metrics = objective(network, inputs, labels)`` in its ``training_step`` is all there
    is to it.

    Methods that keep something per example from epoch to epoch (MMA's radii, DyART's ``warm_start``) know no example
    by its name here: they begin anew at every step.

    Args:
        network: from inputs to logits.
        method: a name as in recipes (``"dyart"``, ``"at"``, ``"trades-awp"``, ``"my.package:Class"``), or an object.
        radius: of the robust accuracy in validation, by 20 steps of PGD in the method's norm (of L1 in L-inf: there is
            no PGD in L1) and inside its bounds.
        optimizer: from parameters to an optimizer; None: SGD, lr 0.1, Nesterov momentum 0.9, weight decay 5e-4.
        burn_in: so many epochs of natural training first; boundary points of an untrained network are of little use.
        seed: of random starts.
        settings: of the method, where ``method`` is a name.
    """

    def __init__(
        self,
        network: nn.Module,
        method: str | Method[Any] = "dyart",
        *,
        radius: float = 8 / 255,
        optimizer: Optimizer | None = None,
        burn_in: int = 0,
        seed: int = 0,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        """Make the method; the network is seen at the first batch."""
        super().__init__()
        if settings and not isinstance(method, str):
            raise ValueError(f"settings {sorted(settings)}, but the method is an object: give them to its constructor")
        self.network = network
        self.method: Method[Any] = find(method)(**settings) if isinstance(method, str) else method
        norm = getattr(self.method, "norm", "linf")
        self.radius, self.norm = float(radius), norm if norm in ATTACK_NORMS else "linf"
        self.make_optimizer, self.burn_in, self.seed = optimizer, burn_in, seed
        self.natural, self._seen = Natural(), False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        return logits_of(self.network(inputs))

    def examples(self, batch: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return inputs and labels of a batch; override it for batches of another form."""
        inputs, labels = batch
        return inputs, labels

    def on_train_epoch_start(self) -> None:
        """Tell the method how much of its training is done: of the epochs after the burn-in."""
        epochs = (self.trainer.max_epochs or 0) - self.burn_in
        if epochs > 0:
            self.method.advance(min(max(0, self.current_epoch - self.burn_in) / epochs, 1.0))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Return the method's loss of a batch."""
        inputs, labels = self.examples(batch)
        if not self._seen:  # once: it costs host synchronisation
            validation.check_inputs(inputs, self.method.bounds)  # also of natural training: validation attacks them
            self.method.check(self.network, inputs, labels)
            self._seen = True
        index = torch.arange(len(inputs), device=inputs.device) + self.global_rank * len(inputs)
        moment = draws.key(self.seed, "lightning", self.current_epoch, batch_idx)
        ready = Batch(inputs, labels, index, torch.full((), moment, dtype=torch.int64, device=inputs.device))
        method = self.natural if self.current_epoch < self.burn_in else self.method
        network: Model = self.network
        loss, metrics = method.loss_alone(network, ready, method.crafted(network, ready))
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(inputs))
        self.log_dict({f"train/{name}": value for name, value in metrics.items()}, batch_size=len(inputs))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Log clean accuracy and accuracy under PGD."""
        inputs, labels = self.examples(batch)
        moment = draws.key(self.seed, "validation", batch_idx, self.global_rank)
        right = correct(self.network, inputs, labels)
        box = self.method.bounds
        resists = resists_pgd(self.network, inputs, labels, self.radius, norm=self.norm, key=moment, bounds=box)
        values = {"val/clean": right.float().mean(), "val/robust": resists.float().mean()}
        self.log_dict(values, prog_bar=True, batch_size=len(inputs), sync_dist=True)

    def configure_optimizers(self) -> Any:  # noqa: ANN401
        """Return the optimizer."""
        if self.make_optimizer is not None:
            return self.make_optimizer(self.network.parameters())
        settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
        return torch.optim.SGD(self.network.parameters(), **settings)
