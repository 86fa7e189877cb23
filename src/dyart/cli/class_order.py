"""Which output of a network is which class of the data: told where names decide it, and what to do where some lack."""

import sys
from collections.abc import Callable, Collection
from typing import NamedTuple

from dyart.data import DataSet

NAMED = 20  # classes


class Way(NamedTuple):
    """A way to number labels, in words: what by, what there is one of per class, and how to name classes that lack."""

    by: str
    things: str
    remedy: str


ARRAY = "save the names of all classes, in the order of its outputs, as an array classes beside the labels"
# By what a data set says of itself (``DataSet.numbered_by``).
WAYS = {
    "": Way("their numbers", "classes", ARRAY),
    "folders": Way("the folders' names, in alphabetical order", "folders", "make an empty folder for every class"),
    "names": Way("their names, in alphabetical order", "names", ARRAY),
    "digits": Way(
        "their names, in the order of these numbers",
        "names",
        f"if they are numbers of outputs, save labels.astype(int), else {ARRAY}",
    ),
}


def tell_order(data: DataSet, outputs: int, words: str) -> None:
    """Print which label is which name where a test part alone decides it, and a warning if some must be missing.

    Args:
        data: the set.
        outputs: the number of logits.
        words: for the network.
    """
    if not data.numbered_by or len(data.train):  # with a training part, all classes are known
        return
    way, known = WAYS[data.numbered_by], len(data.classes)
    numbers = ", ".join(f"{number} {name}" for number, name in enumerate(data.classes[:NAMED]))
    more = ", ..." if known > NAMED else ""
    print(f"{data.name}: labels by {way.by}: {numbers}{more}", file=sys.stderr)
    if outputs > known:
        print(
            f"{words} has {outputs} outputs, and {data.name} {known} {way.things}: if others of its classes come "
            f"before one of these, these labels are wrong; {way.remedy}",
            file=sys.stderr,
        )


def labels_from_one(data: DataSet) -> str:
    """Return what to do about a set without an example of class 0; "" for all others."""
    parts = [part.labels for part in (data.train, data.test) if len(part)]
    if data.numbered_by or not parts or min(int(labels.min()) for labels in parts) != 1:
        return ""
    return "no example has the label 0: if the labels count from 1, subtract 1"


def advice_on_classes(
    data: DataSet, taken: Collection[str] = (), given: Collection[str] = ()
) -> Callable[[int], str] | None:
    """Return what says why a network may have another number of classes than a set; None where nothing is known.

    A test part alone need not show every class, and labels may count from 1.

    Args:
        data: the set.
        taken: arguments that the network's factory takes.
        given: those of them that the user gave.
    """
    from_one = labels_from_one(data)
    if len(data.train) and not from_one:
        return None
    name = next((name for name in ("classes", "num_classes") if name in taken), None)

    def advice(outputs: int) -> str:
        if from_one and outputs == len(data.classes) - 1:
            return f"; {from_one}"
        if len(data.train) or outputs < len(data.classes):
            return ""
        todo = WAYS[data.numbered_by].remedy
        if name is not None and not data.numbered_by:  # where names decide, these labels may be wrong as well
            todo = f"add {name}={outputs} to --model-args" if given else f"add --model-args {name}={outputs}"
        return f"; a test part need not show every class: {todo}"

    return advice
