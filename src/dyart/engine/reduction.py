"""What makes the steps of several processes one: sums of gradients, means of everything else, one wish to stop.

Every process has its share of a batch, crafts its own points and takes the gradients of its own mean loss. Here they
become those of the whole batch, in one all-reduce after the backward pass, with what else all must agree on.

Why not the wrapper DistributedDataParallel: it averages gradients as if all processes had as many examples, it hooks
into ``backward`` alone (AWP's proxy gradient is taken apart from that), and it wants to be called once between two
backward passes, while methods call a network several times, in two modes, through views of the same storage. What is
lost is the overlap of communication with the backward pass: of a step with ten crafting passes, little.
"""

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dyart.data.ranks import Shard, add_up
from dyart.methods.base import Metrics

# On a GPU a wish to stop is read so many steps after it was sent: by then it has arrived, and nobody waits.
DELAY = 3


class Reduction:
    """One per phase of a training; on one process it does nothing.

    BatchNorm normalises with the statistics of a process's own examples; its running statistics are the processes'
    mean, the same everywhere (``train.sync_batchnorm``: statistics of the whole batch). Other floating-point buffers
    are the first process's.

    Args:
        model: the network that is trained.
        shard: this process's part of a batch; None: there is but one process.
    """

    def __init__(self, model: nn.Module, shard: Shard | None) -> None:
        """Look for what is to be reduced."""
        self.model, self.shard = model, shard
        self.parameters: list[nn.Parameter] | None = None
        norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        found = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
        self.statistics: list[Tensor] = found
        known = {id(buffer) for buffer in found}
        self.others = [b for b in model.buffers() if b.is_floating_point() and id(b) not in known]
        self.wishes: deque[_Wish] = deque()

    def __call__(self, loss: Tensor, metrics: Metrics, wish: bool) -> tuple[Tensor, Metrics]:
        """Bring gradients and buffers together, and return loss and metrics of the whole batch.

        Values that are not finite take no part in the mean of a metric; in the loss they do.

        Args:
            loss: of this process's examples.
            metrics: means over them, or what is the same everywhere.
            wish: this process wishes to stop.
        """
        if self.shard is None:
            return loss, metrics
        share = self.shard.share
        gradients = self._gradients()
        torch._foreach_mul_(gradients, share)
        values = [value.to(loss) for value in metrics.values()]
        numbers = torch.stack([*values, loss, torch.full_like(loss, float(wish))])
        known = numbers.isfinite()
        numbers = torch.stack([torch.where(known, numbers, 0.0), known]) * share
        numbers[0, -2] = loss * share
        buffers = [buffer * share for buffer in self.statistics]
        buffers += [buffer.clone() if self.shard.first == 0 else torch.zeros_like(buffer) for buffer in self.others]
        add_up([*gradients, *buffers, numbers])
        if buffers:
            torch._foreach_copy_([*self.statistics, *self.others], buffers)
        self.wishes.append(_Wish(numbers[0, -1]))
        means = numbers[0] / numbers[1]
        pairs = zip(metrics.items(), means[:-2], strict=True)
        return numbers[0, -2], {name: mean.to(value) for (name, value), mean in pairs}

    def stops(self, wish: bool) -> bool:
        """Return whether all processes stop now: some process wished to."""
        if self.shard is None:
            return wish
        delay = DELAY if self.wishes and self.wishes[0].event is not None else 0
        return len(self.wishes) > delay and self.wishes.popleft().read()

    def _gradients(self) -> list[Tensor]:
        """Return the gradients of the parameters that have one on any process, zero where this one has none."""
        if self.parameters is None:
            asking = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            has = torch.tensor([parameter.grad is not None for parameter in asking], dtype=torch.int32)
            has = has.to(asking[0].device)
            dist.all_reduce(has)
            # The one host synchronisation, in the first step.
            self.parameters = [parameter for parameter, some in zip(asking, has.tolist(), strict=True) if some]
            self.spared = [parameter for parameter, some in zip(asking, has.tolist(), strict=True) if not some]
        if any(parameter.grad is not None for parameter in self.spared):
            raise RuntimeError(
                "a parameter that had no gradient in the first step has one now: on several processes the network must "
                "use the same parameters in every step"
            )
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class _Wish:
    """A number on the device, on its way to the host."""

    def __init__(self, number: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        self.number = number
        if number.is_cuda:
            self.number = torch.empty((), dtype=number.dtype, pin_memory=True)
            self.number.copy_(number, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def read(self) -> bool:
        if self.event is not None:
            self.event.synchronize()
        return bool(self.number > 0)
