"""How many steps the boundary search takes, chosen anew for every epoch.

The rule, on the share of good points among those nearer than r0, which alone are trained on, in the epoch before:

    below ENOUGH             the next larger count
    AMPLE or more            the next smaller count, if the last change is ``wait`` epochs ago
    between the two          the count stays

``wait`` begins with one epoch, and doubles whenever a smaller count turned out to be too small: so that the count does
not flip, however long a training is. Every count is one shape of work: it is recorded once, and there are five.
"""

import torch
from torch import Tensor

from dyart.data.ranks import Shard, gathered

COUNTS = (5, 7, 10, 14, 20)
# The bar that the search has to meet with a fixed count, too.
ENOUGH = 0.95
AMPLE = 0.98


class StepCount:
    """The number of steps of an epoch.

    Args:
        steps: to begin with, raised to the next of ``COUNTS``; at most the last of them.
        device: where batches are.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        """Nothing is known yet."""
        place = next((place for place, count in enumerate(COUNTS) if count >= steps), len(COUNTS) - 1)
        self.count = COUNTS[place]
        # Good points of this epoch so far, and those that count: written in every step, read once an epoch.
        self.tally = torch.zeros(2, dtype=torch.float64, device=device)
        # Place in COUNTS, epochs since the last change, epochs to wait, whether the last change was to fewer steps, and
        # the epoch's fraction of the training.
        self.past = torch.tensor([place, 0, 1, 0, -1.0], dtype=torch.float64, device=device)

    def note(self, good: Tensor, near: Tensor, shard: Shard | None) -> None:
        """Add up a batch: which points are good, of which that count, ``[N]``. No host synchronisation."""
        # All processes know all: they must choose alike.
        both = gathered(torch.stack([good & near, near], dim=1), shard)
        self.tally += both.sum(dim=0)

    def look(self, fraction: float) -> None:
        """Choose the count of an epoch, given by its fraction of the training: one host synchronisation.

        Asked again with the same fraction, as after resuming in the middle of the epoch, it chooses nothing.
        """
        place, since, wait, fewer, last = self.past.tolist()
        if fraction != last:
            good, near = self.tally.tolist()
            move = 0
            if near:
                since += 1
                share = good / near
                up = share < ENOUGH and place + 1 < len(COUNTS)
                down = share >= AMPLE and since >= wait and place > 0
                move = 1 if up else -1 if down else 0
            if move:
                wait = 2 * wait if move > 0 and fewer else wait
                place, since, fewer = place + move, 0, move < 0
            self.tally.zero_()
            self.past.copy_(torch.tensor([place, since, wait, fewer, fraction], dtype=torch.float64))
        self.count = COUNTS[int(place)]
