"""Why DyART has no margin to raise in a batch: in a loop of one's own nobody else would say so."""

from torch import Tensor

from dyart.boundary.points import BoundaryPoints

FEW = 32  # examples: of a smaller batch none may be near by chance


def why_idle(points: BoundaryPoints, kept: Tensor, r0: float) -> str | None:
    """Return in words why no margin of a batch takes part, and what to do; None where one does. Host synchronisation.

    None for a small batch, too.

    Args:
        points: of the batch.
        kept: which of them are good enough, ``[N]``.
        r0: margins beyond it cost nothing.
    """
    near = points.found & (points.margin < r0)
    if len(points) < FEW or bool((kept & near).any()):
        return None
    nothing = "no margin of the first batch takes part, and the clean loss is trained on alone: "
    inside = int(points.inside.sum())
    if not inside:
        return nothing + (
            "no example lies inside its class's boundary. Begin with a network that classifies well already, e.g. "
            "after some epochs on the clean loss"
        )
    if not bool(near.any()):
        return nothing + (
            f"of {inside} examples inside their class none has a boundary point below r0={r0:.4g}. r0 is a distance in "
            "the units of the inputs, usually twice the radius to be robust at"
        )
    size = float(points.value[near].abs().median())
    return nothing + (
        f"{int(near.sum())} boundary points lie below r0, and none is good enough (|Phi| there is {size:.2g}; `keep` "
        "takes 0.1 at most). Logits as steep as these need more steps; keep='found' takes all points"
    )
