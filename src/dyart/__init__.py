"""Decision-boundary margins, the speed of the boundary under training, and margin-based robust training."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from dyart.boundary.cost import Cost, ExponentialCost, check_cost
    from dyart.boundary.gradient import margin_loss
    from dyart.boundary.margins import logit_margin, soft_logit_margin
    from dyart.boundary.points import BoundaryPoints, concat
    from dyart.boundary.search import closest_boundary_points
    from dyart.boundary.speed import boundary_speed
    from dyart.boundary.update import update_direction
    from dyart.dynamics.monitor import BoundaryMonitor
    from dyart.evaluation.evaluate import evaluate
    from dyart.methods.dyart import DyART

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

# Where the names are: they are imported when they are first asked for, so that the command line answers without torch.
_PLACES = {
    "BoundaryMonitor": "dyart.dynamics.monitor",
    "BoundaryPoints": "dyart.boundary.points",
    "Cost": "dyart.boundary.cost",
    "DyART": "dyart.methods.dyart",
    "ExponentialCost": "dyart.boundary.cost",
    "boundary_speed": "dyart.boundary.speed",
    "check_cost": "dyart.boundary.cost",
    "closest_boundary_points": "dyart.boundary.search",
    "concat": "dyart.boundary.points",
    "evaluate": "dyart.evaluation.evaluate",
    "logit_margin": "dyart.boundary.margins",
    "margin_loss": "dyart.boundary.gradient",
    "soft_logit_margin": "dyart.boundary.margins",
    "update_direction": "dyart.boundary.update",
}


def __getattr__(name: str) -> typing.Any:  # noqa: ANN401
    """Import a public name, or a package such as ``dyart.boundary``, when it is first asked for."""
    if name in _PLACES:
        value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
        return value
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names that are there and those that can be asked for."""
    return sorted({*globals(), *__all__})
