"""What comes out of an evaluation: accuracies with intervals, verdicts on every example, and what it took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dyart.attacks.radius import ByRadius, Radius
from dyart.evaluation.alarms import Alarm
from dyart.evaluation.findings import Finding
from dyart.evaluation.intervals import wilson
from dyart.evaluation.runner import CLEAN
from dyart.evaluation.settings import Settings
from dyart.evaluation.verdicts import Flags, Verdicts


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Clean and robust accuracy, and everything they were computed from. Print it for a table."""

    verdicts: Verdicts
    settings: Settings
    words: str
    """The attacks, for a person."""
    findings: Sequence[Finding]
    """What the preflight found; nothing fatal."""
    alarms: Sequence[Alarm]
    """Signs of masked gradients: reasons to trust the numbers less."""
    notes: Sequence[str]
    """What differs from the standard settings, and why."""
    costs: Mapping[str, Mapping[str, float]]
    """By attack: examples passed ``forward`` and ``backward`` through the model, and ``seconds``."""
    view: Mapping[str, Any]
    """Precision of the attacks, whether they ran on a compiled model, and the device."""
    facts: Mapping[str, Any]
    """Further entries of the record."""
    versions: Mapping[str, str]
    """Of the packages that it was made with."""
    files: Sequence[str] = ()
    """The file of every example, where they are known."""
    taken: bool = False
    """All of it was in the folder, finished by an earlier call: nothing was attacked again."""
    replaced: bool = False
    """The folder had a finished evaluation of something else, whose place this one took."""

    @property
    def clean_accuracy(self) -> float:
        """Share of examples that are classified as labelled."""
        return float(self.verdicts.correct.mean())

    @property
    def robust_accuracy(self) -> ByRadius[Radius, float]:
        """By radius: share of examples that are classified as labelled and resist; an upper bound of the true one."""
        if not self._attacked:
            return ByRadius()
        shares = self.verdicts.resists.mean(axis=0)
        return ByRadius({radius: float(share) for radius, share in zip(self.verdicts.radii, shares, strict=True)})

    @property
    def intervals(self) -> ByRadius[str, tuple[float, float]]:
        """Wilson's 95 % interval of every accuracy, by ``"clean"`` and by the radius as text."""
        held = {CLEAN: self.verdicts.correct} | self.resisting
        return ByRadius({name: wilson(int(flags.sum()), len(flags)) for name, flags in held.items()})

    @property
    def by_class(self) -> dict[int, ByRadius[str, float]]:
        """By label, of those that there are examples of: the accuracies, by ``"clean"`` and by the radius as text."""
        held, labels = {CLEAN: self.verdicts.correct} | self.resisting, self.verdicts.labels
        return {
            int(label): ByRadius({name: float(flags[labels == label].mean()) for name, flags in held.items()})
            for label in np.unique(labels)
        }

    @property
    def inferred(self) -> ByRadius[Radius, int]:
        """By radius: how many examples are taken to resist because they did at a larger one."""
        counts = self.verdicts.inferred.sum(axis=0)
        return ByRadius({radius: int(count) for radius, count in zip(self.verdicts.radii, counts, strict=True)})

    @property
    def resisting(self) -> ByRadius[str, Flags]:
        """By radius as text: which examples resist, ``[N]``."""
        if not self._attacked:
            return ByRadius()
        resists = self.verdicts.resists
        return ByRadius({str(radius): resists[:, level] for level, radius in enumerate(self.verdicts.radii)})

    @property
    def after(self) -> dict[str, dict[Radius, float]]:
        """Robust accuracy by radius after every attack, in the order in which they were run."""
        verdicts, left = self.verdicts, self.verdicts.correct[:, None] & np.ones(len(self.verdicts.radii), dtype=bool)
        shares = {}
        for attack in verdicts.attacks:
            left = left & ~verdicts.broken_by(attack)
            shares[attack] = dict(zip(verdicts.radii, map(float, left.mean(axis=0)), strict=True))
        return shares

    @property
    def passes(self) -> dict[str, float]:
        """Forward and backward passes per example, over all examples and attacks, verification included."""
        return {
            way: sum(cost[way] for cost in self.costs.values()) / len(self.verdicts) for way in ("forward", "backward")
        }

    @property
    def seconds(self) -> float:
        """Of all batches together; of an evaluation that was resumed, over all its parts."""
        return sum(cost["seconds"] for cost in self.costs.values())

    @property
    def per_example(self) -> dict[str, np.ndarray]:
        """One array ``[N]`` per column of ``per_example.csv``."""
        from dyart.evaluation.records import columns

        return columns(self.verdicts) | ({"file": np.asarray(self.files)} if self.files else {})

    def to_json(self, path: str | Path) -> None:
        """Write the record without the examples."""
        from dyart.engine.files import write_json
        from dyart.evaluation.records import plain

        write_json(Path(path), plain(self))

    def to_csv(self, path: str | Path) -> None:
        """Write one line per example."""
        from dyart.evaluation.records import write_csv

        write_csv(self.per_example, Path(path))

    @property
    def _attacked(self) -> bool:
        return bool(self.verdicts.attacks)

    def __repr__(self) -> str:
        """Return one line."""
        robust = ", ".join(f"{radius} {100 * share:.1f} %" for radius, share in self.robust_accuracy.items())
        return (
            f"Evaluation({len(self.verdicts)} examples, {self.settings.norm}, {self.settings.attack}: clean "
            f"{100 * self.clean_accuracy:.1f} %{'; robust ' + robust if robust else ''})"
        )

    def __str__(self) -> str:
        """Return a table, and what to know about it, for a person."""
        from dyart.evaluation.records import table

        return table(self)
