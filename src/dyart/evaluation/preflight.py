"""Is this model, with these examples, what attacks can be run on? Asked before any attack, answered in a second or two.

Robust accuracy that is too high looks like success: inputs of another range, saturated losses and vanishing gradients
all raise it. Every check here has filled issue trackers of evaluation tools.
"""

import torch
from torch import Tensor

from dyart.boundary.model import Model, evaluation_mode, ieee_float32, ordinary, unchanged
from dyart.boundary.norms import Norm
from dyart.boundary.validation import Bounds
from dyart.evaluation.findings import Finding
from dyart.evaluation.preflight_gradients import gradient_findings
from dyart.evaluation.preflight_inputs import input_findings, label_findings
from dyart.evaluation.preflight_outputs import (
    accuracy_findings,
    batch_findings,
    class_findings,
    mode_findings,
    output_findings,
    read_outputs,
    repeat_findings,
)

__all__ = ["Finding", "PreflightError", "preflight", "stop_on_fatal"]

# Examples: for the accuracy (a forward pass), for gradients, and one by one.
SAMPLE, GRADIENTS, SINGLE = 512, 64, 8
BATCH = 128


class PreflightError(ValueError):
    """A fatal finding: the evaluation would measure something else than the model's robustness."""


def preflight(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    norm: Norm = "linf",
    bounds: Bounds = (0.0, 1.0),
    expected_accuracy: float | None = None,
    index: Tensor | None = None,
) -> list[Finding]:
    """Return what is wrong, or worth knowing, before ``model`` is attacked; nothing about it is changed.

    The model is called in eval mode, in fp32 without TF32, on a sample drawn evenly from all examples. A fatal finding
    ends the checks that build on it. Cost: forward passes of at most 512 examples for the accuracy, of 64 three, of 8
    and of eight single ones; two backward passes of 64.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``, those that will be attacked.
        labels: ``[N]``.
        norm: of the attacks: L2 and L1 steps need gradients that do not underflow, L-inf steps their signs alone.
        bounds: the box that inputs live in; None: no box.
        expected_accuracy: what was measured before on the same kind of examples, e.g. in the run's own evaluation.
        index: what messages call the examples, ``[N]``, where they were drawn from more; None: their places.
    """
    index = torch.arange(len(inputs)) if index is None else index.cpu()
    findings = input_findings(inputs, bounds, index)
    findings += label_findings(inputs, labels)
    if any(finding.fatal for finding in findings):
        return findings
    findings += mode_findings(model)
    device = inputs.device
    with ieee_float32(device), evaluation_mode(model), unchanged(model, device):
        rows = _sample(len(inputs), SAMPLE, device)
        x, y = ordinary(inputs[rows]), ordinary(labels[rows]).long()
        logits = read_outputs(model, x, BATCH)
        if isinstance(logits, Finding):
            return [*findings, logits]
        # Of all labels that are given, not of the sample's alone: a single wrong one would crash an attack hours later.
        findings += class_findings(logits, labels, index)
        findings += output_findings(logits, x)
        if any(finding.fatal for finding in findings):
            return findings
        few = x[:GRADIENTS]
        random = repeat_findings(model, few)
        # Of a model that draws at random, alone and together differ by that.
        findings += random or batch_findings(model, few[:SINGLE])
        findings += accuracy_findings(logits, y, expected_accuracy)
        findings += gradient_findings(model, few, y[:GRADIENTS], norm)
    return findings


def stop_on_fatal(findings: list[Finding]) -> None:
    """Raise if a finding is fatal.

    Raises:
        PreflightError: the message has all fatal findings.
    """
    fatal = [finding.message for finding in findings if finding.fatal]
    if fatal:
        raise PreflightError("; ".join(fatal))


def _sample(examples: int, most: int, device: torch.device) -> Tensor:
    """Return rows drawn from all of them, always the same, in random order: sets are often stored class by class."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    return order[:most].to(device)
