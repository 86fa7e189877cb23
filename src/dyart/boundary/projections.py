"""The closest point of a hyperplane inside a box, for p = inf, 2 and 1; and steps that shorten a displacement.

For an origin t, a hyperplane {z : offset + g.(z - t) = 0} and a box, the shortest displacement moves every
coordinate against the gradient, as far as its pace times a common level L, or as far as the box leaves room:

    d_i = direction_i min(L pace_i, room_i),    L such that  sum_i |g_i| min(L pace_i, room_i) = |offset|,

with pace 1 for p = inf and |g_i| for p = 2. The left side is concave, piecewise linear and increasing in L: Newton's
method from below rises monotonically and lands exactly. No sort, no search over breakpoints.

For p = 1 the steepest coordinates go first, each as far as the box leaves room: an order instead of a level. Such a
step jumps from corner to corner of the ball. ``shrink_onto_hyperplane`` is its version for a search: it stays near
where it comes from.
"""

import torch
from torch import Tensor

from dyart.boundary.norms import NORMS, Norm, positive
from dyart.boundary.norms import norm as norm_of

# Halvings of the threshold's interval, to rounding.
BISECTIONS = {torch.float32: 26, torch.float64: 54}
# Step sizes that a shrinking step tries, in powers of 2 around a sufficient one, and halvings of that interval.
OCTAVES, HALVINGS = 20.0, 20


def project_onto_hyperplane(
    origin: Tensor,
    gradient: Tensor,
    offset: Tensor,
    norm: Norm,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    rounds: int | None = None,
) -> Tensor:
    """Return the shortest displacement from ``origin`` onto a hyperplane, without leaving a box.

    Where the box is too small to reach the plane, the displacement goes as far as it can; where the
    gradient is zero, nothing moves.

    Args:
        origin: ``[N, D]``, inside the box; or ``[M, N, D]``, M origins for every hyperplane.
        gradient: ``[N, D]``, the hyperplane's normal.
        offset: ``[N]`` or ``[M, N]``, value of the affine function at the origin.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        lower: lower end of the box, broadcastable to ``[N, D]``; both ends or none.
        upper: upper end of the box.
        rounds: number of Newton rounds (p = inf, 2). A fixed number runs without host synchronisation and, when too
            small, stops short of the plane, never beyond it. None: until nothing changes.

    Returns:
        The displacement, in the shape and dtype of ``origin``.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {NORMS}, got {norm!r}")
    if (lower is None) != (upper is None):
        raise ValueError("give both lower and upper (infinite for no bound on that side), or none")
    if rounds is not None and rounds < 1:
        raise ValueError(f"rounds must be at least 1, or None, got {rounds}")
    # Scaled so that the largest slope is 1: squares of tiny gradients would underflow.
    steepness = gradient.abs()
    largest = positive(steepness.amax(dim=-1, keepdim=True))
    slope, needed = steepness / largest, offset.abs()[..., None] / largest
    direction = -offset.sign()[..., None] * gradient.sign()
    if lower is None or upper is None:
        room = torch.where(direction == 0, 0.0, torch.inf)
    else:
        # One of the two is the room, the other one its opposite end's; 0 times an infinite bound is no room.
        room = torch.maximum(direction * (upper - origin), direction * (lower - origin))
        room = room.nan_to_num_(nan=0.0, posinf=torch.inf).clamp_(min=0)
    if norm == "l1":
        return (direction * _steepest_first(needed, slope.expand_as(room), room)).to(origin.dtype)

    pace = slope if norm == "l2" else None  # 1 for p = inf: a product less in every round
    gain = slope if pace is None else slope * pace
    whole = gain.sum(dim=-1, keepdim=True)
    level = (needed / positive(whole)).clamp(max=torch.finfo(needed.dtype).max)
    if lower is None or upper is None:
        return (direction * _moved(level, pace)).to(origin.dtype)
    level = _fill(level, whole.expand_as(level), needed, slope, pace, gain, room, rounds)
    return (direction * torch.minimum(_moved(level, pace), room)).to(origin.dtype)


def shrink_onto_hyperplane(
    displacement: Tensor,
    gradient: Tensor,
    offset: Tensor,
    threshold: Tensor,
    origin: Tensor,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
) -> Tensor:
    """Return the displacement z that makes ||z||_1 + ||z - d||^2 / (2 threshold) least on a hyperplane or beyond it.

    A proximal step for p = 1: d moves along the gradient, all coordinates shrink by the threshold, short ones vanish,
    and the box cuts off the rest, with the one step size that reaches the plane: z = clip(shrink(d - size g)). It stays
    as it is exactly at the first-order optimal points: equal slopes of all coordinates that have moved, none steeper
    but those at their bounds. A large threshold gives the shortest way from the origin, a small one stays near d.

    Where the box is too small to reach the plane, z goes as far as it can. No host synchronisation.

    Args:
        displacement: d, ``[N, D]``, from ``origin``.
        gradient: g, ``[N, D]``, the hyperplane's normal.
        offset: ``[N]``, value of the affine function at the origin; the plane is {z : offset + g.z = 0}.
        threshold: ``[N]``, positive.
        origin: ``[N, D]``, inside the box.
        lower: lower end of the box, broadcastable to ``[N, D]``; both ends or none.
        upper: upper end of the box.
    """
    largest = positive(gradient.abs().amax(dim=1, keepdim=True))
    # At most so far that the largest step size that is tried is still a number.
    most = torch.finfo(gradient.dtype).max * 2.0 ** (-OCTAVES - 4)
    slope, needed = gradient / largest, (offset[:, None] / largest).clamp(-most, most)
    cut = threshold[:, None].clamp(max=most)
    low, high = (None, None) if lower is None or upper is None else (lower - origin, upper - origin)

    def shrunk(size: Tensor) -> Tensor:
        moved = displacement - size * slope
        moved = moved - torch.maximum(torch.minimum(moved, cut), -cut)
        return moved if low is None or high is None else torch.maximum(torch.minimum(moved, high), low)

    def gained(z: Tensor) -> Tensor:
        return -(slope * z).sum(dim=1, keepdim=True)

    # Without a box, the steepest coordinate alone reaches the plane with this step size. The gain rises with the size.
    enough = needed.clamp(min=0) + cut + (slope * displacement).abs().sum(dim=1, keepdim=True)
    enough = enough + displacement.abs().amax(dim=1, keepdim=True)
    below, above = torch.full_like(needed, -OCTAVES), torch.full_like(needed, OCTAVES)
    for _ in range(HALVINGS):
        middle = (below + above) / 2
        short = gained(shrunk(enough * middle.exp2())) < needed
        below, above = torch.where(short, middle, below), torch.where(short, above, middle)
    near, far = shrunk(enough * below.exp2()), shrunk(enough * above.exp2())
    # Between the two the path is all but straight: what is left of the way to the plane is exact.
    rest = ((needed - gained(near)) / positive(gained(far) - gained(near))).clamp(0, 1)
    return near + rest * (far - near)


def into_ball(displacement: Tensor, radius: Tensor, norm: Norm) -> Tensor:
    """Return the closest displacements, in the Euclidean norm, whose p-norm is at most ``radius``.

    For p = inf the long coordinates are cut; for p = 2 all shrink alike; for p = 1 all shrink by the same amount
    and the short ones vanish. No coordinate grows or changes sign, so that a point in a box around the origin of
    the displacement stays in it. No host synchronisation.

    Args:
        displacement: ``[N, D]``.
        radius: ``[N]``, at least 0; infinite: nothing changes.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {NORMS}, got {norm!r}")
    limit = radius[:, None].to(displacement.dtype)
    if norm == "linf":
        return torch.maximum(torch.minimum(displacement, limit), -limit)
    size = displacement.abs()
    length = norm_of(displacement, norm)[:, None]
    if norm == "l2":
        return displacement * torch.where(length > limit, limit / positive(length), 1.0)
    low, high = torch.zeros_like(limit), size.amax(dim=1, keepdim=True)
    for _ in range(BISECTIONS[displacement.dtype]):
        middle = (low + high) / 2
        beyond = (size - middle).clamp(min=0).sum(dim=1, keepdim=True) > limit
        low, high = torch.where(beyond, middle, low), torch.where(beyond, high, middle)
    return torch.where(length > limit, displacement.sign() * (size - high).clamp(min=0), displacement)


def _fill(
    level: Tensor,
    remaining: Tensor,
    needed: Tensor,
    slope: Tensor,
    pace: Tensor | None,
    gain: Tensor,
    room: Tensor,
    rounds: int | None,
) -> Tensor:
    """Return the level that reaches the plane, or beyond all room where the box ends before that, ``[..., 1]``.

    It begins with ``level``, which is right where all coordinates have room for it, ``remaining`` being their gains'
    sum. Minima and signs instead of masks: on a CPU, a choice by a mask takes 40 times as long.
    """
    highest = torch.finfo(level.dtype).max
    done = 0
    while True:
        before = remaining
        reach = torch.minimum(_moved(level, pace), room)
        remaining = (room - reach).sign_().mul_(gain).sum(dim=-1, keepdim=True)
        # Coordinates only ever stop moving: the same sum is the same coordinates. One that is no number stays so.
        if rounds is None and torch.equal(before.nan_to_num(), remaining.nan_to_num()):
            return level
        missing = needed - reach.mul_(slope).sum(dim=-1, keepdim=True)
        # Rounding must not lower the level: the rise is what ends the loop.
        risen = (level + (missing / positive(remaining)).clamp(min=0)).clamp(max=highest)
        level = torch.where(remaining > 0, risen, torch.where(missing > 0, highest, level))
        done += 1
        if done == rounds:
            return level


def _moved(level: Tensor, pace: Tensor | None) -> Tensor:
    return level if pace is None else level * pace


def _steepest_first(needed: Tensor, slope: Tensor, room: Tensor) -> Tensor:
    """Return how far each coordinate moves if the steepest ones use up their room first."""
    steepness, order = slope.sort(dim=-1, descending=True)
    room = room.gather(-1, order)
    gain = torch.where(steepness > 0, steepness * room, 0.0)
    before = torch.cat([torch.zeros_like(needed), gain.cumsum(dim=-1)[..., :-1]], dim=-1)
    moved = torch.minimum((needed - before).clamp(min=0) / positive(steepness), room)
    return torch.zeros_like(moved).scatter(-1, order, torch.where(steepness > 0, moved, 0.0))
