"""What a solver sees: a batch of flat inputs in a box, and a counted margin function with its gradient."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dyart.boundary.kernels import compiled
from dyart.boundary.margins import (
    Boundary,
    at_least_float32,
    boundary_value,
    closest_rival,
    rivals_by_logit,
    soft_logit_margin,
)
from dyart.boundary.model import Model, logits_of, ordinary
from dyart.boundary.norms import Norm, dual_norm, flat, rows_of
from dyart.boundary.norms import norm as norm_of
from dyart.boundary.projections import project_onto_hyperplane, shrink_onto_hyperplane

# In the error of a compiled graph that gives its memory away in its backward pass, and so has no second one.
DONATED = "donated buffers"


class Evaluation(NamedTuple):
    """The margin function at a batch of points, oriented so that it is positive on the inputs' side."""

    value: Tensor
    """``[N]``; negative across the boundary."""
    followed: Tensor
    """``[N]``: the function to linearise, the value itself or the margin against one rival."""
    gradient: Tensor
    """``[N, D]``: of ``followed``."""
    rival: Tensor
    """``[N]``: the largest other class."""
    correct: Tensor
    """``[N]``: the largest logit is the label's."""
    aimed: Tensor
    """``[N]``: may go on aiming: has not crossed to another class yet (from outside: has not crossed yet)."""


class Best(NamedTuple):
    """The closest point across the boundary so far; distance inf where there is none."""

    distance: Tensor
    points: Tensor
    value: Tensor
    gradient: Tensor
    rival: Tensor

    @property
    def found(self) -> Tensor:
        """Where a point was found, ``[N]``."""
        return self.distance.isfinite()

    def where(self, keep: Tensor, other: "Best") -> "Best":
        """Return this one's rows where ``keep`` holds, and the other's elsewhere."""
        return Best(*rows_of(keep, self, other))

    def insert(self, rows: Tensor, part: "Best") -> "Best":
        """Return a copy with ``part`` at ``rows``."""
        return Best(*(whole.index_copy(0, rows, new) for whole, new in zip(self, part, strict=True)))

    def closer(self, other: "Best") -> "Best":
        """Return the closer point of the two, row by row."""
        return self.where(self.distance <= other.distance, other)


@dataclass
class Problem:
    """Find, for every input, the closest point where the margin function is zero.

    All geometry is on flat tensors ``[N, D]`` in float32 or better; the model sees the inputs' shape and dtype.
    """

    model: Model
    inputs: Tensor
    labels: Tensor
    norm: Norm
    boundary: Boundary
    beta: float
    lower: Tensor | None
    upper: Tensor | None
    outside: bool = False
    """All inputs are outside their class, and look for the way in; otherwise all are inside."""
    rounds: int | None = None
    """Newton rounds of a projection; None: to convergence (needs host synchronisation)."""
    compiled: bool = False
    """Compile the work between the passes (of steps for p = inf and 2): on a GPU it is many small kernels otherwise."""
    forward: int = field(default=0, init=False)
    backward: int = field(default=0, init=False)
    lost: Tensor | None = field(default=None, init=False)
    """``[N]``: a point was found, and evaluated anew it was not across the boundary any more; None: none was."""

    def __post_init__(self) -> None:
        """Flatten once."""
        self.origin = at_least_float32(flat(self.inputs.detach()))
        example = self.inputs.shape[1:]
        low, high = self.lower, self.upper
        self.low = None if low is None else at_least_float32(low).expand(example).reshape(1, -1)
        self.high = None if high is None else at_least_float32(high).expand(example).reshape(1, -1)

    def evaluate(self, x: Tensor, target: Tensor | None = None, aim: Tensor | None = None) -> Evaluation:
        """Return value and gradient at ``x``: one forward and one backward pass.

        Where ``aim`` holds, the function followed is the margin against the class ``target`` instead of the largest
        rival, unless ``x`` has crossed to another class: that one is closer then. Across the soft boundary it is
        always the soft margin.
        """
        with torch.enable_grad():
            points = self._shown(x).requires_grad_()
            output = self._logits(points)
            # The margin function has a graph of its own, on the logits as they are.
            logits = ordinary(output).requires_grad_(output.is_floating_point())
            score = compiled(_score) if self.compiled else _score
            value, rival, correct = score(logits, self.labels, self.boundary, float(self.beta))
            value = self.orient(value)
            followed = value
            aimed = torch.zeros_like(self.labels, dtype=torch.bool) if aim is None else aim
            if target is not None:
                against = self.against(logits, target)
                aimed = aimed & ((value >= 0) | ((against < 0) & (self.boundary == "exact")))
                followed = torch.where(aimed, against, value)
            if self.outside:
                # From there an example must get past every rival at once. Until it has, it follows the soft margin,
                # which sees them all and is positive inside only.
                aimed = aimed & (value >= 0)
                soft = self.orient(soft_logit_margin(logits, self.labels, self.beta))
                followed = torch.where(aimed, soft, value)
            (slope,) = torch.autograd.grad(followed.sum(), logits)
            gradient = self._gradient(output, points, slope)
        value, followed = (self._plain(tensor) for tensor in (value, followed))
        return Evaluation(value, followed, gradient, rival, correct, aimed)

    def linearise(self, x: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values ``[M, N]`` and gradients ``[M, N, D]`` of pieces of the boundary at ``x``, and the logits.

        The pieces are those against ``rivals``, ``[N, M]``. One forward pass and M backward passes; M more forward
        passes where a graph allows one backward pass only, as a compiled model's does once it has met several shapes.
        """
        with torch.enable_grad():
            points, pieces, logits = self._pieces(x, rivals)
            gradients = list(self._gradients(x, rivals, points, pieces))
        return self._plain(torch.stack(pieces)), torch.stack(gradients), logits.detach()

    def nearest_piece(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return value ``[N]`` and gradient ``[N, D]`` of the nearest piece as linearised, and the least value ``[N]``.

        Of the pieces against all other classes, or the one piece of the soft boundary: passes as for ``linearise``, and
        the memory of a few gradients however many there are.
        """
        with torch.enable_grad():
            points, pieces, _ = self._pieces(x, None)
            values = self._plain(torch.stack(pieces))
            distance, value, nearest = torch.full_like(values[0], torch.inf), values[0], torch.zeros_like(self.origin)
            for one, gradient in zip(values, self._gradients(x, None, points, pieces), strict=True):
                slope = dual_norm(gradient, self.norm)
                reach = one.abs() / slope.clamp(min=torch.finfo(slope.dtype).tiny)
                closer = reach < distance
                distance, value = torch.where(closer, reach, distance), torch.where(closer, one, value)
                nearest = torch.where(closer[:, None], gradient, nearest)
        return value, nearest, values.amin(dim=0)

    def _gradients(self, x: Tensor, rivals: Tensor | None, points: Tensor, pieces: list[Tensor]) -> Iterator[Tensor]:
        """Yield the gradient of every piece that ``_pieces`` has returned."""
        for number, piece in enumerate(pieces):
            ones = torch.ones_like(piece)
            try:
                gradient = self._gradient(piece, points, ones, keep=True)
            except RuntimeError as error:
                if DONATED not in str(error):
                    raise
                leaf, again, _ = self._pieces(x, rivals)
                gradient = self._gradient(again[number], leaf, ones)
            yield gradient

    def _pieces(self, x: Tensor, rivals: Tensor | None) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return the points as a leaf, the values there against some rivals (None: all pieces), and the logits."""
        points = self._shown(x).requires_grad_()
        logits = self._logits(points)
        if rivals is None and self.boundary == "soft":
            return points, [self.orient(boundary_value(logits, self.labels, self.boundary, self.beta))], logits
        rivals = rivals_by_logit(logits.detach(), self.labels) if rivals is None else rivals
        return points, [self.against(logits, rival) for rival in rivals.unbind(dim=1)], logits

    def value(self, x: Tensor) -> Tensor:
        """Return the oriented value at ``x``: one forward pass."""
        return self.look(x)[0]

    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the oriented value at ``x``, and whether the largest logit is the label's: one forward pass."""
        with torch.no_grad():
            logits = self._logits(self._shown(x))
            value = self.orient(boundary_value(logits, self.labels, self.boundary, self.beta))
        return self._plain(value), logits.argmax(dim=1) == self.labels

    def _shown(self, x: Tensor) -> Tensor:
        """Return flat points as the model sees them, as a leaf: compiled models warn of others."""
        return x.detach().to(self.inputs.dtype).reshape(self.inputs.shape)

    def _logits(self, points: Tensor) -> Tensor:
        self.forward += 1
        return logits_of(self.model(points))

    def against(self, logits: Tensor, rival: Tensor) -> Tensor:
        """Return the oriented margins of logits against one class each, ``[N]``."""
        scores = at_least_float32(logits)
        difference = scores.gather(1, self.labels[:, None]) - scores.gather(1, rival[:, None])
        return self.orient(difference[:, 0])

    def _gradient(self, values: Tensor, points: Tensor, slope: Tensor, keep: bool = False) -> Tensor:
        gradient = None
        if values.requires_grad:
            (gradient,) = torch.autograd.grad(values, points, slope, retain_graph=keep, allow_unused=True)
        if gradient is None:
            raise ValueError(
                "the logits do not depend on the inputs through differentiable operations: the model must be made of "
                "torch operations with gradients (no .detach(), argmax, rounding or numpy on the way, and no "
                "torch.no_grad() or torch.inference_mode() around it)"
            )
        self.backward += 1
        return flat(gradient).to(self.origin.dtype)

    def _plain(self, value: Tensor) -> Tensor:
        """Return a value apart from its graph, in the dtype of all geometry, whatever the model's is."""
        return value.detach().to(self.origin.dtype)

    def orient(self, value: Tensor) -> Tensor:
        """Return ``value`` with the sign that makes it positive on the inputs' side."""
        return -value if self.outside else value

    def unorient(self, best: Best) -> Best:
        """Return ``best`` with value and gradient of the margin function as it is."""
        return best._replace(value=-best.value, gradient=-best.gradient) if self.outside else best

    def part(self, rows: Tensor, outside: bool) -> "Problem":
        """Return the problem of some of the examples, all of which are inside their class, or outside."""
        return dataclasses.replace(self, inputs=self.inputs[rows], labels=self.labels[rows], outside=outside)

    def into_box(self, x: Tensor) -> Tensor:
        """Return ``x`` inside the box, rounded as the model will see it."""
        if self.low is not None and self.high is not None:
            x = torch.clamp(x, self.low, self.high)
        return x.to(self.inputs.dtype).to(self.origin.dtype)

    def project(self, origin: Tensor, gradient: Tensor, offset: Tensor) -> Tensor:
        """Return the shortest displacement from ``origin`` onto a hyperplane, without leaving the box."""
        return project_onto_hyperplane(origin, gradient, offset, self.norm, self.low, self.high, self.rounds)

    def shrink(self, displacement: Tensor, gradient: Tensor, offset: Tensor, threshold: Tensor) -> Tensor:
        """Return a displacement from the inputs across a hyperplane, near the given one and shorter for p = 1."""
        return shrink_onto_hyperplane(displacement, gradient, offset, threshold, self.origin, self.low, self.high)

    def distance(self, x: Tensor) -> Tensor:
        """Return how far ``x`` is from the inputs, ``[N]``."""
        return norm_of(x - self.origin, self.norm)

    def candidate(self, x: Tensor, now: Evaluation) -> Best:
        """Return ``x`` as a result, at infinite distance where it is not across the boundary."""
        distance = torch.where(now.value < 0, self.distance(x), torch.inf)
        return Best(distance, x, now.value, now.gradient, now.rival)

    def renew(self, best: Best) -> Best:
        """Return ``best`` with value, gradient and rival evaluated anew: one forward and one backward pass."""
        return self.renewed(best, self.evaluate(best.points))

    def renewed(self, best: Best, now: Evaluation) -> Best:
        """Return ``best`` as its points are ``now``. One that is not across the boundary any more is ``lost``."""
        renewed = best._replace(value=now.value, gradient=now.gradient, rival=now.rival)
        across = now.value < 0
        lost = best.found & ~across
        self.lost = lost if self.lost is None else self.lost | lost
        return renewed.where(best.found & across, self.nothing())

    def nothing(self) -> Best:
        """Return the result before any point was found: the inputs themselves, at infinite distance."""
        row = self.origin.new_full((len(self.origin),), torch.inf)
        rival = torch.full_like(self.labels, -1)
        return Best(row, self.origin, row, torch.zeros_like(self.origin), rival)


def _score(logits: Tensor, labels: Tensor, boundary: Boundary, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the margin function, to be differentiated; the largest other class; whether the label is the largest."""
    fixed = logits.detach()
    return boundary_value(logits, labels, boundary, beta), closest_rival(fixed, labels), fixed.argmax(dim=1) == labels


Tick = Callable[[], None]


def no_tick() -> None:
    """Report progress to nobody."""
