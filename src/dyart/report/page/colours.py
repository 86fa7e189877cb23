"""Which run or method gets which colour; what the names look like, in light and dark, is in ``page.css``."""

from collections.abc import Sequence
from itertools import cycle

COLOURS = ("blue", "orange", "green", "purple", "rose", "sky", "olive", "grey")
# As in the printed figures (``report.style``).
OF_METHODS = {"at": "orange", "dyart": "blue", "trades": "green", "natural": "grey", "mart": "purple", "mma": "sky"}


def slots(methods: Sequence[str]) -> list[str]:
    """Return a colour for each of some methods: its own, unless that is taken, else the next free one.

    With more of them than colours, colours come twice.
    """
    chosen: list[str] = []
    again = cycle(COLOURS)
    for method in methods:
        own = OF_METHODS.get(method.removesuffix("-awp"))
        free = [colour for colour in COLOURS if colour not in chosen]
        later = {OF_METHODS.get(other) for other in methods}
        if own and own not in chosen:
            chosen.append(own)
        elif free:
            chosen.append(next((colour for colour in free if colour not in later), free[0]))
        else:
            chosen.append(next(again))
    return chosen
