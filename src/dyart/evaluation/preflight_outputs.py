"""The model's outputs: logits or not, repeatable or not, right or not."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dyart.boundary.messages import first_line
from dyart.boundary.model import Model, logits_of
from dyart.boundary.repeats import change
from dyart.boundary.validation import IN_PLACE, mismatch, version_of
from dyart.evaluation.findings import Finding

# Standard deviations by which a sample's accuracy may differ from the recorded one, and points for anything else.
SIGMAS, SLACK = 4.0, 0.01
SUM = 1e-3
MASKED = 5  # classes, in a message
# Examples, from which on an accuracy can be told from guessing.
ENOUGH = 10


def mode_findings(model: Model) -> list[Finding]:
    """Say if layers that behave otherwise in train mode are in it."""
    kinds = sorted({type(module).__name__ for module in _training_layers(model)})
    if not kinds:
        return []
    words = f"the model is in train mode ({', '.join(kinds)}); it is evaluated in eval mode: call model.eval() yourself"
    return [Finding("train mode", f"{words} to get the same outputs", False)]


def _training_layers(model: Model) -> Iterator[nn.Module]:
    for module in model.modules() if isinstance(model, nn.Module) else ():
        code = getattr(getattr(type(module), "forward", None), "__code__", None)
        # What a layer's forward pass never asks for cannot change it.
        asks = "training" in code.co_names if code is not None else False
        idle = isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0
        if module.training and not idle and (asks or isinstance(module, nn.modules.instancenorm._InstanceNorm)):
            yield module


def read_outputs(model: Model, inputs: Tensor, batch_size: int) -> Tensor | Finding:
    """Return the logits ``[N, K]`` in float32 or better, or why there are none."""
    parts, before = [], version_of(inputs)
    try:
        with torch.no_grad():
            for part in inputs.split(batch_size):
                parts.append(logits_of(model(part)))
    except (TypeError, ValueError) as error:  # raised by logits_of: it says what to do
        return Finding("outputs", str(error), True)
    except Exception as error:
        shape = "x".join(map(str, inputs.shape[1:]))
        words = f"the model fails on inputs of shape {shape}, {inputs.dtype} on {inputs.device}: {first_line(error)}"
        hint = mismatch(model, inputs) or "check that it fits the data, and that both are on one device"
        return Finding("outputs", f"{words}; {hint}", True)
    if version_of(inputs) != before:
        return Finding("outputs", IN_PLACE, True)
    logits = torch.cat(parts)
    if len(logits) != len(inputs):
        words = (
            f"the model returns {len(logits)} rows for {len(inputs)} examples: it must return one row of logits each"
        )
        return Finding("outputs", words, True)
    return logits


def class_findings(logits: Tensor, labels: Tensor, index: Tensor) -> list[Finding]:
    """Say if labels are no classes of the model, and what happens where these are few."""
    classes = logits.shape[1]
    outside = ((labels < 0) | (labels >= classes)).nonzero()[:, 0]
    if len(outside):
        words = (
            f"{len(outside)} labels are no class of the model, the first is {int(labels[outside[0]])} at "
            f"{int(index[int(outside[0])])}; it has {classes} logits, classes 0 to {classes - 1}: "
        )
        from_one = int(labels.min()) == 1 and int(labels.max()) == classes
        words += "if the labels count from 1, subtract 1" if from_one else "do the two belong together?"
        return [Finding("labels", words, True)]
    if classes >= 4:
        return []
    losses = "DLR needs three classes and its targeted form four" if classes == 2 else "targeted DLR needs four classes"
    words = f"the model has {classes} classes, and {losses}: the logit margin is attacked instead (z_k - z_y)"
    return [Finding("few classes", words, False)]


def output_findings(logits: Tensor, inputs: Tensor) -> list[Finding]:
    """Say if outputs are NaN, the same for every input, or no logits."""
    bad = ~logits.isfinite()
    if bool(bad.any()):
        share = bad.any(dim=1).float().mean().item()
        words = f"the model returns NaN or infinity for {share:.0%} of the examples: check its weights and input range"
        masked = (logits == -torch.inf).any(dim=0).nonzero()[:, 0].tolist()
        if bool((logits[bad] == -torch.inf).all()):
            words = (
                f"the model masks classes with a logit of -inf ({', '.join(map(str, masked[:MASKED]))}"
                f"{', ...' if len(masked) > MASKED else ''}), of which the attacks' losses are NaN: return a large "
                "negative number there, e.g. masked_fill(mask, -1e4), or leave these classes out"
            )
        return [Finding("outputs", words, True)]
    values = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    if len(inputs) > 1 and bool((values == values[0]).all()) and not bool((inputs == inputs[0]).all()):
        words = (
            f"the outputs are the same for {len(inputs)} different inputs (the first is {float(values[0, 0]):g}): the "
            "model does not look at its input; check its weights"
        )
        return [Finding("constant outputs", words, True)]
    return _probability_findings(values)


def _probability_findings(values: Tensor) -> list[Finding]:
    low, high = float(values.min()), float(values.max())
    sums, zeros = values.sum(dim=1), values.logsumexp(dim=1)
    if low >= 0 and float((sums - 1).abs().max()) < SUM:
        words = (
            f"the outputs are probabilities (from {low:.2g} to {high:.2g}, every row sums to one): gradients vanish "
            "where the model is sure and attacks look too weak; return the logits, without the softmax"
        )
        return [Finding("probabilities", words, False)]
    if high <= 0 and float(zeros.abs().max()) < SUM:
        words = (
            f"the outputs are log-probabilities (from {low:.3g} to {high:.2g}): differences between classes, which are "
            "all that is attacked, are those of logits; nothing needs to be done"
        )
        return [Finding("log-probabilities", words, False)]
    if low >= 0 and high <= 1:
        words = (
            f"every output lies in 0..1 (from {low:.2g} to {high:.2g}), as after a sigmoid, whose gradients vanish "
            "where the model is sure: if there is one, return what goes into it"
        )
        return [Finding("probabilities", words, False)]
    return []


def repeat_findings(model: Model, inputs: Tensor) -> list[Finding]:
    """Call the model twice and say if the outputs differ by more than rounding."""
    with torch.no_grad():
        first, second = (logits_of(model(inputs)) for _ in range(2))
    found = change(first, second)
    if not found.real:
        return []
    flips = (first.argmax(dim=1) != second.argmax(dim=1)).float().mean().item()
    words = (
        f"two calls on the same {len(inputs)} inputs differ by up to {found.size:.2g} in the logits ({flips:.0%} of "
        "the predictions): a verdict would be a draw; switch the randomness off, or let the model average over "
        "it with a fixed seed"
    )
    return [Finding("randomness", words, True)]


def batch_findings(model: Model, inputs: Tensor) -> list[Finding]:
    """Compare a batch with its examples one by one and say if they differ by more than rounding."""
    with torch.no_grad():
        together = logits_of(model(inputs))
        try:
            alone = torch.cat([logits_of(model(row)) for row in inputs.split(1)])
        except Exception as error:
            words = f"the model takes a batch of {len(inputs)} but fails on one example: {first_line(error)}; attacks"
            return [Finding("batch size", f"{words} call it with batches of every size, so let it accept them", True)]
    found = change(together, alone)
    if not found.real:
        return []
    words = (
        f"an example's logits depend on what is beside it: alone and in a batch of {len(inputs)} they differ by up to "
        f"{found.size:.2g}; verdicts per example need a model that treats examples one by one (BatchNorm with running "
        "statistics)"
    )
    return [Finding("batch size", words, True)]


def accuracy_findings(logits: Tensor, labels: Tensor, expected: float | None) -> list[Finding]:
    """Compare the accuracy of a sample with the recorded one, or with guessing."""
    count, classes = logits.shape
    accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
    if expected is not None:
        if abs(accuracy - expected) <= SIGMAS * math.sqrt(expected * (1 - expected) / count) + SLACK:
            return []
        words = (
            f"{accuracy:.1%} of {count} examples are classified as labelled, {expected:.1%} were recorded: other "
            "weights, other data or another normalisation; find out which before measuring anything"
        )
        return [Finding("accuracy", words, True)]
    chance = 1 / classes
    if count < ENOUGH or accuracy > chance + 2 * math.sqrt(chance * (1 - chance) / count):
        return []
    words = (
        f"{accuracy:.1%} of {count} examples are classified as labelled, no more than by guessing among {classes} "
        "classes: check weights, order of the classes and normalisation"
    )
    return [Finding("accuracy", words, False)]
