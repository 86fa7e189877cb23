"""Signs that gradients are masked: attacks that disagree in ways in which they do not on models that mask nothing.

Every sign is a flag per example, from the raw verdicts. A few flags are nothing: searches are local and end where they
end. An alarm is given where the share of flagged examples is above a limit by the lower end of its 95 % interval, so
that a few odd examples of a small sample raise none.

The limits lie between what was seen on networks that mask and on others: small CNNs on the embedded set, 100 test
images, L-inf radii 0.05, 0.1 and 0.2, attacked as ``evaluate`` does by default (``benchmarks/masking.py``, its result
in ``benchmarks/results/masking.json``). In % of the correctly classified, for two seeds, each with images of its own:

                          natural       AT    DyART | winners-      levels,   straight-   steep and   logits
                                                    | take-all     rounded     through      smooth     x 100
    margins too large         0 0      0 0      0 0 |    78 75     100 100       17 34         1 1       0 0
    square stronger           0 0      0 0      0 0 |      4 5       84 89       10 24         0 0       0 0
    larger radius harder      0 0      0 0      0 0 |      0 0        12 7         0 0         0 0       0 0
    pgd weaker                4 6      6 8      9 5 |     6 12       90 89       22 36        10 7       4 6
    cross-entropy weaker      0 0      1 1      1 1 |      4 5       88 88       11 25         2 0       0 0

Winners-take-all keeps a tenth of the activations. Levels: activations on three levels, with no derivative (rounded),
with that of no rounding (straight-through), or with steep sigmoids between them, which are hard to attack and mask
nothing. The first three of these raised alarms with both seeds, no other network raised any. Logits times 100 mislead
attacks on the cross-entropy alone, which by default come after those that are not misled: the preflight finds them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dyart.evaluation.intervals import wilson
from dyart.evaluation.verdicts import MARGINS, Flags, Status, Verdicts

SQUARE, PGD, APGD_CE = "square", "pgd", "apgd-ce"
# By how much a margin must exceed the distance of an attack's point: a local search's are a few percent too large. No
# example of the networks without masking came so far.
EXCESS = 1.25


@dataclass(frozen=True)
class Alarm:
    """A reason to trust an evaluation less."""

    kind: str
    """A word for programs, one of ``SIGNS``."""
    message: str
    """A sentence for a person: what was seen, on how many examples, what to do."""
    examples: tuple[int, ...]
    """The examples in question, by their ``index``."""

    def __str__(self) -> str:
        """Return the sentence."""
        return self.message


@dataclass(frozen=True)
class Sign:
    """How to see one sign of masking, how often it may be seen, and what it means."""

    flags: Callable[[Verdicts], Flags]
    """Where it is seen: for every example and radius ``[N, R]``, or for every example ``[N, 1]``."""
    limit: float
    """Share of the correctly classified examples, at the radius where it is largest."""
    seen: str
    advice: str


def masking_alarms(verdicts: Verdicts) -> list[Alarm]:
    """Return an alarm for every sign of masking that more examples show than those of models that mask nothing."""
    correct = int(verdicts.correct.sum())
    alarms = []
    for kind, (flags, level) in _worst(verdicts).items():
        sign, count = SIGNS[kind], int(flags.sum())
        if wilson(count, correct)[0] > sign.limit:
            where = f" at {verdicts.radii[level]}" if level is not None else ""
            words = f"{count} of {correct} correct examples ({count / correct:.0%}) {sign.seen}{where}: {sign.advice}"
            alarms.append(Alarm(kind, words, tuple(verdicts.index[flags].tolist())))
    return alarms


def alarm_counts(verdicts: Verdicts) -> dict[str, int]:
    """Return by sign how many examples show it, at the radius where most do: what alarms are decided by."""
    return {kind: int(flags.sum()) for kind, (flags, _) in _worst(verdicts).items()}


def _worst(verdicts: Verdicts) -> dict[str, tuple[Flags, int | None]]:
    """Return by sign the examples that show it at the radius where most do, ``[N]``, and which radius (None: all)."""
    found: dict[str, tuple[Flags, int | None]] = {}
    for kind, sign in SIGNS.items():
        flags = sign.flags(verdicts) & verdicts.correct[:, None]
        level = int(flags.sum(axis=0).argmax())
        found[kind] = flags[:, level], level if flags.shape[1] > 1 else None
    return found


def alarm_flags(verdicts: Verdicts) -> dict[str, Flags]:
    """Return by sign which examples show it, at whatever radius, ``[N]`` each; a few are found on every model."""
    return {kind: _any(sign.flags(verdicts))[:, 0] & verdicts.correct for kind, sign in SIGNS.items()}


def _margin_too_large(verdicts: Verdicts) -> Flags:
    """An attack's point is much closer than the closest one that the boundary search found."""
    others = [verdicts.closest(name) for name in verdicts.attacks if name != MARGINS]
    if MARGINS not in verdicts.attacks or not others:
        return _nowhere(verdicts)
    margin = np.nan_to_num(verdicts.margin, nan=np.inf)
    closest = np.min(others, axis=0)
    flags: Flags = np.isfinite(closest) & (margin > EXCESS * closest)
    return flags[:, None]


def _square_stronger(verdicts: Verdicts) -> Flags:
    """Square, which has no gradients, breaks an example at a radius where attacks with gradients do not."""
    if SQUARE not in verdicts.attacks:
        return _nowhere(verdicts)
    tried, broken = _with_gradients(verdicts)
    return _any(tried & ~broken & (verdicts.status[SQUARE] == Status.BROKEN))


def _larger_radius_harder(verdicts: Verdicts) -> Flags:
    """An attack finds a point within a radius and none within a larger one, which contains it."""
    flags = _nowhere(verdicts)
    for name in verdicts.attacks:
        broken = verdicts.status[name] == Status.BROKEN
        below = np.cumsum(broken, axis=1) > 0
        flags = flags | _any(below & (verdicts.status[name] == Status.RESISTED))
    return flags


def _pgd_weaker(verdicts: Verdicts) -> Flags:
    return _resisted_alone(verdicts, PGD)


def _cross_entropy_weaker(verdicts: Verdicts) -> Flags:
    return _resisted_alone(verdicts, APGD_CE)


def _resisted_alone(verdicts: Verdicts, name: str) -> Flags:
    """One attack fails at a radius where others succeed."""
    if name not in verdicts.attacks:
        return _nowhere(verdicts)
    others = np.any([verdicts.broken_by(other) for other in verdicts.attacks if other != name], axis=0)
    return np.asarray((verdicts.status[name] == Status.RESISTED) & others, dtype=np.bool_)


def _with_gradients(verdicts: Verdicts) -> tuple[Flags, Flags]:
    """Return where an attack with gradients was tried, and where one of them has a point within, ``[N, R]`` each."""
    tried, broken = _nowhere(verdicts), _nowhere(verdicts)
    for name in verdicts.attacks:
        if name != SQUARE:
            tried = tried | np.isin(verdicts.status[name], (Status.RESISTED, Status.BROKEN))
            broken = broken | verdicts.broken_by(name)
    return tried, broken


def _nowhere(verdicts: Verdicts) -> Flags:
    return np.zeros((len(verdicts), 1), dtype=np.bool_)


def _any(flags: Flags) -> Flags:
    return np.asarray(flags.any(axis=1, keepdims=True), dtype=np.bool_)


SIGNS: dict[str, Sign] = {
    "margins too large": Sign(
        _margin_too_large,
        0.05,
        f"have no margin, or one more than {EXCESS - 1:.0%} larger than the distance of a point that an attack found",
        "the boundary search is misled; do not use these margins",
    ),
    "square stronger": Sign(
        _square_stronger,
        0.02,
        "are broken by Square, which needs no gradients, where every attack with gradients fails",
        "gradients are masked and the robust accuracy is too high; attack a differentiable version of the model",
    ),
    "larger radius harder": Sign(
        _larger_radius_harder,
        0.05,
        "are broken by an attack at one radius and resist the same attack at a larger one",
        "the attack is misled by its gradients; use more restarts and attacks of another kind",
    ),
    "pgd weaker": Sign(
        _pgd_weaker,
        0.15,
        "resist PGD where other attacks break them",
        "gradients at the example itself mislead; do not quote PGD's accuracy for this model",
    ),
    "cross-entropy weaker": Sign(
        _cross_entropy_weaker,
        0.15,
        "resist APGD on the cross-entropy where other attacks break them",
        "the loss saturates or misleads; look at the scale of the logits",
    ),
}
