"""A batch of anybody's own loop that several processes share under DistributedDataParallel.

A method that couples the examples of a batch needs all of them for the gradient of one process with the whole batch. In
a loop of one's own nobody says which processes share it, and an exchange that one of them does not take part in never
ends. So there is one only where the processes wait for each other in any case: where DistributedDataParallel brings
together the gradients of this very call. Elsewhere every process is by itself, and a warning says so.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dyart.boundary.model import Model
from dyart.data.ranks import Shard, team_here


def shard_here(count: int, device: torch.device) -> Shard:
    """Return which examples of all processes' this one's are, in the order of their ranks; every process must call it.

    Processes may have different numbers of them. Cost: one all-reduce of a number each, one host synchronisation.
    """
    team = team_here()
    counts = torch.zeros(team.count, dtype=torch.int64, device=device)
    counts[team.rank] = count
    dist.all_reduce(counts)
    every = counts.tolist()
    return Shard(sum(every[: team.rank]), count, sum(every))


def obstacle(model: Model) -> str | None:
    """Return why processes cannot share the batch of a call with this model; None: they can."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    wrapper = next((module for module in modules if isinstance(module, DistributedDataParallel)), None)
    if wrapper is None:
        return "no DistributedDataParallel is in the model that was given"
    if not wrapper.require_backward_grad_sync:
        return "inside no_sync() processes need not call alike"
    if wrapper._join_config.enable:
        return "with join() processes need not call alike"
    if not wrapper.training:
        return "the model is in eval mode, where processes need not call alike"
    if dist.get_world_size(wrapper.process_group) != dist.get_world_size():
        return "the model's process group has not all of them"
    return None
