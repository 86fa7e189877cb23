"""The attacks of Croce and Hein, called with a radius per example.

FAB, Square and Auto-PGD for L1 are their own code (package pyautoattack). Its ``perturb`` takes one radius for a batch;
the loops within it, ``attack_single_run``, mostly do not care. Auto-PGD for L-inf and L2 is ours, with their points.
What is written here is the loop around them, over targets, with the examples that are left.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dyart.attacks.auto_pgd import TINY, auto_pgd, random_start
from dyart.attacks.pgd import AttackNorm, Objective, cross_entropy
from dyart.boundary.margins import logit_margin
from dyart.boundary.model import Model
from dyart.boundary.norms import Norm, per_row
from dyart.boundary.norms import norm as norm_of

# Classes aimed at, in the standard version; and the fewest classes for the targeted DLR loss.
TARGETS = {"apgd-t": {"linf": 9, "l2": 9, "l1": 5}, "fab-t": {"linf": 9, "l2": 9, "l1": 9}}
DLR_CLASSES = 4
LOGGER = logging.getLogger("auto-attack")
_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


@dataclass(frozen=True)
class Batch:
    """What an attack is run on. Inputs are in [0, 1]."""

    model: Model
    x: Tensor
    y: Tensor
    radius: Tensor
    norm: Norm
    classes: int
    seed: int
    steps: int
    queries: int
    room: int = 0
    """Auto-PGD aims at several classes at once where that makes no batch larger than this; else one after the other."""

    def attacked(self, name: str) -> Tensor:
        """Return the points of one attack: all radii together where the authors' code lets us, else one by one."""
        together = {"apgd-ce": self._apgd, "apgd-t": self._apgd, "fab-t": self._fab, "square": self._square}[name]
        shared = self.norm == "linf" or (self.norm == "l2" and name != "square") or name == "fab-t"
        if shared:
            return together(name)
        points = self.x.clone()
        for radius in self.radius.unique():
            rows = (self.radius == radius).nonzero()[:, 0]
            attack = self._attack(name, float(radius))
            points[rows] = attack.perturb(self.x[rows].clone(), self.y[rows].clone())
        return points

    def targets(self, name: str) -> int:
        """Return how many classes an attack aims at."""
        return min(TARGETS[name][self.norm], self.classes - 1)

    def _attack(self, name: str, radius: float = 1.0) -> Any:  # noqa: ANN401
        """Return the authors' object, in its standard settings."""
        from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
        from pyautoattack.fab_pt import FABAttack_PT
        from pyautoattack.square import SquareAttack

        device = self.x.device
        common = {"norm": _NORMS[self.norm], "eps": radius, "seed": self.seed, "device": device, "verbose": False}
        larger = {"use_largereps": self.norm == "l1", "logger": LOGGER}
        if name == "apgd-ce":
            restarts = 5 if self.norm == "l1" else 1
            return APGDAttack(self.model, n_iter=self.steps, n_restarts=restarts, **common, **larger)
        if name == "apgd-t":
            targets = self.targets(name)
            attack = APGDAttack_targeted(self.model, n_iter=self.steps, n_target_classes=targets, **common, **larger)
            if self.classes < DLR_CLASSES:
                attack.dlr_loss_targeted = lambda logits, y: against(logits, y, attack.y_target)
            return attack
        if name == "fab-t":
            targets = self.targets(name)
            return FABAttack_PT(self.model, n_iter=self.steps, targeted=True, n_target_classes=targets, **common)
        return SquareAttack(self.model, p_init=0.8, n_queries=self.queries, resc_schedule=False, **common)

    def _apgd(self, name: str) -> Tensor:
        """Run Auto-PGD, for p = inf and 2: on the cross-entropy, or towards one class after the other."""
        norm: AttackNorm = "linf" if self.norm == "linf" else "l2"
        points, (left, order) = self.x.clone(), self._begin()
        ranks = [1] if name == "apgd-ce" else list(range(2, self.targets(name) + 2))
        while ranks and len(left):
            together = max(1, self.room // len(left))
            these, ranks = ranks[:together], ranks[together:]
            rows = left.repeat(len(these))
            x, radius = self.x[rows], self.radius[rows]
            objective = cross_entropy if name == "apgd-ce" else self._aimed(left, order, these)
            start = random_start(x, radius, norm)
            found, fooled = auto_pgd(
                self.model, x, self.y[rows], radius, start, self.steps, norm=norm, objective=objective
            )
            broken = fooled.reshape(len(these), -1)
            for by, reached in zip(broken.flip(0), reversed(found.split(len(left))), strict=True):
                points[left[by]] = reached[by]  # in the end that of the first rank
            left = left[~broken.any(dim=0)]
        return points

    def _aimed(self, left: Tensor, order: Tensor, ranks: list[int]) -> Objective:
        """Return what to raise towards the classes of these ranks, for each the examples that are left."""
        loss = against if self.classes < DLR_CLASSES else targeted_dlr
        targets = torch.cat([order[left, -rank] for rank in ranks])
        return lambda logits, labels: loss(logits, labels, targets)

    def _fab(self, name: str) -> Tensor:
        """Run FAB, which looks for the closest point: the radius only says whether the next target is needed."""
        attack = self._attack(name)
        points, (left, _) = self.x.clone(), self._begin()
        for rank in range(2, self.targets(name) + 2):
            if len(left) == 0:
                break
            attack.target_class = rank
            x, y = self.x[left], self.y[left]
            found = attack.attack_single_run(x, y, use_rand_start=False, is_targeted=True)
            with torch.no_grad():
                fooled = self.model(found).argmax(dim=1) != y
            broken = fooled & (norm_of(found - x, self.norm) <= self.radius[left])
            points[left[broken]] = found[broken]
            left = left[~broken]
        return points

    def _square(self, name: str) -> Tensor:
        """Run Square, for p = inf, in coordinates in which every ball is the unit box, whatever its radius.

        A step goes from wherever a point is beyond the far side of the ball and is cut off there, so that it ends at
        the same place in both coordinates. Square passes labels on to its loss alone: here they are places.
        """
        attack = self._attack(name, 0.5)
        points, (left, _) = self.x.clone(), self._begin()
        if len(left) == 0:
            return points
        wide = per_row(self.radius, self.x)

        def placed(u: Tensor, rows: Tensor) -> Tensor:
            return (self.x[rows] + wide[rows] * (2 * u - 1)).clamp(0.0, 1.0)

        def margin_and_loss(u: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            margin = logit_margin(self.model(placed(u, rows)), self.y[rows])
            return margin, margin.clone()

        attack.margin_and_loss = margin_and_loss
        attack.init_hyperparam(self.x)
        _, found = attack.attack_single_run(torch.full_like(self.x[left], 0.5), left)
        moved = placed(found, left)
        with torch.no_grad():
            fooled = self.model(moved).argmax(dim=1) != self.y[left]
        points[left[fooled]] = moved[fooled]
        return points

    def _begin(self) -> tuple[Tensor, Tensor]:
        """Return the examples to attack and their classes by rising logit, and set the seed."""
        with torch.no_grad():
            logits = self.model(self.x)
        torch.manual_seed(self.seed)
        # Not the last in order: of equal logits that is another one than argmax.
        return (logits.argmax(dim=1) == self.y).nonzero()[:, 0], logits.sort(dim=1)[1]


def against(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the margin of the target over the label, which Auto-PGD raises, ``[N]``."""
    return _of_class(logits, targets) - _of_class(logits, labels)


def targeted_dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return that margin over a difference of logits, the targeted DLR loss: their scale drops out, ``[N]``."""
    ordered = logits.sort(dim=1)[0]
    scale = ordered[:, -1] - 0.5 * (ordered[:, -3] + ordered[:, -4])
    return against(logits, labels, targets) / (scale + TINY)


def _of_class(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]
