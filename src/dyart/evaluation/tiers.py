"""How hard an evaluation tries: which attacks belong to a tier, and one attack on one batch."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from dyart.attacks.accuracy import PGD_STEPS, margin_pgd
from dyart.attacks.pgd import ATTACK_NORMS
from dyart.boundary.model import Model
from dyart.boundary.norms import Norm, flat
from dyart.boundary.projections import into_ball
from dyart.boundary.validation import Bounds, check_choice
from dyart.evaluation import standard

Attack = Literal["clean", "pgd", "margins", "apgd", "autoattack"]

ATTACKS: tuple[Attack, ...] = get_args(Attack)
PGD = "pgd"


@dataclass(frozen=True)
class Tier:
    """What is run, in this order."""

    search: bool
    """The boundary search, whose points count at every radius beyond them."""
    probe: bool
    """PGD at every radius on every example: cheap, and the raw material of alarms."""
    battery: tuple[str, ...]
    """What an example must resist at a radius, one after the other."""
    walks_up: bool = False
    """Cheap enough to be run at every radius: nothing is inferred."""

    @property
    def words(self) -> str:
        """For a person."""
        battery = ", ".join(WORDS[name] for name in self.battery)
        battery = f"AutoAttack ({battery})" if self.battery == standard.NAMES else battery
        parts = [WORDS["margins"] if self.search else "", WORDS[PGD] if self.probe else "", battery]
        return ", ".join(part for part in parts if part) or "no attack"


WORDS = {
    "margins": "boundary search",
    PGD: f"PGD-{PGD_STEPS} on the margin loss",
    "apgd-ce": "APGD-CE",
    "apgd-t": "APGD-T",
    "fab-t": "FAB-T",
    "square": "Square",
}
TIERS: dict[Attack, Tier] = {
    "clean": Tier(False, False, ()),
    "pgd": Tier(False, False, (PGD,), walks_up=True),
    "margins": Tier(True, False, ()),
    "apgd": Tier(True, True, ("apgd-ce", "apgd-t")),
    "autoattack": Tier(True, True, standard.NAMES),
}


def tier_of(attack: str, norm: Norm, bounds: Bounds, shape: tuple[int, ...]) -> tuple[Tier, list[str]]:
    """Return what a tier runs on such inputs, and in words what of it is left out.

    Raises:
        ValueError: the tier is unknown, or cannot be run with this norm or these bounds.
    """
    check_choice("attack", attack, ATTACKS)
    tier, notes = TIERS[attack], []  # type: ignore[index]
    if norm not in ATTACK_NORMS and PGD in tier.battery:
        raise ValueError(f"attack='pgd' has no {norm} form: use 'apgd', 'autoattack' or 'margins'")
    if set(tier.battery) & set(standard.NAMES):
        plain_box(bounds)
    reasons = {name: standard.left_out(name, shape, norm) for name in tier.battery}
    notes += [reason for reason in reasons.values() if reason is not None]
    battery = tuple(name for name in tier.battery if reasons[name] is None)
    return Tier(tier.search, tier.probe and norm in ATTACK_NORMS, battery, tier.walks_up), notes


def beginnings(attack: str) -> list[str]:
    """Return the tiers whose evaluation, going down, is batch by batch the beginning of that of another tier."""
    tier = TIERS[attack]  # type: ignore[index]

    def begins(other: Tier) -> bool:
        first = tier.battery[: len(other.battery)]
        return other != tier and (other.search, other.probe, other.battery) == (tier.search, tier.probe, first)

    return [name for name, other in TIERS.items() if other.battery and begins(other)]


def plain_box(bounds: Bounds) -> tuple[float, float]:
    """Return a box that is the same for all features, as AutoAttack needs it.

    Raises:
        ValueError: there is none, or it differs between features.
    """
    pair = () if bounds is None else tuple(bounds)
    if len(pair) != 2 or not all(isinstance(bound, int | float) for bound in pair):
        raise ValueError(
            "AutoAttack's code knows one box for all features: give bounds=(low, high) as two numbers, or use "
            f"attack='pgd' or 'margins'; got {'none' if bounds is None else ' and '.join(_kind(b) for b in pair)}"
        )
    low, high = (float(bound) for bound in pair)
    if not low < high < float("inf") or low == -float("inf"):
        raise ValueError(f"AutoAttack needs finite bounds, the lower below the upper one; got {bounds!r}")
    return low, high


def _kind(bound: object) -> str:
    return f"a tensor {tuple(bound.shape)}" if isinstance(bound, Tensor) else repr(bound)


def attacked(
    name: str,
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: Tensor,
    *,
    norm: Norm,
    bounds: Bounds,
    classes: int,
    seed: int,
    index: Tensor,
    room: int = 0,
) -> Tensor:
    """Return the points that one attack makes of a batch; whether they fool the model is for others to say.

    Args:
        name: ``"pgd"`` or one of ``standard.NAMES``.
        model: a differentiable callable to logits.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        radius: of every example's ball, ``[N]``.
        norm: of the radii.
        bounds: the box.
        classes: number of logits.
        seed: of the draws.
        index: the examples' places in the whole set, for PGD's draws.
        room: how many examples the model takes at little more cost than a few.
    """
    if name == PGD:
        return margin_pgd(model, inputs, labels, radius, norm=norm, key=seed, index=index, bounds=bounds)
    options = {"norm": norm, "classes": classes, "seed": seed, "box": plain_box(bounds), "room": room}

    def single(x: Tensor) -> Tensor:  # the authors' code mixes the logits' precision with its own
        logits: Tensor = model(x)
        return logits.float()

    points = standard.run(name, single, inputs.float(), labels, radius.float(), **options)  # type: ignore[arg-type]
    unmoved = torch.eq(points, inputs.float())
    points = torch.where(unmoved, inputs, points.to(inputs.dtype))
    if inputs.dtype == torch.float32:
        return points
    # What float32 rounds across ball and box comes back.
    inside = inputs + into_ball(flat(points - inputs), radius, norm).reshape(points.shape)
    return inside.clamp(*plain_box(bounds))
