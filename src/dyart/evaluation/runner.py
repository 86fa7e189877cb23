"""The phases of an evaluation: clean, search, probe, battery. Every batch is a step of the journal."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dyart.boundary import validation
from dyart.boundary.memory import Pieces
from dyart.boundary.points import BoundaryPoints
from dyart.boundary.progress import Counter, Progress
from dyart.boundary.search import closest_boundary_points
from dyart.data.ranks import ALONE, Team
from dyart.evaluation.examples import Examples, Rows
from dyart.evaluation.journal import Journal, Record
from dyart.evaluation.ledger import PARTS, Ledger
from dyart.evaluation.settings import Settings
from dyart.evaluation.tiers import PGD, Tier, attacked
from dyart.evaluation.verdicts import MARGINS, Flags, Floats
from dyart.evaluation.verify import found_distance
from dyart.evaluation.views import View
from dyart.evaluation.walk import Walk

CLEAN = "clean"
# A search on a view other than the user's model ends with so many steps on the model itself, from where it arrived.
# They settle it, too: on 59 images with margins around 1/255 (a natural ResNet-18, CIFAR-10) the excess over the best
# known distance fell from 0.6 to 0.1 %.
LAST_STEPS = 10


@dataclass
class Runner:
    """One evaluation: the examples, two views of the model, and where results go."""

    settings: Settings
    tier: Tier
    examples: Examples
    plain: View
    """The user's own model in plain float32: it has the last word."""
    view: View
    """What attacks search on; the same where nothing faster is at hand."""
    journal: Journal
    ledger: Ledger
    progress: Progress
    team: Team = ALONE
    """Who divides the batches; what is in them does not depend on it, nor do the results."""
    classes: int = 0
    pieces: Pieces = field(default_factory=lambda: Pieces("evaluation"))

    def run(self) -> None:
        """Go through all phases."""
        self.clean()
        correct = np.flatnonzero(self.ledger.predictions == self.ledger.labels)
        if self.tier.search:
            self.search(correct)
        if self.tier.probe:
            every = np.arange(len(self.settings.radii))
            self._attack(PGD, np.repeat(correct, len(every)), np.tile(every, len(correct)), exact=False)
        self.fight()
        self.journal.finish()

    def clean(self) -> None:
        """Classify the examples as they are."""

        def work(rows: Rows, _: Rows) -> Record:
            x = self.examples.batch(rows)[0]
            try:
                validation.check_inputs(x, self.settings.bounds)
            except ValueError as error:  # it counts from the first of the batch
                raise ValueError(
                    f"among the {len(rows)} examples from {self.examples.index[rows[0]]} on: {error}"
                ) from None
            with torch.no_grad():
                logits = validation.first_logits(self.plain, x)
            if bool(logits.isnan().any()):
                raise ValueError(
                    f"the model returned NaN logits, among the {len(rows)} examples from "
                    f"{self.examples.index[rows[0]]} on: check its weights and the range of its inputs"
                )
            return {"classes": logits.shape[1], "predictions": logits.argmax(dim=1).tolist()}

        for here, record in self._batches(CLEAN, np.arange(len(self.examples)), work):
            self.ledger.predictions[here] = record["predictions"]
            self.classes = record["classes"]
        validation.check_label_range(torch.from_numpy(self.examples.labels), self.classes)

    def search(self, rows: Rows) -> None:
        """Find closest boundary points: every radius beyond one is decided."""

        def work(rows: Rows, _: Rows) -> Record:
            return _searched(self, rows)

        for here, record in self._batches(MARGINS, rows, work):
            self.ledger.enter_margins(rows[here], record)

    def fight(self) -> None:
        """Attack what is left, in the order that the walk says."""
        correct = self.ledger.predictions == self.ledger.labels
        up = self.settings.strict or self.tier.walks_up
        battery = self.tier.battery
        walk = Walk(self.ledger.limits, correct, self.ledger.closest(), len(battery), up)
        while jobs := walk.jobs():
            for job in jobs:
                walk.settle(job, *self._attack(battery[job.stage], job.rows, job.levels, job.exact))
        if not up:
            self.ledger.infer(battery, walk.resisted)

    def _attack(self, name: str, rows: Rows, levels: Rows, exact: bool) -> tuple[Floats, Flags]:
        """Run one attack, each example at its own radius; return distances, and what to try again on the model."""
        distance, again = np.full(len(rows), np.inf), np.zeros(len(rows), dtype=bool)
        for here, record in self._batches(name, rows, lambda part, at: self._struck(name, part, at, exact), levels):
            distance[here], again[here] = record["distance"], record["again"]
            self.ledger.enter(name, rows[here], levels[here], distance[here])
        return distance, again

    def _struck(self, name: str, rows: Rows, levels: Rows, exact: bool) -> Record:
        settings = self.settings
        radii = np.asarray([float(radius) for radius in settings.radii])[levels]
        x, y = self.examples.batch(rows)
        view = self.plain if exact else self.view
        points = attacked(
            name,
            view,
            x,
            y,
            torch.from_numpy(radii).to(x),
            norm=settings.norm,
            bounds=settings.bounds,
            classes=self.classes,
            seed=settings.seed,
            index=torch.from_numpy(self.examples.index[rows]).to(x.device),
            room=view.room,
        )
        distance = found_distance(self.plain, x, y, points, settings.norm, settings.bounds)
        again = torch.zeros_like(y, dtype=torch.bool)
        if view is not self.plain:
            # Fooled on the view and not on the model: the attack stopped too early.
            with torch.no_grad():
                again = (view(points).argmax(dim=1) != y) & distance.isinf()
        return {"distance": distance.tolist(), "again": again.tolist()}

    def _batches(
        self, name: str, rows: Rows, work: Callable[[Rows, Rows], Record], levels: Rows | None = None
    ) -> Iterator[tuple[slice, Record]]:
        """Do the work batch by batch, or take it from the journal; count what it costs. Returns places in ``rows``.

        Where memory runs out, a batch is divided. The random starts of AutoAttack's own attacks are drawn for a whole
        batch, so that they are others then, and the record says so.
        """
        size, count = self.settings.batch_size, self.plain.count
        levels = np.zeros_like(rows) if levels is None else levels
        places = [slice(start, start + size) for start in range(0, len(rows), size)]
        counter = Counter(self.progress, len(places), name)

        def counted(here: slice) -> Record:
            began = time.perf_counter()
            count.forward = count.backward = 0
            part, at = rows[here], levels[here]
            records = self.pieces(lambda some: work(part[some], at[some]), np.arange(len(part)))
            divided = {PARTS: self.pieces.size} if len(records) > 1 else {}
            passes = {"forward": count.forward, "backward": count.backward}
            return {**joined(records), **divided, **passes, "seconds": time.perf_counter() - began}

        for begin in range(0, len(places), self.team.count):
            group = places[begin : begin + self.team.count]
            new = group[len(self.journal.done) :]  # the others are in the journal
            records = iter(self.team.do([partial(counted, here) for here in new]) if new else [])
            for here in group:
                key = {"attack": name, "rows": rows[here].tolist(), "levels": levels[here].tolist()}
                record = self.journal.step(key, lambda records=records: next(records))  # type: ignore[misc]
                self.ledger.charge(name, record)
                counter.tick()
                yield here, record


def joined(records: list[Record]) -> Record:
    """Return the records of parts of a batch as one: lists one after the other, of everything else the first."""
    first, *others = records
    return {
        name: value + [entry for other in others for entry in other[name]] if isinstance(value, list) else value
        for name, value in first.items()
    }


def _searched(runner: Runner, rows: Rows) -> Record:
    """Search on the view, end on the user's model, and verify the points once more.

    Examples whose points do not hold there are searched from anew, on that model.
    """
    settings, plain, view = runner.settings, runner.plain, runner.view
    x, y = runner.examples.batch(rows)
    index = torch.from_numpy(runner.examples.index[rows])  # draws go by the example, whatever batch it is in
    options: dict[str, Any] = {"norm": settings.norm, "bounds": settings.bounds, "validate": False}

    def search(model: View, x: Tensor, y: Tensor, steps: int, **more: Any) -> BoundaryPoints:  # noqa: ANN401
        with model.keeping():
            return closest_boundary_points(model, x, y, steps=steps, **options, **more)

    def verified(x: Tensor, y: Tensor, found: BoundaryPoints) -> dict[str, Tensor]:
        distance = found_distance(plain, x, y, found.points, settings.norm, settings.bounds)
        margin = torch.where(found.found & distance.isfinite(), distance, torch.nan)
        tied = found.correct & ~found.inside  # on the boundary, as it is
        return {
            "margin": torch.where(tied, 0.0, margin),
            "value": found.value,
            "alignment": found.alignment,
            "optimal": found.optimal,
            "rival": found.rival,
            "conditions": torch.stack(list(found.conditions), dim=1),
        }

    found = search(view, x, y, settings.steps, restarts=settings.restarts, seed=settings.seed, index=index)
    if view is not plain:
        found = search(plain, x, y, LAST_STEPS, start=found.points)
    record = verified(x, y, found)
    lost = record["margin"].isnan()
    if view is not plain and bool(lost.any()):
        again = verified(x[lost], y[lost], search(plain, x[lost], y[lost], settings.steps))
        for name, values in again.items():
            record[name][lost] = values
    return {name: values.tolist() for name, values in record.items()}
