"""Whether a model says the same of an example when it is asked again, and among other examples."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Rounding differs with the batch and from run to run on a GPU: what differs by less than this share of the spread of
# the logits is the same output. In 16 bit, so many units in the last place.
SAME, UNITS = 1e-3, 32
# Kernels for another batch size add in another order; in a model that computes in 16 bit and returns float32 that has
# come to 1 % of the spread. What examples beside it do to an example is more.
COMPANY = 0.05
# So far below the largest a logit is a mask.
MASKED = 1e4
# Examples that are asked about again: as few as can be, so that others beside them would be missed.
FEW = 2


class Change(NamedTuple):
    """How two outputs for the same examples differ."""

    size: float
    """The largest difference of two logits; infinite where one is and the other is not."""
    spread: float
    """How far logits are from the means of their rows, at most."""
    rounding: float
    """Up to this size they are the same output."""

    @property
    def real(self) -> bool:
        """Whether it is more than rounding."""
        return self.size > self.rounding


def change(one: Tensor, other: Tensor) -> Change:
    """Compare two outputs ``[N, K]`` for the same examples; classes that are masked, with -inf, do not count."""
    eps = max(torch.finfo(logits.dtype).eps for logits in (one, other))
    one, other = one.detach().double(), other.detach().double()
    # A mask may be a very small number, too.
    usable = one.isfinite() & other.isfinite() & (one > one.max(dim=1, keepdim=True).values - MASKED)
    before, after = (torch.where(usable, logits, 0.0) for logits in (one, other))
    means = before.sum(dim=1, keepdim=True) / usable.sum(dim=1, keepdim=True).clamp(min=1)
    spread = float(torch.where(usable, before - means, 0.0).abs().max())
    size = float((before - after).abs().max()) if torch.equal(one.isfinite(), other.isfinite()) else torch.inf
    return Change(size, spread, max(SAME * spread, UNITS * eps * max(spread, float(before.abs().max()))))


def warn_of_changes(ask: Callable[[Tensor], Tensor], inputs: Tensor, logits: Tensor, stacklevel: int) -> None:
    """Warn where the model says something else of a few inputs than it has said of them in their batch.

    Cost: one forward pass of at most 2 inputs, and one more where there is something to say. Not for compiled models,
    which another size of batch would have compiled anew.

    Args:
        ask: from inputs to logits.
        inputs: a batch, as the model was given it.
        logits: what it said of it.
        stacklevel: of the warning.
    """
    # Not the first: in a batch of their own they have others beside them, before them, too.
    rows = slice(len(inputs) // 2, len(inputs) // 2 + FEW)
    few = inputs[rows]
    try:
        again = ask(few)
        beside = change(logits[rows], again)
        if not beside.real:
            return
        repeated = change(again, ask(few))
    except Exception:  # a model for one size of batch, of any kind: a search of whole batches may do without others
        return
    if words := _words(beside, repeated, len(few), len(inputs)):
        warnings.warn(words, stacklevel=stacklevel + 1)


def _words(beside: Change, repeated: Change, few: int, batch: int) -> str | None:
    """Say what is the matter; None where it is the rounding of another size of batch."""
    if repeated.real:
        return (
            f"asked twice about the same {few} inputs, the model gives logits that differ by up to {repeated.size:.2g} "
            f"(they lie up to {repeated.spread:.2g} from their means): a point across the boundary in one call is not "
            "in the next, and margins mean little. Put everything in it into eval mode, switch its noise off or draw "
            "it once for all calls, or let it average over many draws from a fixed seed"
        )
    if beside.size > max(COMPANY * beside.spread, beside.rounding):
        return (
            f"an example's logits depend on what is beside it: in batches of {batch} and of {few} they differ by up to "
            f"{beside.size:.2g} (they lie up to {beside.spread:.2g} from their means), and the search divides batches. "
            "A point that is across the boundary in one may not be in another: use a model that treats examples one by "
            "one (BatchNorm in eval mode, with running statistics), or pass batch_size=1"
        )
    return None
