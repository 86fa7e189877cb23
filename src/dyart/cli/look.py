"""What is worth knowing about a network that boundary points are searched for, on stderr."""

import sys

import torch
from torch import Tensor

from dyart.boundary.model import Model, evaluation_mode, logits_of
from dyart.boundary.norms import Norm
from dyart.boundary.points import BoundaryPoints
from dyart.evaluation.guessing import guessing
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


def say_guessing(model: Model, found: BoundaryPoints, device: torch.device, batch: int, name: str = "") -> bool:
    """Print that a network predicts one class for all examples of a search, if it does, and return whether it does.

    Cost: one forward pass of every example, in eval mode and its own precision; none where the right ones show that
    there are several classes.

    Args:
        model: the network, on the device.
        found: of all examples, on any device.
        device: where batches go.
        batch: examples at a time.
        name: of the network, where there are several.
    """
    named = found.labels[found.correct].unique()
    if len(named) > 1 or not bool(found.correct[torch.isin(found.labels, named)].all()):
        return False
    with evaluation_mode(model), torch.no_grad():
        parts = [logits_of(model(part.to(device))).argmax(dim=1).cpu() for part in found.inputs.split(batch)]
    words = guessing(torch.cat(parts).numpy(), found.labels.cpu().numpy())
    if words is not None:
        print(f"{name}: {words}" if name else words, file=sys.stderr)
    return words is not None
