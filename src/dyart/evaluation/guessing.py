"""A network that gives every example the same class: its accuracies say nothing about robustness."""

import numpy as np
import numpy.typing as npt


def guessing(predictions: npt.ArrayLike, labels: npt.ArrayLike) -> str | None:
    """Return a warning where all examples are predicted as one class and have labels of several; None elsewhere."""
    predicted, given = np.asarray(predictions), np.asarray(labels)
    if len(np.unique(predicted)) != 1 or len(np.unique(given)) < 2:
        return None
    share = float((given == predicted[0]).mean())
    return (
        f"every example is predicted as class {predicted[0]}, which is the label of {share:.1%} of them: the network "
        "tells no classes apart on these examples, and its accuracies say nothing about robustness. Either it has "
        "learnt nothing (try a smaller learning rate, more burn-in or a smaller lam), or its inputs are scaled "
        "differently from those it was trained on"
    )
