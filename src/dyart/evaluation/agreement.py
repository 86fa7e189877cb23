"""Where two searches disagree on the same examples: a check of either."""

from dataclasses import dataclass

import torch

from dyart.boundary.points import BoundaryPoints

TOLERANCE = 0.05
SHOWN = 5


@dataclass(frozen=True)
class Agreement:
    """How the margins of two searches compare. Ratios are of the first to the second, over examples both found."""

    names: tuple[str, str]
    examples: int
    both: int
    only_first: int
    only_second: int
    ratio: float
    """Mean over examples; above 1 the first search's points are farther."""
    agree: int
    """Examples whose margins differ by at most ``TOLERANCE``."""
    first_closer: int
    second_closer: int
    worst: tuple[tuple[int, float, float], ...]
    """Example and both margins, where the first search is farthest behind."""

    def __str__(self) -> str:
        """Return a paragraph for a person."""
        one, two = self.names
        lines = [
            f"cross-check on {self.examples} examples: found by both {self.both}, only by {one} {self.only_first}, "
            f"only by {two} {self.only_second}",
        ]
        if self.both:
            lines.append(
                f"  margins within {TOLERANCE:.0%} of each other: {self.agree} ({self.agree / self.both:.1%}); "
                f"{one} closer by more: {self.first_closer}, {two} closer by more: {self.second_closer}; "
                f"mean ratio {one} / {two}: {self.ratio:.3f}"
            )
        for index, first, second in self.worst:
            lines.append(f"  example {index}: {one} {first:.4g}, {two} {second:.4g} (take the smaller one)")
        return "\n".join(lines)


def compare(first: BoundaryPoints, second: BoundaryPoints, first_name: str, second_name: str) -> Agreement:
    """Return how two searches of the same examples compare.

    Both margins are upper bounds of the true one, so the smaller is always the better.

    Raises:
        ValueError: they are of different examples, norms or boundaries.
    """
    same = (first.norm, first.boundary, first.inputs.shape) == (second.norm, second.boundary, second.inputs.shape)
    if not same or not torch.equal(first.inputs, second.inputs):
        raise ValueError("the two searches are of different problems: same inputs, norm and boundary are needed")
    both = first.found & second.found
    one, two = first.margin[both], second.margin[both]
    ratio = one / two
    behind = torch.where(both, first.margin / second.margin, 0.0)
    worst = behind.argsort(descending=True)[:SHOWN].tolist()
    return Agreement(
        names=(first_name, second_name),
        examples=len(first),
        both=int(both.sum()),
        only_first=int((first.found & ~second.found).sum()),
        only_second=int((second.found & ~first.found).sum()),
        ratio=ratio.mean().item() if len(ratio) else float("nan"),
        agree=int((torch.maximum(ratio, 1 / ratio) <= 1 + TOLERANCE).sum()),
        first_closer=int((ratio < 1 / (1 + TOLERANCE)).sum()),
        second_closer=int((ratio > 1 + TOLERANCE).sum()),
        worst=tuple(
            (row, first.margin[row].item(), second.margin[row].item()) for row in worst if behind[row] > 1 + TOLERANCE
        ),
    )
