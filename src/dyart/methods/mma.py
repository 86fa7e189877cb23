"""MMA: max-margin adversarial training (Ding et al., ICLR 2020).

    L = (1 - c) (1/n) [ sum_{i correct, e_i < hinge} CE(z(x_i + e_i u_i), y_i) + sum_{i wrong} CE(z(x_i), y_i) ]
        + c (1/n) sum_i CE(z(x_i), y_i)

with u_i the direction of PGD on the soft logit margin within the example's radius of its last visit, and e_i the zero
of that margin along u_i, found by bisection; e_i is the example's radius at its next visit. "Correct" means p_y > 1/2.

Where the released code differs from this:
- it decides what is correct, and runs the bisection, with the network in training mode (batch statistics of the correct
  examples, running statistics updated); here both are in eval mode, like PGD;
- its training points x_i + e_i u_i may leave the box, although the bisection's do not: ``clip=False``;
- it selects checkpoints by the average margin on the validation set; here by robust accuracy, as for every method. The
  average margin of training examples is logged as ``mean_radius``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.attacks.bisection import along, half_probability_margin, inside, margin_bisection
from dyart.attacks.pgd import ATTACK_NORMS, AttackNorm, pgd
from dyart.attacks.radii import check_unit
from dyart.boundary import validation
from dyart.boundary.model import Model, logits_of
from dyart.boundary.norms import per_row
from dyart.boundary.validation import Bounds
from dyart.data.loader import Batch
from dyart.data.ranks import gathered
from dyart.methods.base import (
    Method,
    Metrics,
    accuracy,
    classification_loss,
    classification_losses,
    logits_of_both,
    register,
    start_key,
)

# The bisection looks a little beyond the hinge, to tell the margins that are as large from those that are not.
CAP = 1.05


class Margins(NamedTuple):
    """What a step of MMA trains on."""

    points: Tensor
    """Boundary points of correct examples; wrong examples as they are."""
    radius: Tensor
    """``[N]``: e; 0 for wrong examples."""
    correct: Tensor
    """``[N]``: the label's probability is above one half."""


@register("mma")
class MMA(Method[Margins]):
    """Max-margin adversarial training: cross-entropy on the boundary, for margins below the hinge.

    Cost: ``steps`` forward and input-gradient passes, ``bisections`` + 1 forward passes, and two training steps (one
    for ``clean = 0``). The radius of every training example is kept from visit to visit; in anybody's loop, where
    examples have no names, every PGD starts with ``least`` (the bisection finds margins up to the hinge from there,
    too).

    Args:
        hinge: margins from here on are not trained on (the paper's d_max).
        least: radius of PGD for an example that was not seen yet, or was wrong at its last visit.
        steps: of PGD; each is 2.5 radii over their number.
        bisections: halvings in the search for the boundary along PGD's direction.
        clean: c, the weight of the clean cross-entropy; 0 is the paper's OMMA.
        norm: ``"linf"`` or ``"l2"``.
        clip: clip points that are trained on to the bounds; False: as in the released code.
        joint: clean images and boundary points in one forward pass; False: two, clean images first.
        bounds: of the inputs and the points, ``(low, high)``, numbers or tensors; None: none.
    """

    def __init__(
        self,
        hinge: float = 32 / 255,
        least: float = 0.005,
        steps: int = 10,
        bisections: int = 10,
        clean: float = 1 / 3,
        norm: AttackNorm = "linf",
        clip: bool = True,
        joint: bool = False,
        *,
        bounds: Bounds = (0.0, 1.0),
    ) -> None:
        """Check and keep the settings."""
        validation.check_positive("hinge", hinge)
        validation.check_positive("least", least)
        validation.check_count("steps", steps, 1)
        validation.check_count("bisections", bisections, 1)
        validation.check_choice("norm", norm, ATTACK_NORMS)
        if not least <= hinge:
            raise ValueError(f"least must be at most the hinge {hinge}, got {least}")
        if not 0 <= clean <= 1:
            raise ValueError(f"clean is a weight from 0 to 1, got {clean}")
        self.hinge, self.least, self.steps, self.bisections = hinge, least, steps, bisections
        self.clean, self.norm, self.clip, self.joint = clean, norm, clip, joint
        self.bounds = None if bounds is None else validation.as_pair(bounds)
        self.radii: Tensor | None = None

    def prepare(self, examples: int, device: torch.device) -> None:
        """Make room for the radii, all at their least."""
        self.radii = torch.full((examples,), float(self.least), device=device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the radii by index."""
        return {} if self.radii is None else {"radii": self.radii}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the radii back, in place: what is captured reads them where they are."""
        if self.radii is None:
            return super().load_state_dict(state)
        if state.keys() != {"radii"}:
            raise ValueError(f"the method {self.name!r} keeps ['radii'], the checkpoint has {sorted(state)}")
        if state["radii"].shape != self.radii.shape:
            raise ValueError(
                f"the checkpoint has radii of {len(state['radii'])} examples, the training set {len(self.radii)}"
            )
        self.radii.copy_(state["radii"])

    @contextmanager
    def _nameless(self) -> Iterator[None]:
        """Read and keep no radius."""
        kept, self.radii = self.radii, None
        try:
            yield
        finally:
            self.radii = kept

    def check_settings(self) -> None:
        """Raise if the hinge is larger than the box."""
        check_unit("hinge", self.hinge, self.norm, self.bounds)

    def craft(self, model: Model, batch: Batch) -> Margins:
        """Return boundary points, radii, and which examples are correct."""
        radius = self._radius(batch)
        step = 2.5 * radius / self.steps
        ends = pgd(
            model,
            batch.inputs,
            batch.labels,
            radius,
            self.steps,
            step,
            norm=self.norm,
            objective=lambda logits, labels: -half_probability_margin(logits, labels),
            key=start_key(batch, "mma"),
            index=batch.index,
            bounds=self.bounds,
            compile=self.compiled,
        )
        directions = (ends - batch.inputs) / (per_row(radius, ends) + 1e-12)
        directions = directions.to(batch.inputs.dtype)  # radii are float32, points what the network takes
        cap = CAP * self.hinge
        e = margin_bisection(
            model, batch.inputs, batch.labels, directions, cap, self.bisections, first=radius, bounds=self.bounds
        )
        correct = inside(model, batch.inputs, batch.labels)
        e = torch.where(correct, e, 0.0)
        return Margins(along(batch.inputs, directions, e, self.bounds if self.clip else None), e, correct)

    def loss(self, model: Model, batch: Batch, crafted: Margins) -> tuple[Tensor, Metrics]:
        """Return the mixture of both losses, and keep the radii."""
        self._keep(gathered(batch.index, batch.shard), gathered(crafted.radius, batch.shard))
        at_inputs, at_points = self._logits(model, batch.inputs, crafted.points)
        used = ~crafted.correct | (crafted.radius < self.hinge)
        margin = torch.where(used, classification_losses(at_points, batch), 0.0).mean()
        metrics = {
            "margin_loss": margin.detach(),
            "adversarial_accuracy": accuracy(at_points, batch.labels),
            "mean_radius": crafted.radius.mean(),
            "correct": crafted.correct.float().mean(),
            "used": used.float().mean(),
        }
        loss = (1 - self.clean) * margin
        if at_inputs is not None:
            clean = classification_loss(at_inputs, batch)
            metrics |= {"clean_loss": clean.detach(), "accuracy": accuracy(at_inputs, batch.labels)}
            loss = loss + self.clean * clean
        return loss, metrics

    def _radius(self, batch: Batch) -> Tensor:
        if self.radii is None:
            return torch.full((len(batch),), float(self.least), device=batch.inputs.device)
        return self.radii[batch.index].clamp(min=float(self.least))

    def _keep(self, index: Tensor, radius: Tensor) -> None:
        if self.radii is None:
            return
        # An auxiliary example may be twice in a batch: the larger radius, not whichever is written last.
        self.radii.index_fill_(0, index, 0.0)
        self.radii.scatter_reduce_(0, index, radius.to(self.radii.dtype), "amax")

    def _logits(self, model: Model, inputs: Tensor, points: Tensor) -> tuple[Tensor | None, Tensor]:
        if self.clean == 0:
            return None, logits_of(model(points))
        return logits_of_both(model, inputs, points, self.joint)
