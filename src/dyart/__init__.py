"""Decision-boundary margins, the speed of the boundary under training, and margin-based robust training."""

import typing

from dyart.boundary.cost import Cost, ExponentialCost, check_cost
from dyart.boundary.gradient import margin_loss
from dyart.boundary.margins import logit_margin, soft_logit_margin
from dyart.boundary.points import BoundaryPoints, concat
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.speed import boundary_speed
from dyart.boundary.update import update_direction
from dyart.dynamics.monitor import BoundaryMonitor
from dyart.methods.dyart import DyART

if typing.TYPE_CHECKING:
    from dyart.evaluation.evaluate import evaluate

__version__ = "0.1.0"

__all__ = [
    "BoundaryMonitor",
    "BoundaryPoints",
    "Cost",
    "DyART",
    "ExponentialCost",
    "boundary_speed",
    "check_cost",
    "closest_boundary_points",
    "concat",
    "evaluate",
    "logit_margin",
    "margin_loss",
    "soft_logit_margin",
    "update_direction",
]


def __getattr__(name: str) -> typing.Any:  # noqa: ANN401
    """Import the evaluation when it is first asked for: it needs more than the rest."""
    if name == "evaluate":
        from dyart.evaluation.evaluate import evaluate

        globals()[name] = evaluate
        return evaluate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
