"""Auto-PGD (Croce and Hein, ICML 2020) for L-inf and L2: gradient ascent whose steps halve where progress ends.

The points are those of the authors' implementation from the same start, bit for bit on a CPU. That one looks up on the
host which examples moved on, at every step, while the GPU waits; here examples differ by masks alone: static shapes, no
host synchronisation.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.attacks.pgd import ATTACK_NORMS, AttackNorm, Objective
from dyart.boundary.margins import at_least_float32
from dyart.boundary.model import Model, logits_of
from dyart.boundary.norms import flat, per_row, rows_of
from dyart.boundary.validation import check_choice

# Shares of all steps: the first period, what each is shorter than the one before, the shortest; and the share of a
# period's steps that must raise the objective.
FIRST, SHORTER, SHORTEST, RISING = 0.22, 0.03, 0.06, 0.75
INERTIA = 0.25  # the share of the last move in a step
TINY = 1e-12


class Look(NamedTuple):
    """What one pass shows of a batch."""

    points: Tensor
    loss: Tensor
    gradient: Tensor
    right: Tensor


@torch.no_grad()
def auto_pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: Tensor,
    start: Tensor,
    steps: int = 100,
    *,
    norm: AttackNorm = "linf",
    objective: Objective,
) -> tuple[Tensor, Tensor]:
    """Return the last point of each example that is classified otherwise than labelled, and whether there is one.

    An example without one has its start. Cost: ``steps`` + 1 forward and backward passes.

    Args:
        model: a differentiable callable to logits.
        inputs: ``[N, ...]``, in [0, 1].
        labels: ``[N]``.
        radius: of every example's ball, ``[N]``.
        start: where each begins, like the inputs; brought into [0, 1].
        steps: after the first pass.
        norm: ``"linf"`` or ``"l2"``.
        objective: from logits and labels to what every example raises.
    """
    check_choice("norm", norm, ATTACK_NORMS)
    ball = per_row(radius, inputs)

    def look(points: Tensor) -> Look:
        with torch.enable_grad():
            leaf = points.detach().requires_grad_()
            logits = at_least_float32(logits_of(model(leaf)))
            loss = objective(logits, labels)
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return Look(points, loss.detach(), gradient, logits.detach().max(dim=1)[1] == labels)

    now = best = look(start.clamp(0.0, 1.0))
    found, fooled, before = now.points, ~now.right, now.points
    stride = 2.0 * ball
    earlier, rises = torch.zeros_like(now.loss), torch.zeros_like(now.loss)
    known, halved = best.loss, torch.ones_like(fooled)
    ends = dict(_periods(steps))
    for step in range(steps):
        last_move, before = now.points - before, now.points
        now = look(_moved(now, last_move, stride, inputs, ball, norm, INERTIA if step else 0.0))
        fooled = fooled | ~now.right
        found = torch.where(per_row(now.right, found), found, now.points)
        rises, earlier = rises + (now.loss > earlier), now.loss
        best = Look(*rows_of(now.loss > best.loss, now, best))
        if step in ends:
            slow = rises <= RISING * ends[step]
            halve = slow | (~halved & (known >= best.loss))
            halved, known, rises = halve, best.loss, torch.zeros_like(rises)
            stride = torch.where(per_row(halve, stride), stride / 2, stride)
            now = Look(*rows_of(halve, best, now))
    return found, fooled


@torch.no_grad()
def random_start(inputs: Tensor, radius: Tensor, norm: AttackNorm = "linf") -> Tensor:
    """Return a random point on every example's sphere, drawn on the CPU, as the authors do.

    Args:
        inputs: ``[N, ...]``.
        radius: ``[N]``.
        norm: ``"linf"`` or ``"l2"``.
    """
    drawn = (2 * torch.rand(inputs.shape) - 1 if norm == "linf" else torch.randn(inputs.shape)).to(inputs)
    length = per_row(flat(drawn).abs().amax(dim=1), drawn) if norm == "linf" else _length(drawn)
    return inputs + per_row(radius, inputs) * (drawn / (length + TINY))


def _periods(steps: int) -> Iterator[tuple[int, int]]:
    """Yield the last step of every period, and the period's length."""
    length, shorter, shortest = (max(int(share * steps), 1) for share in (FIRST, SHORTER, SHORTEST))
    end = length - 1
    while end < steps:
        yield end, length
        length = max(length - shorter, shortest)
        end += length


def _moved(
    now: Look, last_move: Tensor, stride: Tensor, inputs: Tensor, ball: Tensor, norm: AttackNorm, inertia: float
) -> Tensor:
    """Return the points after one step with inertia, within ball and box."""
    if norm == "linf":
        ahead = _into_linf_ball(now.points + stride * now.gradient.sign(), inputs, ball)
    else:
        ahead = _into_l2_ball(now.points + stride * _unit(now.gradient), inputs, ball)
    ahead = now.points + (ahead - now.points) * (1 - inertia) + last_move * inertia
    return _into_linf_ball(ahead, inputs, ball) if norm == "linf" else _into_l2_ball(ahead, inputs, ball)


def _into_linf_ball(points: Tensor, inputs: Tensor, ball: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(points, inputs - ball), inputs + ball).clamp(0.0, 1.0)


def _into_l2_ball(points: Tensor, inputs: Tensor, ball: Tensor) -> Tensor:
    away = points - inputs
    return (inputs + _unit(away) * torch.minimum(ball, _length(away))).clamp(0.0, 1.0)


def _unit(vectors: Tensor) -> Tensor:
    return vectors / (_length(vectors) + TINY)


def _length(vectors: Tensor) -> Tensor:
    return per_row(flat(vectors).pow(2).sum(dim=1).sqrt(), vectors)
