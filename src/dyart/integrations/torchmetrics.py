"""Margins as a metric of torchmetrics: accumulated over batches, and over the processes of a distributed run."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dyart.attacks.radius import Radius
from dyart.boundary.points import BoundaryPoints
from dyart.evaluation.curve import resists_by_margins
from dyart.evaluation.settings import check_several

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise ImportError("a metric for torchmetrics needs its package: pip install torchmetrics") from error

QUANTILES = {"margin_q05": 0.05, "margin_q25": 0.25, "margin_q50": 0.5, "margin_q75": 0.75, "margin_q95": 0.95}


class MarginMetric(Metric):  # type: ignore[misc]
    """How far examples are from the decision boundary, and how many are farther than each radius.

        metric = MarginMetric(radii=["2/255", "8/255"])
        for images, labels in loader:
            metric.update(dyart.closest_boundary_points(model, images, labels))
        metric.compute()

    ``compute`` returns a flat dictionary of scalars, as Lightning's ``log_dict`` takes it (at the end of an epoch, then
    ``reset``): ``examples``; shares of them, ``accuracy``, ``found`` (a boundary point was found) and ``optimal`` (it
    is locally closest); over the found ones ``margin_mean`` and the quantiles ``margin_q05``, ``margin_q25``,
    ``margin_q50``, ``margin_q75`` and ``margin_q95``, nan where there is none; and for every radius
    ``robust_<radius>``, the share that is classified as labelled and has no boundary point within it: an upper bound of
    the robust accuracy.

    In a distributed run, all processes compute the values of all examples: counts are summed, margins (one number per
    example, so that quantiles are exact) gathered. An example that a sampler repeats to fill the last batch counts
    twice, as in every metric.

    Args:
        radii: numbers, or text such as ``"8/255"``, which names them in the result; they need the exact boundary.
        settings: of torchmetrics' ``Metric``: ``sync_on_compute``, ``process_group``, ...
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    examples: Tensor
    correct: Tensor
    found: Tensor
    optimal: Tensor
    robust: Tensor
    margins: list[Tensor] | Tensor

    def __init__(self, radii: Sequence[float | str] = (), **settings: Any) -> None:  # noqa: ANN401
        """Count nothing yet."""
        super().__init__(**settings)
        check_several(radii)
        self.radii = [Radius(radius) for radius in radii]
        self._kind: tuple[str, str] | None = None
        for name in ("examples", "correct", "found", "optimal"):
            self.add_state(name, default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("robust", default=torch.zeros(len(self.radii), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("margins", default=[], dist_reduce_fx="cat")

    def update(self, found: BoundaryPoints) -> None:
        """Take a batch's boundary points into account.

        Raises:
            ValueError: they are of another norm or boundary than those before: their margins have another unit.
        """
        kind = (found.norm, found.boundary)
        before = self._kind or kind
        if before != kind:
            raise ValueError(
                f"margins of one kind ({', '.join(kind)} boundary) after those of another ({', '.join(before)} "
                "boundary): take a metric for each"
            )
        self._kind = kind
        resisting = resists_by_margins(found, self.radii) if self.radii else {}
        self.examples += len(found)
        self.correct += found.correct.sum()
        # A signed search also finds points of examples outside their class: those have no margin to speak of.
        counted = found.found & found.inside
        self.found += counted.sum()
        self.optimal += (found.optimal & counted).sum()
        if resisting:
            self.robust += torch.stack([resisting[radius].sum() for radius in self.radii])
        assert isinstance(self.margins, list)
        self.margins.append(torch.where(counted, found.margin, torch.nan).detach())

    def reset(self) -> None:
        """Begin anew, also with margins of another kind."""
        super().reset()
        self._kind = None

    def compute(self) -> dict[str, Tensor]:
        """Return the values of all examples so far."""
        count = self.examples.clamp(min=1)
        values = {"examples": self.examples.clone()}
        values |= {"accuracy": self.correct / count, "found": self.found / count, "optimal": self.optimal / count}
        # A process that saw no example has an empty list, or what the others had.
        margins = dim_zero_cat(self.margins) if len(self.margins) else torch.empty(0, device=self.examples.device)
        margins = margins[~margins.isnan()].sort().values
        values["margin_mean"] = margins.mean()
        for name, share in QUANTILES.items():
            values[name] = _quantile(margins, share) if len(margins) else values["margin_mean"]
        return values | {f"robust_{radius}": n / count for radius, n in zip(self.radii, self.robust, strict=True)}


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """Return a quantile of numbers in order, interpolated; torch's own takes 16 million at most."""
    place = share * (len(ordered) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low)
