"""Friendly adversarial training (Zhang et al., ICML 2020), on adversarial training and on TRADES.

    FAT:         L = (1/n) sum_i CE(z(x_i'), y_i)
    FAT-TRADES:  L = (1/n) sum_i CE(z(x_i), y_i) + (beta/n) sum_i KL(p(x_i) || p(x_i'))

x_i' is PGD that stops tau steps after the first error (``dyart.attacks.early_stopped``): on the cross-entropy, from a
uniform draw, with noise omega N(0, 1) in every step; for FAT-TRADES on the KL, from a normal draw, without noise, and
stopped by the label all the same. tau grows by one at given fractions of the training: those of the released code,
50 and 90 of 120 epochs for FAT, 30, 50 and 70 of 85 for FAT-TRADES.

The released code takes examples out of the batch as they stop, and returns them in that order; here they are masked,
which costs all steps of PGD and leaves the order alone.
"""

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from dyart.attacks.early_stopped import early_stopped_pgd
from dyart.attacks.kl import RandomStart, constant_logits, kl_from
from dyart.attacks.pgd import AttackNorm, Objective, Start, cross_entropy
from dyart.boundary import validation
from dyart.boundary.model import Model
from dyart.boundary.validation import Bounds
from dyart.data.loader import Batch
from dyart.methods.at import AT
from dyart.methods.base import Method, Metrics, register, start_key
from dyart.methods.trades import TRADES


class Friendly(Method[tuple[Tensor, Tensor]]):
    """A method with early-stopped PGD in the place of PGD.

    Args:
        outer: whose loss, ball, box and steps these are.
        omega: deviation of the noise in every step.
        tau: steps beyond the first error; None: as many as ``switches`` have passed.
    """

    switches: ClassVar[tuple[float, ...]] = ()
    """Fractions of the training at which tau grows by one."""

    def __init__(self, outer: AT | TRADES, omega: float, tau: int | None) -> None:
        """Check and keep the settings."""
        validation.check_weight("omega", omega)
        if tau is not None:
            validation.check_count("tau", tau, 0)
        self.outer, self.bounds, self.omega, self.fixed_tau = outer, outer.bounds, omega, tau
        # Where nobody says how far the training is, the schedule is at its end.
        self.advance(1.0)

    @property
    def norm(self) -> AttackNorm:
        """Of the ball."""
        return self.outer.norm

    @property
    def radius(self) -> float:
        """Of the ball."""
        return self.outer.radius

    def advance(self, fraction: float) -> None:
        """Set tau for this fraction of the training."""
        passed = sum(fraction >= switch for switch in self.switches)
        self.tau = passed if self.fixed_tau is None else self.fixed_tau

    @property
    def stage(self) -> Hashable:
        """Tau: another one is another attack."""
        return self.tau

    def check_settings(self) -> None:
        """Raise if the ball is larger than the box."""
        self.outer.check_settings()

    def craft(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the friendly adversarial images, and how many steps each of them took."""
        outer = self.outer
        return early_stopped_pgd(
            model,
            batch.inputs,
            batch.labels,
            outer.radius,
            outer.steps,
            outer.step_size,
            tau=self.tau,
            noise=self.omega,
            norm=outer.norm,
            objective=self._objective(model, batch),
            start=outer.start,
            key=start_key(batch, outer.name),  # the same draws: with a large tau the points are the outer method's
            index=batch.index,
            bounds=self.bounds,
            compile=self.compiled,
        )

    def loss(self, model: Model, batch: Batch, crafted: tuple[Tensor, Tensor]) -> tuple[Tensor, Metrics]:
        """Return the outer method's loss at the friendly images; logs ``tau`` and the mean number of ``steps`` too."""
        points, taken = crafted
        loss, metrics = self.outer.loss(model, batch, points)
        tau = torch.full((), float(self.tau), device=points.device)
        return loss, metrics | {"tau": tau, "steps": taken.float().mean()}

    def _objective(self, model: Model, batch: Batch) -> Objective:
        return cross_entropy


@register("fat")
class FAT(Friendly):
    """Friendly adversarial training. Cost: that of ``at``, whatever tau is.

    In a loop of one's own, call ``advance`` with the fraction of training done; without it tau is the schedule's last.

    Args:
        radius: of the ball.
        steps: of PGD, at most.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"uniform"`` in the ball, ``"normal"`` close to the input, or the ``"input"``.
        omega: deviation of the noise that is added to every step.
        tau: steps beyond the first error, fixed; None: 0, then 1 and 2 from 50/120 and 90/120 of the training on.
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    switches = (50 / 120, 90 / 120)

    def __init__(
        self,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: Start = "uniform",
        omega: float = 0.001,
        tau: int | None = None,
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        super().__init__(AT(radius, steps, step_size, norm, start, bounds=bounds), omega, tau)


@register("fat-trades")
class FATTRADES(Friendly):
    """TRADES with friendly adversarial images. Cost: that of ``trades``, whatever tau is.

    In a loop of one's own, call ``advance`` with the fraction of training done; without it tau is the schedule's last.

    Args:
        beta: weight of the divergence.
        radius: of the ball.
        steps: of PGD, at most.
        step_size: of one PGD step.
        norm: ``"linf"`` or ``"l2"``.
        start: of PGD: ``"normal"`` close to the input, or ``"uniform"`` in the ball.
        omega: deviation of the noise that is added to every step.
        tau: steps beyond the first error, fixed; None: 0, then 1, 2 and 3 from 30/85, 50/85 and 70/85 on.
        joint: clean and adversarial images in one forward pass, so that BatchNorm sees them together. False: two
            passes, clean images first.
        bounds: of the inputs and the adversarial images, ``(low, high)``, numbers or tensors; None: none.
    """

    switches = (30 / 85, 50 / 85, 70 / 85)

    def __init__(
        self,
        beta: float = 6.0,
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 2 / 255,
        norm: AttackNorm = "linf",
        start: RandomStart = "normal",
        omega: float = 0.0,
        tau: int | None = None,
        joint: bool = False,
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        outer = TRADES(beta, 0.0, radius, steps, step_size, norm, start, joint, bounds=bounds)
        super().__init__(outer, omega, tau)

    def _objective(self, model: Model, batch: Batch) -> Objective:
        return kl_from(constant_logits(model, batch.inputs))
