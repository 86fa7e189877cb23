"""The examples of an evaluation: their range, their labels."""

import torch
from torch import Tensor

from dyart.boundary.validation import Bounds, as_bounds, beyond_bounds, check_labels
from dyart.evaluation.findings import Finding

# Inputs that reach over less of the box than this were scaled twice: once by 255 is 0.0039.
USED = 0.02
# So many examples of a single class are no accident.
ONE_CLASS = 20


def input_findings(inputs: Tensor, bounds: Bounds, index: Tensor) -> list[Finding]:
    """Return what is wrong with the inputs themselves: dtype, NaN, range, constants."""
    if len(inputs) == 0:
        return [Finding("input range", "there are no examples: pass at least one", True)]
    if not inputs.is_floating_point():
        words = f"inputs are {inputs.dtype}: pass floating point numbers, for images in 0..255 images.float() / 255"
        return [Finding("input range", words, True)]
    low, high = (float(value) for value in inputs.detach().aminmax())
    if not (-torch.inf < low and high < torch.inf):  # a NaN is neither
        rows = (~inputs.isfinite()).reshape(len(inputs), -1).any(dim=1).nonzero()[:, 0]
        first = int(index[int(rows[0])])
        words = f"{len(rows)} examples contain NaN or infinity, the first is {first}: remove or repair them"
        return [Finding("input range", words, True)]
    if low == high:
        words = f"every number of every input is {low:g}: the data was not read, or scaled to nothing"
        return [Finding("constant inputs", words, True)]
    lower, upper = as_bounds(bounds, inputs)
    if lower is None or upper is None:
        return []
    return _range_findings(inputs, low, high, lower, upper)


def _range_findings(inputs: Tensor, low: float, high: float, lower: Tensor, upper: Tensor) -> list[Finding]:
    least, most = float(lower.min()), float(upper.max())
    if beyond_bounds(inputs, lower, upper):
        seen = f"inputs go from {low:g} to {high:g}, outside the box {least:g} to {most:g}"
        if low >= 0 and 1 < most * 100 < high <= 255:
            todo = "these look like images in 0..255: divide them by 255"
        elif low < least:
            todo = (
                "these look normalised: pass images in the box and put the normalisation inside the model "
                "(on the command line: --mean and --std), for radii are measured in the box"
            )
        else:
            todo = "scale them into the box, or pass the box they live in as bounds"
        return [Finding("input range", f"{seen}; {todo}", True)]
    width = most - least
    if high - low < USED * width < torch.inf:
        words = (
            f"inputs go from {low:g} to {high:g}, {(high - low) / width:.1%} of the box {least:g} to {most:g}: were "
            "they divided by 255 twice, or does the box belong to other data?"
        )
        return [Finding("input range", words, False)]
    return []


def label_findings(inputs: Tensor, labels: Tensor) -> list[Finding]:
    """Return what is wrong with the labels, as far as that can be said without knowing the classes."""
    try:
        check_labels(labels, inputs)
    except (TypeError, ValueError) as error:
        return [Finding("labels", str(error), True)]
    if len(labels) >= ONE_CLASS and bool((labels == labels[0]).all()):
        words = (
            f"all {len(labels)} examples are of class {int(labels[0])}: the accuracies will be of this class alone; "
            "for all classes take examples from the whole set"
        )
        return [Finding("labels", words, False)]
    return []
