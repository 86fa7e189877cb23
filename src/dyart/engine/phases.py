"""The stretches of a training: a burn-in, then the method."""

from dataclasses import dataclass, replace
from typing import Any

from dyart.methods.at import AT
from dyart.methods.base import Method
from dyart.methods.natural import Natural
from dyart.recipes.config import Config, Optim


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs with one method and one schedule."""

    name: str
    method: Method[Any]
    optim: Optim
    first: int
    epochs: int


@dataclass
class Position:
    """Where a training is: the next step to take."""

    epoch: int = 0
    step: int = 0
    """In the epoch."""


def phases_of(config: Config, method: Method[Any]) -> list[Phase]:
    """Return the phases of a training in their order."""
    optim, burn_in = config.optim, config.train.burn_in
    train = Phase("train", method, optim, burn_in, config.train.epochs)
    if not burn_in:
        return [train]
    constant = replace(optim, schedule="constant", lr=optim.burn_in_lr or optim.lr, clip=optim.burn_in_clip)
    return [Phase("burn-in", _burn_in_method(config), constant, 0, burn_in), train]


def _burn_in_method(config: Config) -> Method[Any]:
    """Return the method of the burn-in. In bf16, AT's attack computes in what the method after it searches in."""
    if config.train.burn_in_method == "natural":
        return Natural()
    radius = config.eval.radius
    return AT(radius, steps=10, step_size=radius / 4, norm=config.eval.norm)
