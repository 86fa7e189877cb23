"""Decision-boundary margins, the speed of the boundary under training, and margin-based robust training."""

from dyart.boundary.cost import Cost, ExponentialCost, check_cost
from dyart.boundary.gradient import margin_loss
from dyart.boundary.margins import logit_margin, soft_logit_margin
from dyart.boundary.points import BoundaryPoints, concat
from dyart.boundary.search import closest_boundary_points
from dyart.boundary.speed import boundary_speed
from dyart.boundary.update import update_direction
from dyart.methods.dyart import DyART

__version__ = "0.1.0"

__all__ = [
    "BoundaryPoints",
    "Cost",
    "DyART",
    "ExponentialCost",
    "boundary_speed",
    "check_cost",
    "closest_boundary_points",
    "concat",
    "logit_margin",
    "margin_loss",
    "soft_logit_margin",
    "update_direction",
]
