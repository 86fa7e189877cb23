"""The result of a boundary search: the points, the problem they answer, and how far each can be trusted."""

import csv
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dyart.boundary import optimality
from dyart.boundary.margins import Boundary
from dyart.boundary.norms import Norm, flat
from dyart.boundary.plain import load_plain
from dyart.boundary.solvers import SOLVERS
from dyart.boundary.validation import Bounds, as_bounds

RESIDUAL = 0.1
ALIGNMENT = 0.9
SHOCK = 0.01
FORMAT = "dyart boundary points"  # and its version, in a file


class Passes(NamedTuple):
    """The most forward and backward passes of the model that any one example took part in.

    The second look that ``validate`` takes at two of them is left out.
    """

    forward: int
    backward: int


def most_passes(costs: Iterable[Passes]) -> Passes:
    """Return the most passes of several searches: the largest of each kind."""
    return Passes(*map(max, zip(*costs, strict=True)))


@dataclass(frozen=True, eq=False, repr=False)
class BoundaryPoints:
    """Closest boundary points of a batch, as found; every tensor has one row per example.

    ``margin`` is an upper bound of the true margin, found by a local search; ``optimal`` says where the
    first-order conditions of a locally closest point hold. Nothing here is a proven lower bound.
    """

    inputs: Tensor
    """The examples, as given."""
    labels: Tensor
    """The class whose boundary was searched."""
    norm: Norm
    boundary: Boundary
    beta: float
    bounds: Bounds
    points: Tensor
    """Like inputs; the input itself where nothing was found."""
    margin: Tensor
    """Distance to the point; nan where the example is not inside or no point was found. Negative for examples
    outside their class when signed margins were asked for."""
    value: Tensor
    """phi (or Phi) at the point."""
    gradient: Tensor
    """Gradient of phi (or Phi) in the input, at the point; zero where nothing was found."""
    correct: Tensor
    """The largest logit of the input is the label's."""
    inside: Tensor
    """phi (or Phi) is positive at the input."""
    found: Tensor
    alignment: Tensor
    """In [-1, 1]: 1 where the first-order optimality conditions hold, as far as coordinates that the box does not pin
    can tell; nan where nothing was found."""
    rival: Tensor
    """The largest other class at the point: the one on the other side, or, for an example outside its class, the one
    it comes from; -1 where nothing was found."""
    input_value: Tensor
    """phi (or Phi) at the input."""
    cost: Passes
    solver: str = "fast"
    signed: bool = False
    """Examples outside their class were searched too."""
    lost: Tensor | None = None
    """Not found, although a point was: evaluated anew it was not across the boundary any more, as it happens where the
    model draws at random or looks at the whole batch. None: not known."""

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.inputs)

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> "BoundaryPoints":
        """Return the examples at ``index``: a mask, indices, a slice or one number (a batch of one).

        They are counted from 0 again; where their places matter, keep ``index`` beside them (see ``to_csv``).
        """
        if isinstance(index, slice):
            return self._map(lambda tensor: tensor[index])
        rows = torch.as_tensor(index, device=self.found.device)
        if rows.ndim > 1 or (rows.is_floating_point() and rows.numel()):
            raise TypeError(f"index must be a mask, integers or a slice, got {rows.dtype} of shape {tuple(rows.shape)}")
        rows = (rows if rows.dtype == torch.bool else rows.long()).reshape(-1)
        return self._map(lambda tensor: tensor[rows])

    def __repr__(self) -> str:
        """Return a one-line summary."""
        margins = self.margin[self.found]
        middle = f", median margin {float(margins.double().quantile(0.5)):.4g}" if len(margins) else ""
        return (
            f"BoundaryPoints({len(self)} examples, {self.norm}, {self.boundary} boundary: {int(self.inside.sum())} "
            f"inside, {int(self.found.sum())} found, {int(self.optimal.sum())} locally optimal{middle})"
        )

    def to(self, device: torch.device | str) -> "BoundaryPoints":
        """Return a copy on another device."""
        moved = self._map(lambda tensor: tensor.to(device))
        if self.bounds is None:
            return moved
        low, high = (bound.to(device) if isinstance(bound, Tensor) else bound for bound in self.bounds)
        return dataclasses.replace(moved, bounds=(low, high))

    @property
    def displacement(self) -> Tensor:
        """From the inputs to the points, like inputs, in the dtype of the gradient."""
        return self.points.to(self.gradient.dtype) - self.inputs.to(self.gradient.dtype)

    @property
    def orientation(self) -> Tensor:
        """+1 for examples inside their class, -1 for the others, ``[N]``."""
        return torch.where(self.inside, 1.0, -1.0).to(self.margin.dtype)

    @property
    def free(self) -> Tensor:
        """Coordinates that the box does not pin at the point, ``[N, D]``."""
        lower, upper = as_bounds(self.bounds, self.inputs, check=False)
        way = self.displacement
        return optimality.free_coordinates(way, self.points, self.gradient, self.orientation, lower, upper)

    def multiplier(self, box_aware: bool = True) -> Tensor:
        """Return lambda, ``[N]``, by which speed and margin gradient divide; not ``box_aware``: the paper's ||g||_q."""
        free = self.free if box_aware else torch.ones_like(flat(self.gradient), dtype=torch.bool)
        return optimality.multiplier(self.displacement, self.gradient, free, self.norm)

    def is_optimal(self, residual: float = RESIDUAL, alignment: float = ALIGNMENT) -> Tensor:
        """Return where the point is found, ``|value| <= residual`` and the alignment is above ``alignment``."""
        return self.found & (self.value.abs() <= residual) & (self.alignment > alignment)

    @property
    def optimal(self) -> Tensor:
        """Locally optimal by the default thresholds: ``|value| <= 0.1`` and alignment > 0.9; see also ``shock``."""
        return self.is_optimal()

    def check_conditions(self, **thresholds: float) -> optimality.Conditions:
        """Check the paper's conditions with other thresholds (see ``optimality.paper_conditions``)."""
        conditions = optimality.paper_conditions(
            self.displacement, self.gradient, self.value, self.orientation, self.free, self.norm, **thresholds
        )
        return optimality.Conditions(*(self.found & condition for condition in conditions))

    @property
    def conditions(self) -> optimality.Conditions:
        """The paper's conditions (a), (b), (c) with its thresholds."""
        return self.check_conditions()

    def is_shock(self, ratio: float = SHOCK) -> Tensor:
        """Return where the margin function is nearly flat at the point, so that the speed goes to infinity.

        Flat means: its slope there is below ``ratio`` times the mean slope on the way from the input.
        """
        return self.found & (self.multiplier() * self.margin.abs() < ratio * self.input_value.abs())

    @property
    def shock(self) -> Tensor:
        """Points where the gradient nearly vanishes (the paper's shock), by the default threshold."""
        return self.is_shock()

    @property
    def verdict(self) -> list[str]:
        """One word or two per example: why its margin is or is not to be trusted."""
        checks = [
            ("locally optimal", torch.ones_like(self.found)),
            ("not closest", ~(self.alignment > ALIGNMENT)),
            ("off the boundary", self.value.abs() > RESIDUAL),
            ("flat", self.shock),
            ("not found", ~self.found),
            ("not inside", ~self.found & ~self.inside & (not self.signed)),
        ]
        code = torch.zeros(len(self), dtype=torch.long, device=self.found.device)
        for number, (_, holds) in enumerate(checks):
            code = torch.where(holds, number, code)
        return [checks[number][0] for number in code.tolist()]

    def explain(self, index: int | Tensor, classes: Sequence[str] | None = None) -> str:
        """Say in a sentence what is known of one example's margin; ``classes`` are the names of the classes."""

        def named(number: Tensor) -> str:
            name = _class_name(int(number), classes or ())
            return f"class {int(number)}" + (f" ({name})" if name else "")

        index = int(index)
        one = self[index]
        verdict = one.verdict[0]
        name = "phi" if self.boundary == "exact" else "Phi"
        start = f"example {index}, {named(one.labels[0])}: {verdict}"
        if verdict == "not inside":
            return f"{start}; {name} is {float(one.input_value[0]):.4g} at the input, so it has no margin"
        if verdict == "not found" and one.lost is not None and bool(one.lost[0]):
            doubt = "" if self.solver in SOLVERS else f"; or the point that {self.solver} returned was not across"
            return (
                f"{start}; a point across the boundary was met, but the model answered differently when asked again: "
                f"switch its noise off, use layers that treat examples one by one, and compute in float32{doubt}"
            )
        if verdict == "not found":
            return (
                f"{start}; no point across the boundary was met: try more steps or restarts; perhaps the network "
                "predicts only this class around here"
            )
        side = "towards" if bool(one.inside[0]) else "from"
        margin, value, alignment = float(one.margin[0]), float(one.value[0]), float(one.alignment[0])
        return (
            f"{start}; {self.norm} margin {margin:.4g} {side} {named(one.rival[0])}, {name} at the point "
            f"{value:.3g} (on the boundary if at most {RESIDUAL:g} in size), alignment {alignment:.3f} (locally "
            f"closest if above {ALIGNMENT:g}), slope {float(one.multiplier()[0]):.3g}"
        )

    def to_csv(
        self,
        path: str | os.PathLike[str],
        index: Sequence[int] | Tensor | None = None,
        files: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[Any] | Tensor] | None = None,
    ) -> None:
        """Write one line per example.

        A part is counted from 0, as every result is. So that its lines can be joined with those of the whole, or of
        another model, name the examples by what chose them: ``found[mask].to_csv(path, index=mask)``. Columns of
        one's own come last. Before them is ``lost``: whether a point was found, but was no longer across the boundary
        when evaluated again; empty where that is not known.

        Args:
            path: of the file.
            index: what the examples are called: numbers, or the mask that they were chosen by; None: their positions
                in this result.
            files: what they were read from, for one more column.
            classes: names of the classes, for two more columns.
            columns: of one's own, by name, a value per example: ``columns={"speed": speed}``.
        """
        names = range(len(self)) if index is None else _numbers(index)
        more = {name: _values(column) for name, column in (columns or {}).items()}
        for words, given in (
            ("index names", names),
            ("files names", files),
            *((f"{key!r} has", more[key]) for key in more),
        ):
            if given is not None and len(given) != len(self):
                raise ValueError(f"{words} {len(given)} examples, but there are {len(self)}")
        table: dict[str, Sequence[Any]] = {"index": names, "label": self.labels.tolist()}
        for field in (
            "rival",
            "correct",
            "inside",
            "found",
            "margin",
            "value",
            "alignment",
            "optimal",
            "input_value",
        ):
            values = getattr(self, field)
            table[field] = _values(values)
        table["verdict"] = self.verdict
        if classes is not None:
            for name, numbers in (("class", table["label"]), ("rival_class", table["rival"])):
                table[name] = [_class_name(number, classes) for number in numbers]
        if files is not None:
            table["file"] = files
        table["lost"] = [""] * len(self) if self.lost is None else _values(self.lost)
        if taken := sorted(table.keys() & more.keys()):
            raise ValueError(f"there is a column {taken[0]!r} already: give yours another name")
        table |= more
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file, points and gradients included, for ``load``."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        bounds = self.bounds and tuple(bound if isinstance(bound, Tensor) else float(bound) for bound in self.bounds)
        # Plain types alone: they are read back without running anything.
        plain = {"bounds": bounds, "beta": float(self.beta), "cost": tuple(self.cost), FORMAT: 1}
        torch.save(content | plain, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> "BoundaryPoints":
        """Return what ``save`` wrote, on a device. Nothing in the file is executed.

        Raises:
            ValueError: the file is something else.
        """
        try:
            content = load_plain(path, device)
        except ValueError as error:
            raise ValueError(f"{error}: write it with BoundaryPoints.save") from error
        if not isinstance(content, dict) or content.pop(FORMAT, None) != 1:
            raise ValueError(f"{path} holds no boundary points of this version: write it with BoundaryPoints.save")
        return cls(**content | {"cost": Passes(*content["cost"])})

    def _map(self, change: Callable[[Tensor], Tensor]) -> "BoundaryPoints":
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in _tensor_fields(self)}
        return dataclasses.replace(self, **changed)


def _numbers(index: Sequence[int] | Tensor) -> Sequence[int]:
    """Return what examples are called, as plain numbers: a mask's are the places that it chooses."""
    if not isinstance(index, Tensor) and not (len(index) and isinstance(index[0], bool | np.bool_)):
        return index
    rows = torch.as_tensor(index)
    rows = rows.nonzero() if rows.dtype == torch.bool else rows
    numbers: list[int] = rows.reshape(-1).tolist()  # nonzero() has a column
    return numbers


def _values(column: Sequence[Any] | Tensor) -> Sequence[Any]:
    """Return a column as a file has it: flags as 0 and 1."""
    if not isinstance(column, Tensor):
        return column
    values: list[Any] = (column.int() if column.dtype == torch.bool else column.detach()).tolist()
    return values


def _class_name(number: int, classes: Sequence[str]) -> str:
    """Return a class's name; "" for none, and for one that has no name."""
    return classes[number] if 0 <= number < len(classes) else ""


def concat(parts: Sequence[BoundaryPoints]) -> BoundaryPoints:
    """Join results of one problem (same norm, boundary, beta, bounds, solver, signed or not) into one."""
    if not parts:
        raise ValueError("concat needs at least one BoundaryPoints")
    first = parts[0]
    for name in ("norm", "boundary", "beta", "solver", "signed"):
        values = {getattr(part, name) for part in parts}
        if len(values) > 1:
            raise ValueError(f"concat: the parts differ in {name}: {sorted(map(str, values))}")
    if not all(_same_bounds(first.bounds, part.bounds) for part in parts):
        raise ValueError("concat: the parts differ in bounds")
    columns = {name: [getattr(part, name) for part in parts] for name in {*_tensor_fields(first), "lost"}}
    joined: dict[str, Any] = {
        name: None if any(row is None for row in rows) else torch.cat(rows) for name, rows in columns.items()
    }
    return dataclasses.replace(first, **joined, cost=most_passes(part.cost for part in parts))


def _tensor_fields(points: BoundaryPoints) -> list[str]:
    """Return the names of the fields with one row per example."""
    names = [field.name for field in dataclasses.fields(points) if field.name != "bounds"]
    return [name for name in names if isinstance(getattr(points, name), Tensor)]


def _same_bounds(one: Bounds, other: Bounds) -> bool:
    if one is None or other is None:
        return one is other
    pairs = zip(one, other, strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
