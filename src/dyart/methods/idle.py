"""Why DyART has no margin to raise in a batch: in a loop of one's own nobody else would say so."""

from torch import Tensor

from dyart.boundary.points import BoundaryPoints

FEW = 32  # examples: of a smaller batch none may be near by chance
GOOD = 0.2  # the share of the points below r0 that must be good enough


def why_idle(points: BoundaryPoints, kept: Tensor, r0: float) -> str | None:
    """Return in words why hardly any margin of a batch takes part, and what to do, or None. Host synchronisation.

    None for a small batch, too.

    Args:
        points: of the batch.
        kept: which of them are good enough, ``[N]``.
        r0: margins beyond it cost nothing.
    """
    near = points.found & (points.margin < r0)
    used, below = int((kept & near).sum()), int(near.sum())
    if len(points) < FEW or used > GOOD * below:
        return None
    shown = (
        f"in the first batch {used} of {len(points)} examples have a margin that takes part, others the clean loss: "
    )
    inside = int(points.inside.sum())
    if not inside:
        return shown + (
            "no example lies inside its class's boundary. Begin with a network that classifies well already, e.g. "
            "after some epochs on the clean loss"
        )
    if not below:
        return shown + (
            f"of {inside} examples inside their class none has a boundary point below r0={r0:.4g}. r0 is a distance in "
            "the units of the inputs, usually twice the radius to be robust at"
        )
    size = float(points.value[near].abs().median())
    return shown + (
        f"{below} boundary points lie below r0, {used} of them good enough (the median of |Phi| there is {size:.2g}; "
        "good is 0.1 at most). Logits as large as these need more steps, or keep='found', which takes all points"
    )
