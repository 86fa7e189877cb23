"""The way to every example's closest boundary point, kept by its index from one epoch to the next.

Eight bits a coordinate, in the original image's place: crops and mirrorings differ from epoch to epoch.
"""

import torch
from torch import Tensor

from dyart.boundary.norms import per_row
from dyart.data import placement
from dyart.data.loader import Batch
from dyart.data.ranks import gathered

LEVELS = 127


class Ways:
    """Displacements by index. Memory: one byte a coordinate (CIFAR-10: 154 MB), on the device and in checkpoints.

    Args:
        examples: indices are below this.
        shape: of one input.
        device: where batches are.
    """

    def __init__(self, examples: int, shape: torch.Size, device: torch.device) -> None:
        """Know none."""
        self.steps = torch.zeros((examples, *shape), dtype=torch.int8, device=device)
        self.sizes = torch.zeros(examples, device=device)

    def of(self, batch: Batch) -> Tensor:
        """Return the displacements of a batch as it is placed, like its inputs; zero where none is known."""
        size = per_row(self.sizes[batch.index], batch.inputs)
        ways = self.steps[batch.index].to(batch.inputs.dtype) * size / LEVELS
        return ways if batch.placement is None else placement.placed(ways, batch.placement)

    def known(self, batch: Batch) -> Tensor:
        """Return which examples of a batch have one, ``[N]``."""
        return self.sizes[batch.index] > 0

    def keep(self, batch: Batch, ways: Tensor, known: Tensor) -> None:
        """Keep displacements of a batch, like its inputs; where ``known`` does not hold, what was kept is forgotten."""
        ways = ways if batch.placement is None else placement.original(ways, batch.placement)
        size = ways.flatten(1).abs().amax(dim=1)
        usable = known & (size > 0) & size.isfinite()
        size = torch.where(usable, size, 0.0)
        steps = LEVELS * ways / per_row(torch.where(usable, size, 1.0), ways)
        steps = torch.where(per_row(usable, ways), steps, 0.0)
        # Every process keeps them all: the next epoch's batches are divided otherwise.
        kept = steps.round().to(torch.int8), size.to(self.sizes.dtype), batch.index
        steps, size, index = (gathered(tensor, batch.shard) for tensor in kept)
        # An auxiliary example may be twice in a batch: the last one counts, not whichever is written last.
        place = torch.arange(len(index), device=size.device)
        last = ((index[:, None] == index[None, :]) * place).amax(dim=1)
        self.steps[index] = steps[last]
        self.sizes[index] = size[last]
