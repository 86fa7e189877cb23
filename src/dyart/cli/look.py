"""What a preflight finds about a network, on stderr, before a boundary search."""

import sys

from torch import Tensor

from dyart.boundary.model import Model
from dyart.boundary.norms import Norm
from dyart.evaluation.preflight import preflight, stop_on_fatal

# Of the attacks, not of the search.
ELSEWHERE = {"few classes", "saturated loss"}


def look_at(model: Model, inputs: Tensor, labels: Tensor, norm: Norm, expected_accuracy: float | None = None) -> None:
    """Print what is worth knowing about a network and the examples, in [0, 1], that boundary points are searched for.

    Raises:
        PreflightError: the search would measure something else; the message says what.
    """
    findings = preflight(model, inputs, labels, norm=norm, bounds=(0.0, 1.0), expected_accuracy=expected_accuracy)
    stop_on_fatal(findings)
    for finding in findings:
        if finding.kind not in ELSEWHERE:
            print(finding, file=sys.stderr)
