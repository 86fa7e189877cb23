"""This package inside other people's: Lightning, Hugging Face, torchmetrics, foolbox, adv-lib, scikit-learn.

Every name is imported when it is first asked for, with the package that it belongs to.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dyart.integrations.attack import dyart_attack
    from dyart.integrations.foolbox import ClosestBoundaryAttack
    from dyart.integrations.lightning import DyARTModule
    from dyart.integrations.sklearn import DyARTClassifier
    from dyart.integrations.torchmetrics import MarginMetric

__all__ = ["ClosestBoundaryAttack", "DyARTClassifier", "DyARTModule", "MarginMetric", "dyart_attack"]

_PLACES = {
    "ClosestBoundaryAttack": "foolbox",
    "DyARTClassifier": "sklearn",
    "DyARTModule": "lightning",
    "MarginMetric": "torchmetrics",
    "dyart_attack": "attack",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import the module that has the name."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names, imported or not."""
    return sorted({*globals(), *__all__})
