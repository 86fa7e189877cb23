"""One batch over several processes: who has which examples, and what they tell each other.

A training on several processes takes the steps of one process with the same batch. Most of it needs nothing here: draws
are a function of an example's index, and a loss that is a mean over its examples is the processes' mean, weighted by
how many of them each has (the engine does that, with the gradients). What couples the examples of a batch is for the
method to gather: weights that are normalised over the batch, quantiles, what is kept per example.

On one process a batch has no shard, and every function here returns what it was given. In anybody's own loop, too, but
for methods that couple a batch under DistributedDataParallel (see ``Method.couples``).
"""

import pickle  # nosec B403  # only what this process has made itself
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

Result = TypeVar("Result")


@dataclass(frozen=True)
class Shard:
    """The rows of a batch that one process has: ``count`` of ``total``, from ``first`` on."""

    first: int
    count: int
    total: int

    @property
    def share(self) -> float:
        """Of the batch: the weight of this process's mean in the mean of all."""
        return self.count / self.total

    @property
    def rows(self) -> slice:
        """The rows themselves."""
        return slice(self.first, self.first + self.count)


def shard_of(total: int, rank: int, ranks: int) -> Shard | None:
    """Return the rows of one process out of several, as even as can be; None where there is but one process."""
    if ranks == 1:
        return None
    first, end = (total * place // ranks for place in (rank, rank + 1))
    return Shard(first, end - first, total)


def gathered(values: Tensor, shard: Shard | None) -> Tensor:
    """Return the values of the whole batch, ``[total, ...]``, in its order, from those of every process.

    Differentiable: an example's gradient is that of all processes' losses. Every process must call it, and must or must
    not differentiate it, alike. Cost: one all-reduce of the whole; no host synchronisation.

    Args:
        values: of this process's examples, ``[count, ...]``.
        shard: which they are; None: they are all.
    """
    if shard is None:
        return values
    if values.requires_grad:
        whole: Tensor = _Gathered.apply(values, shard)  # type: ignore[no-untyped-call]
        return whole
    return _all(values, shard)


def own(values: Tensor, shard: Shard | None) -> Tensor:
    """Return this process's rows of what belongs to the whole batch."""
    return values if shard is None else values[shard.rows]


def summed(gradients: Sequence[Tensor | None], like: Sequence[Tensor], shard: Shard | None) -> list[Tensor | None]:
    """Return the gradients of the whole batch's loss from those of every process's own: one all-reduce.

    Args:
        gradients: of the mean over this process's examples; None counts as zero.
        like: what they are gradients of.
        shard: of the batch; None: there is nothing to add.
    """
    if shard is None:
        return list(gradients)
    known = [torch.zeros_like(one) if g is None else g * shard.share for g, one in zip(gradients, like, strict=True)]
    add_up(known)
    return list(known)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace tensors, in place, by their sums over all processes: one all-reduce for every dtype among them."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        these = [tensor for tensor in tensors if tensor.dtype == dtype]
        together = torch.cat([tensor.reshape(-1) for tensor in these])
        dist.all_reduce(together)
        parts = together.split([tensor.numel() for tensor in these])
        torch._foreach_copy_(these, [part.view(tensor.shape) for part, tensor in zip(parts, these, strict=True)])


def align(*models: nn.Module) -> None:
    """Give every process the first one's parameters and buffers; call it where there are several."""
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, src=0)
            tensor.detach().copy_(whole)


class Team:
    """Processes that divide pieces of work among them: each does some, and all know every result.

    Args:
        rank: of this process.
        count: of processes.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        """One process, unless told otherwise."""
        self.rank, self.count = rank, count

    def every(self, value: Any) -> list[Any]:  # noqa: ANN401
        """Return what every process has here, in the order of their ranks: plain values, or tensors of the CPU."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def do(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of all pieces of work, in their order, of which each process does every ``count``-th.

        Every process calls it with the same pieces. Of several processes, tensors come back on the CPU.

        Raises:
            Exception: what a piece of work raised, on all processes.
        """
        if self.count == 1:
            return [work() for work in works]
        results: list[Any] = []
        failed: Exception | None = None
        for work in works[self.rank :: self.count]:
            try:
                results.append(tree_map_only(Tensor, Tensor.cpu, work()))
            except Exception as error:
                failed = _portable(error)
                break
        told = self.every((results, failed))
        for _, reason in told:
            if reason is not None:
                raise reason
        return [told[place % self.count][0][place // self.count] for place in range(len(works))]


ALONE = Team()


def team_here() -> Team:
    """Return the processes that this one was started with."""
    known = dist.is_available() and dist.is_initialized()
    return Team(dist.get_rank(), dist.get_world_size()) if known else ALONE


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent to other processes: itself, or its words."""
    try:
        pickle.loads(pickle.dumps(error))  # nosec B301  # made here
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Gathered(torch.autograd.Function):
    """The values of the whole batch."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shard: Shard) -> Tensor:  # noqa: ANN401
        ctx.shard = shard
        return _all(values, shard)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        # A process's loss is a mean over its own rows, of which its share counts in the end; that of the others' comes
        # with theirs.
        shard: Shard = ctx.shard
        whole = gradients[0] * shard.share
        dist.all_reduce(whole)
        return whole[shard.rows] / shard.share, None


def _all(values: Tensor, shard: Shard) -> Tensor:
    # Sums with zeros instead of a gathering: processes may have different numbers of rows.
    kind = torch.uint8 if values.dtype == torch.bool else values.dtype
    whole = values.new_zeros((shard.total, *values.shape[1:]), dtype=kind)
    whole[shard.rows] = values.to(kind)
    dist.all_reduce(whole)
    return whole.to(values.dtype)
