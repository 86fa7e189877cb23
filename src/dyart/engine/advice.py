"""What the numbers of a training say about its settings, once each, while there is time to change them."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dyart.engine.callbacks import Callback
from dyart.engine.metrics import Record

if TYPE_CHECKING:
    from dyart.engine.fit import Training

log = logging.getLogger("dyart")

# What is advised against must last for so many steps (at most two epochs), in at least two lines of metrics.jsonl.
PATIENCE = 100
# How much of the way from chance to a perfect network a burn-in must have gone.
LEARNT = 0.1
# Steps of the optimizer, below which a burn-in is short before it is anything else: a small set has few in an epoch.
FEW_STEPS = 50
FEW_INSIDE, FEW_FOUND = 0.1, 0.5
# On CIFAR-10 with one joint forward pass it goes from 0.25 to 0; with the leak that two passes have, it reached 4.
LARGE_SHIFT = 1.0

Rule = Callable[[Record], str | None]


def few_inside(record: Record) -> str | None:
    """Hardly any example has a margin: there is nothing to train on."""
    inside = record.get("inside")
    if inside is None or inside >= FEW_INSIDE:
        return None
    return (
        f"only {inside:.0%} of the examples lie inside their class's boundary, hardly any has a margin to train on: "
        "the burn-in is too weak (raise train.burn_in, or begin with a trained network: train.burn_in_from), or the "
        "training has fallen apart (halve optim.lr or method.lam, set optim.clip); or, with train.precision bf16 on a "
        "GPU, its activations go beyond 65504, where the search's float16 ends (train.precision fp32 shows whether)"
    )


def few_found(record: Record) -> str | None:
    """The search fails for most examples that have a margin."""
    inside, found = record.get("inside"), record.get("found")
    if not inside or found is None or inside < FEW_INSIDE or found >= FEW_FOUND * inside:
        return None
    return (
        f"the search finds a boundary point for {found / inside:.0%} of the examples that have one: raise "
        "method.steps, or train longer before it (train.burn_in)"
    )


def large_shift(record: Record) -> str | None:
    """The boundary that is trained is another than the one that is searched."""
    shift = record.get("phi_shift")
    if shift is None or abs(shift) <= LARGE_SHIFT:
        return None
    return (
        f"phi_shift is {shift:.2g}: at the same points the logit margin in training mode (BatchNorm with the batch's "
        "statistics) is that far from the one in eval mode: the boundary that moves is not the one that counts. "
        "Set method.joint true (one forward pass for both kinds of points), model.normalization group, or a smaller "
        "optim.lr"
    )


RULES: tuple[Rule, ...] = (few_inside, few_found, large_shift)


class Advice(Callback):
    """Warns where one of the rules has held for ``PATIENCE`` steps; every rule once."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.since: dict[Rule, int] = {}
        self.said: set[Rule] = set()

    def on_record(self, training: "Training", record: Record) -> None:
        """Look at the means of the last steps, and at the end of the burn-in."""
        if record["kind"] == "epoch" and record["phase"] == "burn-in":
            self._burnt_in(training, record)
        patience = min(PATIENCE, 2 * len(training.loader))
        for rule in RULES:
            if rule is few_found and getattr(training.method, "retire", False):
                continue  # those that left because they are far count as not found
            words = rule(record)
            if words is None:
                self.since.pop(rule, None)
            elif rule not in self.said and record["step"] - self.since.setdefault(rule, record["step"]) >= patience:
                self.said.add(rule)
                if training.fabric.is_global_zero:
                    log.warning("step %d: %s", record["step"], words)

    @staticmethod
    def _burnt_in(training: "Training", record: Record) -> None:
        """Warn where the network has learnt next to nothing: margins of such a network are no use to a method."""
        right = record.get("val_clean")
        if right is None or record["epoch"] < training.config.train.burn_in:
            return
        _, counts = np.unique(training.data.train.labels[training.data.holdout], return_counts=True)
        chance = counts.max() / counts.sum()
        if right >= chance + LEARNT * (1 - chance):
            return
        advice = "lower optim.burn_in_lr and optim.lr, e.g. by ten, or raise train.burn_in"
        if (steps := record["step"]) < FEW_STEPS:
            advice = (
                f"it had only {steps} steps, so raise train.burn_in, and lower train.batch_size for more steps in an "
                "epoch; if that does not help, lower optim.burn_in_lr and optim.lr, e.g. by ten"
            )
        if training.fabric.is_global_zero:
            log.warning(
                "the burn-in ends with %.0f %% of the images right, and one class for all of them would be right for "
                "%.0f %%: %s",
                100 * right,
                100 * chance,
                advice,
            )
