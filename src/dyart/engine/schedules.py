"""Learning rate and momentum as functions of the position in the training."""

import math
from typing import NamedTuple

from dyart.recipes.config import Optim

# The released code's one-cycle schedule (per epoch): warm-up share, first and last rate over the peak, momenta.
ONE_CYCLE_WARMUP, ONE_CYCLE_FIRST, ONE_CYCLE_LAST = 0.025, 1 / 25, 1 / 25e4
ONE_CYCLE_MOMENTA = (0.95, 0.85)


class Rates(NamedTuple):
    """What SGD is set to for one step."""

    lr: float
    momentum: float


def rates(optim: Optim, step: int, steps: int, steps_per_epoch: int) -> Rates:
    """Return rate and momentum of a step.

    Args:
        optim: the settings.
        step: from 0.
        steps: of the whole training.
        steps_per_epoch: for the one-cycle schedule, which changes between epochs only.
    """
    if optim.schedule == "one-cycle":
        return one_cycle(float(optim.lr), step // steps_per_epoch, steps // steps_per_epoch)
    warmup = math.floor(optim.warmup * steps)
    if step < warmup:
        factor = (step + 1) / warmup
    elif optim.schedule == "cosine":
        factor = (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1))) / 2
    elif optim.schedule == "step":
        # Of the whole training, as the released code has it, not of what follows the warm-up.
        factor = 0.1 ** ((step / steps >= 0.5) + (step / steps >= 0.75))
    else:
        factor = 1.0
    # Plain floats: checkpoints hold nothing else.
    return Rates(float(optim.lr) * factor, float(optim.momentum))


def one_cycle(peak: float, epoch: int, epochs: int) -> Rates:
    """Return the released code's rate and momentum of an epoch: up to the peak in 2.5 % of the epochs, then down.

    Its momentum runs against the rate, from 0.95 to 0.85 and back, though the papers say 0.9.
    """
    turn = ONE_CYCLE_WARMUP * epochs - 1
    if turn > 0 and epoch <= turn:
        share = epoch / turn
        return Rates(_arc(peak * ONE_CYCLE_FIRST, peak, share), _arc(*ONE_CYCLE_MOMENTA, share))
    share = (epoch - max(turn, 0)) / max(epochs - 1 - max(turn, 0), 1)
    return Rates(_arc(peak, peak * ONE_CYCLE_LAST, share), _arc(*ONE_CYCLE_MOMENTA[::-1], share))


def _arc(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2
