"""Numbers that are not finite: found at once, named, and kept out of the weights where that is wanted.

Nothing here waits for a GPU. There a bad step is noted on the device, with what of it was bad, and said at the next
look.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from dyart.engine.weights import some

# So many bad batches one after the other are no accident: the weights are broken, or the data is.
MOST_IN_A_ROW = 20


class NotFiniteError(RuntimeError):
    """A loss, a gradient or a weight is not finite; the message names it."""

    def __init__(self, step: int, words: str) -> None:
        """Take the number of the step, from 1, and what of it is not finite."""
        super().__init__(words)
        self.step = step


class Guard:
    """Watches the steps of a training.

    Args:
        model: the network that is trained.
        device: where it is.
        skip: leave weights, buffers, momentum, their average and what the method keeps per example as they were before
            a bad step, and count it. Costs memory for a copy of them, and three kernels per tensor and step.
        waits: to look at a value would be to wait for the device: look when asked to, not at every step.
    """

    def __init__(self, model: nn.Module, device: torch.device, skip: bool = False, waits: bool = False) -> None:
        """Nothing bad was seen yet."""
        self.model, self.skip, self.waits = model, skip, waits
        self.named = list(model.named_parameters())
        # Infinite on purpose, as masks of attention are.
        self.masks = {name for name, buffer in model.named_buffers() if bool(buffer.isinf().any())}
        self.names: list[str] = []
        self.bad = torch.zeros((), dtype=torch.bool, device=device)
        self.first = torch.full((), -1, dtype=torch.int64, device=device)
        self.loss = self.norms = torch.zeros((), device=device)
        self.skipped, self.in_a_row = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        self.kept: list[tuple[Tensor, Tensor]] = []

    def clip(self, limit: float) -> Tensor:
        """Scale all gradients to a norm of at most ``limit`` and return the norm they had (as ``clip_grad_norm_``)."""
        found = [(name, parameter) for name, parameter in self.named if parameter.grad is not None]
        self.names = [name for name, _ in found]
        gradients = [parameter.grad for _, parameter in found if parameter.grad is not None]
        self.now = torch.stack(torch._foreach_norm(gradients)) if gradients else self.norms.new_zeros(0)
        total: Tensor = torch.linalg.vector_norm(self.now)
        nn.utils.clip_grads_with_norm_([parameter for _, parameter in found], limit, total)
        return total

    @torch.no_grad()
    def remember(self, more: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Before a step: keep what it may change, if bad ones are skipped. ``more``: besides network and optimizer."""
        if self.skip:
            self.kept = [(tensor, tensor.clone()) for tensor in self._changing(more, optimizer)]

    def look(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """After ``clip``, before the optimizer's step: note whether loss and gradients are finite.

        Raises:
            NotFiniteError: they are not, bad steps are not skipped, and looking costs nothing.
        """
        self.bad = ~(loss.isfinite() & norm.isfinite())
        # Of bad steps that are skipped, the first of those in a row: earlier ones are done with.
        new = self.bad & ((self.in_a_row == 0) if self.skip else (self.first < 0))
        self.first = torch.where(new, step, self.first)
        self.loss = torch.where(new, loss.detach().float(), self.loss)
        self.norms = torch.where(new, self.now, self.norms if self.norms.shape == self.now.shape else self.now)
        self.skipped = self.skipped + self.bad
        self.in_a_row = torch.where(self.bad, self.in_a_row + 1, 0)
        if not self.waits:
            self.check(unchanged=True)

    @torch.no_grad()
    def settle(self, more: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """After a step, also of the average: take a bad one back, if bad ones are skipped. No host synchronisation."""
        if not self.skip:
            return
        known = {id(tensor) for tensor, _ in self.kept}
        for tensor, before in self.kept:
            tensor.copy_(torch.where(self.bad, before, tensor))
        for tensor in self._changing(more, optimizer):  # momentum, which the first step makes
            if id(tensor) not in known:
                tensor.copy_(torch.where(self.bad, torch.zeros_like(tensor), tensor))
        self.kept = []

    def check(self, unchanged: bool = False, weights: bool = False) -> None:
        """Look at what was noted: a host synchronisation.

        Args:
            unchanged: the weights are those that the bad step began with, and may be at fault.
            weights: also look at the weights themselves, e.g. before they are saved.

        Raises:
            NotFiniteError: a step was bad and bad ones are not skipped, or too many of them came in a row, or a weight
                is not finite.
        """
        step = int(self.first)
        if self.skip and int(self.in_a_row) >= MOST_IN_A_ROW:
            raise NotFiniteError(step, f"{self._words(False)}; {int(self.in_a_row)} batches in a row were skipped")
        if step >= 0 and not self.skip:
            raise NotFiniteError(step, self._words(unchanged))
        if weights and (broken := self._broken()):
            raise NotFiniteError(-1, f"the weights {some(broken)}")  # now: an earlier bad step was skipped

    def _words(self, unchanged: bool) -> str:
        gradients = [name for name, good in zip(self.names, self.norms.isfinite().tolist(), strict=True) if not good]
        words = [] if bool(self.loss.isfinite()) else [f"the loss ({float(self.loss)})"]
        words += [f"the gradient of {some(gradients)}"] if gradients else []
        if unchanged and (broken := self._broken()):
            words.insert(0, f"the weights {some(broken)}, already before it")
        return ", ".join(words) or "the norm of all gradients"

    def _broken(self) -> list[str]:
        """Return the names of parameters and buffers that are not finite."""
        entries = [
            (name, tensor.detach())
            for name, tensor in (*self.named, *self.model.named_buffers())
            if tensor.is_floating_point() and name not in self.masks
        ]
        good = torch.stack([tensor.isfinite().all() for _, tensor in entries]).tolist() if entries else []
        return [name for (name, _), fine in zip(entries, good, strict=True) if not fine]

    def _changing(self, more: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
        yield from (parameter for _, parameter in self.named)
        yield from self.model.buffers()
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield from more
