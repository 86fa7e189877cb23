"""Boundary searches, by name."""

from collections.abc import Callable

from dyart.boundary.problem import Best, Evaluation
from dyart.boundary.solvers.fast import fast

SOLVERS: dict[str, Callable[..., tuple[Best, Evaluation]]] = {"fast": fast}
