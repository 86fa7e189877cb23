"""Batches of a data set: shuffled, augmented and on the device, as a function of (seed, epoch).

A set that fits stays on the device as uint8 from the start; a larger one, and every auxiliary pool, streams: threads
gather the next batches into page-locked memory while the device works on this one.
"""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from dyart.boundary.validation import check_choice
from dyart.data import draws
from dyart.data.augment import Augment
from dyart.data.auxiliary import Auxiliary
from dyart.data.mapped import host_memory
from dyart.data.ranks import ALONE, Shard, Team, shard_of
from dyart.data.sets import Split

Residency = Literal["auto", "device", "stream"]
Part = tuple[Tensor, Tensor, Tensor]  # images, labels, indices

# Of the device's free memory: what a resident set may take. On a CPU it is a copy in the host's memory, of which "free"
# says little (what the system keeps of files is given back on demand): a share of all memory, and no more than this.
LARGEST_SHARE = 0.25
HOST_BYTES = 2 * 1024**3
AHEAD, WORKERS = 4, 4


@dataclass(frozen=True)
class Batch:
    """What a training method gets."""

    inputs: Tensor
    """float32 in [0, 1], ``[N, ...]``."""
    labels: Tensor
    """int64, ``[N]``; after cutmix, of the larger part of the image."""
    index: Tensor
    """int64, ``[N]``: the example's place in the training set; auxiliary examples come after all others."""
    key: Tensor
    """int64, 0-dimensional: of the draws that belong to this step (see ``draws``)."""
    targets: Tensor | None = None
    """``[N, K]``: label distributions, where images were mixed or labels smoothed."""
    placement: Tensor | None = None
    """``[N, 3]``: where the images lie in their originals (see ``dyart.data.placement``); None: they were not moved."""
    shard: Shard | None = None
    """Which examples of the whole batch these are, where several processes share it (see ``dyart.data.ranks``); if
    batches are worked on in parts, of every part."""

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)


class Loader:
    """Training batches. An epoch is ``len(indices) // batch_size`` of them; the rest of the permutation is left out.

    Args:
        split: images and labels.
        indices: of the examples to train on.
        batch_size: examples per step, auxiliary ones included.
        seed: of order and augmentation.
        device: where batches go.
        augment: what is done to every image.
        classes: number of classes; needed for cutmix and smoothing.
        auxiliary: a pool to mix in; an epoch keeps its number of steps and sees fewer real images.
        residency: ``"device"``, ``"stream"``, or ``"auto"``: on the device if the set takes at most a quarter of its
            free memory (on a CPU: of all memory, and at most 2 GiB).
        smoothing: share of every label that is spread over all classes.
        team: the processes that share every batch; this one yields its own examples.
        parts: that batches are worked on in, equal ones; every process has a share of each.
    """

    def __init__(
        self,
        split: Split,
        indices: np.ndarray,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        augment: Augment = Augment(),  # noqa: B008  # frozen
        classes: int = 0,
        auxiliary: Auxiliary | None = None,
        residency: Residency = "auto",
        smoothing: float = 0.0,
        team: Team = ALONE,
        parts: int = 1,
    ) -> None:
        """Put the set on the device, or get ready to stream it."""
        if not 1 <= batch_size <= len(indices):
            raise ValueError(
                f"the batch size is {batch_size}, and there are {len(indices)} training images: "
                f"use train.batch_size of at most {len(indices)}"
            )
        check_choice("residency", residency, get_args(Residency))
        if (augment.cutmix or smoothing) and classes < 2:
            raise ValueError(f"cutmix and smoothing mix labels: they need the number of classes, got {classes}")
        if not 0 <= smoothing < 1:
            raise ValueError(f"label smoothing is a share from 0 to below 1, got {smoothing}")
        if batch_size // parts < team.count:
            raise ValueError(
                f"{team.count} processes share every {batch_size // parts} examples: each must have one, so use fewer "
                "processes, a larger train.batch_size or a smaller train.accumulate"
            )
        if auxiliary is not None:
            _check_alike(split.images, auxiliary.split.images)
        _check_sizes(augment, split.images.shape[1:])
        self.device = torch.device(device)
        self.indices = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        self.batch_size, self.seed, self.augment, self.classes = batch_size, seed, augment, classes
        self.auxiliary, self.total, self.smoothing = auxiliary, len(split), smoothing
        self.split, self.shard = split, shard_of(batch_size // parts, team.rank, team.count)
        self.rows, self.kept = _rows(self.shard, batch_size, parts, before=augment.cutmix > 0)
        resident = residency == "device" or (residency == "auto" and _fits(split.images, self.device))
        self.source = _Resident(split, self.device) if resident else _Streamed(split, self.device)
        self.pool = None if auxiliary is None else _Streamed(auxiliary.split, self.device)

    @property
    def examples(self) -> int:
        """Number of examples that batches may hold: indices are below it, auxiliary ones included."""
        return self.total + (0 if self.auxiliary is None else len(self.auxiliary.split))

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return len(self.indices) // self.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, from step ``start`` on."""
        order = self.indices[draws.permutation(draws.key(self.seed, "order", epoch), len(self.indices))]
        steps = range(epoch * len(self) + start, (epoch + 1) * len(self))
        extra = 0 if self.auxiliary is None else self.auxiliary.count(self.batch_size)
        real = self.batch_size - extra
        wanted = [order[place : place + real] for place in ((step - epoch * len(self)) * real for step in steps)]
        with ExitStack() as readers:  # an epoch that is left midway stops reading at once
            if self.pool is None:
                parts = readers.enter_context(closing(self.source.gather([part[self.rows] for part in wanted])))
                for step in steps:
                    yield self._finished(*next(parts), epoch, step)
                return
            mixes = [self._mix(step, real) for step in steps]
            both = zip(wanted, mixes, strict=True)
            parts = readers.enter_context(closing(self.source.gather([part[mix.real] for part, mix in both])))
            drawn = [self._drawn(step, extra)[mix.extra] for step, mix in zip(steps, mixes, strict=True)]
            pools = readers.enter_context(closing(self.pool.gather(drawn)))
            for step, mix in zip(steps, mixes, strict=True):
                yield self._finished(*self._joined(next(parts), next(pools), mix.place), epoch, step)

    def _drawn(self, step: int, count: int) -> Tensor:
        assert self.auxiliary is not None
        stream = draws.key(self.seed, "auxiliary", step)
        return draws.integers(stream, torch.arange(count), len(self.auxiliary.split))

    def _mix(self, step: int, real: int) -> "_Mix":
        """Return how a batch is put together of both kinds, shuffled, so that every process gets both."""
        order = draws.permutation(draws.key(self.seed, "mix", step), self.batch_size)[self.rows]
        ours = order < real
        first = int(ours.sum())
        place = torch.where(ours, ours.cumsum(0) - 1, first + (~ours).cumsum(0) - 1)
        return _Mix(order[ours], order[~ours] - real, place)

    def _joined(self, real: Part, extra: Part, place: Tensor) -> Part:
        extra = (extra[0], extra[1], extra[2] + self.total)
        place = _sent(place, self.device)
        images, labels, index = (torch.cat(pair)[place] for pair in zip(real, extra, strict=True))
        return images, labels, index

    def _finished(self, images: Tensor, labels: Tensor, index: Tensor, epoch: int, step: int) -> Batch:
        placement = self.augment.placement(images, index, self.seed, epoch)
        images = self.augment(images, index, self.seed, epoch, placement)
        targets = None
        if self.augment.cutmix or self.smoothing:
            images, partner, share = self.augment.mixed(images, index, self.seed, epoch)
            one_hot = torch.nn.functional.one_hot(labels, self.classes).float()
            targets = (1 - share[:, None]) * one_hot + share[:, None] * one_hot[partner]
            targets = (1 - self.smoothing) * targets + self.smoothing / self.classes
            labels = torch.where(share > 0.5, labels[partner], labels)
        key = torch.full((), draws.key(self.seed, "step", step), dtype=torch.int64, device=self.device)
        if self.kept is not None:
            kept = _sent(self.kept, self.device)
            images, labels, index = images[kept], labels[kept], index[kept]
            targets = None if targets is None else targets[kept]
            placement = None if placement is None else placement[kept]
        return Batch(to_unit(images), labels, index, key, targets, placement, self.shard)


def as_tensors(split: Split, rows: slice | np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return some examples of a split, float32 in [0, 1] and never augmented, and their labels, on a device."""
    images = torch.from_numpy(np.array(split.images[rows])).to(device)
    return to_unit(images), torch.from_numpy(np.array(split.labels[rows], dtype=np.int64)).to(device)


def to_unit(images: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1]; float32 inputs as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


class _Mix(NamedTuple):
    """Which real and which auxiliary examples of a step are this process's, and where they go among each other."""

    real: Tensor
    extra: Tensor
    place: Tensor


def _rows(shard: Shard | None, batch_size: int, parts: int, before: bool) -> tuple[slice | Tensor, Tensor | None]:
    """Return the rows of a batch to read, and which of those to keep; None: all.

    Args:
        shard: the rows of every part; None: all.
        batch_size: rows of all parts.
        parts: how many there are.
        before: read the row before each as well, with which cutmix mixes it.
    """
    if shard is None:
        return slice(None), None
    each = torch.arange(shard.first, shard.first + shard.count)
    if before:
        each = torch.cat([each[:1] - 1, each])
    begins = torch.arange(parts) * shard.total
    rows = ((begins[:, None] + each) % batch_size).reshape(-1)
    return rows, torch.arange(len(rows)).reshape(parts, -1)[:, 1:].reshape(-1) if before else None


def _fits(images: np.ndarray, device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(images.nbytes <= LARGEST_SHARE * torch.cuda.mem_get_info(device)[0])
    return bool(images.nbytes <= min(LARGEST_SHARE * host_memory(), HOST_BYTES))


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on the device, without waiting for the device's work so far."""
    # Only page-locked memory is copied while the host goes on.
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _check_alike(images: np.ndarray, pool: np.ndarray) -> None:
    if (pool.dtype, pool.shape[1:]) != (images.dtype, images.shape[1:]):
        raise ValueError(
            f"auxiliary images are {pool.dtype} {pool.shape[1:]}, those of the data set {images.dtype} "
            f"{images.shape[1:]}: they must be alike to share a batch"
        )


def _check_sizes(augment: Augment, shape: tuple[int, ...]) -> None:
    smallest = min(shape[1:]) if len(shape) == 3 else None
    for name, size in (("crop", augment.crop), ("cutout", augment.cutout)):
        if smallest is not None and size >= smallest:
            raise ValueError(
                f"data.{name} is {size} pixels, and images are {'x'.join(map(str, shape))}: nothing may be left. "
                "data.crop is the padding, e.g. 4, and data.cutout the side of a square, e.g. 8"
            )


class _Resident:
    """A set that lives on the device."""

    def __init__(self, split: Split, device: torch.device) -> None:
        # A memory map opened for reading cannot be shared with torch.
        self.images = torch.from_numpy(np.array(split.images, order="C")).to(device)
        self.labels = torch.from_numpy(np.array(split.labels, dtype=np.int64)).to(device)
        self.device = device

    def gather(self, wanted: list[Tensor]) -> Generator[Part, None, None]:
        for index in wanted:
            index = _sent(index, self.device)
            yield self.images[index], self.labels[index], index


class _Streamed:
    """A set that stays on the host: threads read ahead."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.split, self.device = split, device

    def gather(self, wanted: list[Tensor]) -> Generator[Part, None, None]:
        with ThreadPoolExecutor(WORKERS) as workers:
            pending: deque[Future[Part]] = deque()
            waiting = iter(wanted)
            try:
                for index in waiting:
                    pending.append(workers.submit(self._read, index))
                    if len(pending) > AHEAD:
                        yield self._moved(pending.popleft())
                while pending:
                    yield self._moved(pending.popleft())
            finally:
                for left in pending:
                    left.cancel()

    def _read(self, index: Tensor) -> Part:
        # In the file's order: neighbouring reads share pages.
        rows, back = torch.unique(index, return_inverse=True)
        images = torch.from_numpy(np.ascontiguousarray(self.split.images[rows.numpy()]))[back]
        labels = torch.from_numpy(np.asarray(self.split.labels[rows.numpy()], dtype=np.int64))[back]
        if self.device.type == "cuda":
            return images.pin_memory(), labels.pin_memory(), index.pin_memory()
        return images, labels, index

    def _moved(self, part: "Future[Part]") -> Part:
        images, labels, index = (tensor.to(self.device, non_blocking=True) for tensor in part.result())
        return images, labels, index
