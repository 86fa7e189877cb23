"""Closest boundary points: from a user's model and inputs to a solver's problem, and back."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dyart.boundary import optimality, validation
from dyart.boundary.kernels import compiled
from dyart.boundary.margins import BOUNDARIES, Boundary, boundary_value
from dyart.boundary.memory import Pieces
from dyart.boundary.model import (
    Model,
    evaluation_mode,
    has_batch_statistics,
    has_training_batch_norm,
    ieee_float32,
    logits_of,
    unchanged,
)
from dyart.boundary.multistart import Effort, solve
from dyart.boundary.norms import NORMS, Norm, flat
from dyart.boundary.points import BoundaryPoints, Passes, most_passes
from dyart.boundary.polish import polish
from dyart.boundary.problem import Best, Problem, no_tick
from dyart.boundary.progress import Counter, Progress
from dyart.boundary.repeats import warn_of_changes
from dyart.boundary.solvers import Solver, apgd
from dyart.boundary.solvers.own import check_solver, name_of, warn_of_lost
from dyart.boundary.validation import Bounds, Start, as_bounds

Divide: TypeAlias = Callable[[Sequence[Callable[[], Any]]], Iterable[Any]]


def closest_boundary_points(
    model: Model,
    inputs: Tensor,
    labels: Tensor | None = None,
    norm: Norm = "linf",
    boundary: Boundary = "exact",
    beta: float = 5.0,
    steps: int = 50,
    restarts: int = 1,
    bounds: Bounds = (0.0, 1.0),
    solver: str | Solver = "fast",
    tol: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    validate: bool = True,
    progress: Progress = False,
    signed: bool = False,
    rivals: int = 9,
    start: Start = None,
    divide: Divide | None = None,
    index: Tensor | None = None,
) -> BoundaryPoints:
    """Find the closest point of the decision boundary for every example, and say how good it is.

    The model runs in eval mode (BatchNorm with its running statistics) and in the inputs' dtype, without TF32 and
    autocast; margins are float32 or better. Its modes, flags, gradients, buffers and the global random state are the
    same afterwards. Every point reported as found was evaluated on the other side of the boundary, inside the bounds.
    A function is called as it is: put what it wraps into eval mode first. Of a bound method, such as
    ``model.classify``, the module's mode is set.

    Cost: one forward pass; ``steps`` forward and backward passes per restart, whatever the number of classes; to
    compare ``rivals``, once, a forward pass (``"l1"``: two) and a backward pass for each (a search that aims at one
    of them then needs no step for the input); and, for the exact boundary, a gradient evaluation of the result if
    some search aimed at one class (one of the steps where restarts are shortened). ``tol`` adds a few forward passes
    and three gradient evaluations. A solver of your own costs what it spends, and a gradient evaluation whenever it is
    called. Examples without a margin take no part. ``validate`` adds a forward pass of at most 2 examples, and another
    where that one disagrees with the first; ``cost`` leaves them out.

    Args:
        model: any callable from inputs to logits ``[N, K]`` (or to an object with ``.logits``), K >= 2.
        inputs: ``[N, ...]``, floating point, inside the bounds. Normalisation belongs inside the model.
        labels: ``[N]``, integers; None: the model's own predictions.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        boundary: ``"exact"`` (zero set of ``logit_margin``) or ``"soft"`` (of ``soft_logit_margin``).
        beta: inverse temperature of the soft boundary.
        steps: gradient evaluations per restart, at least 2.
        restarts: searches per example; the closest point counts. The first aims at the nearest rival class, the
            next at the second nearest (``"l1"``: the likeliest other), all others at the likeliest that is left; when
            all ``rivals`` have had their turn, they start at random. A fast search of 18 steps (``"l1"``: 22) and more
            is a race: a few steps towards each of the first 2 rivals, later up to 6, the rest towards those that came
            closest, in the end towards one; ``"apgd"``, a solver of your own that aims, and a search with a random
            ``start``, divide their steps among them. With at most 64 features, random restarts of 40 steps and more
            are more and shorter searches of as many steps together (not for ``"l1"``).
        bounds: ``(low, high)``, numbers or tensors that broadcast to one example; None: no bounds.
        solver: ``"fast"``; ``"apgd"``, Auto-PGD with a search for the radius, a second opinion at the same cost
            (``"linf"`` and ``"l2"``); ``"fab"``, the classic search that linearises against every rival at every
            step (2 forward and K - 1 backward passes each; its restarts are random); or a function of your own, see
            ``dyart.boundary.solvers.Solver``. Its points are put into the box and evaluated anew: those that are not
            across the boundary are not found, with a warning, and ``lost``.
        tol: if given, slide the points onto the boundary until ``-tol <= value < 0``.
        batch_size: examples per forward pass; None: all at once. Halved where memory runs out.
        seed: of the random starts. An example's draws depend on the seed, the restart and its index alone.
        validate: check inputs, labels, bounds and logits before any work, and ask the model about up to 2 examples
            again, with a warning where it says something else (costs host synchronisation).
        progress: True for a progress line on stderr, or a callable ``(done, total)``.
        signed: also search from examples outside their class, in batches of their own and without a comparison of
            rivals; their margin is minus the distance to it. Where the closest way in is a corner between several
            rivals, the distance found is too long and not ``optimal``, or none is found.
        rivals: how many other classes, likeliest first, are compared at the input for the one to aim at. 1: no
            comparison; the first search follows the largest rival, whichever that is; a second one, where steps are
            divided, aims at the second likeliest; further restarts start at random.
        start: where the first search starts. None: at the input; for ``"l1"``, where rivals are compared, 0.7 % of the
            box beside it (without one that fits the data, of the spread of an example's own values, at most 7 % of
            each), and they are compared there. A tensor like ``inputs``: at these points, e.g. the ones found
            before the last change of the model; the search stays near them and follows the largest rival, no rivals
            are compared unless further restarts need it (they are the searches without a start, one fewer), and a
            start across the boundary is never traded for a farther point (a solver of your own has to see to that
            itself). ``"random"``: at a random point half as far away as the boundary seems from the input (one more
            gradient evaluation where no rivals are compared).
        divide: does the batches' searches, pieces of work without arguments, and returns their results in order: e.g.
            ``dyart.data.ranks.team_here().do``, for several processes that each call this alike. None: one after the
            other, here.
        index: what the examples' random draws go by, ``[N]``, integers from 0 on, e.g. their places in a larger set;
            None: their places in ``inputs``.
    """
    _check_options(norm, boundary, beta, steps, restarts, solver, tol, batch_size, rivals, seed)
    if signed and solver != "fast":
        raise ValueError(
            f"signed margins need solver='fast', got {name_of(solver)!r}: it looks for the nearest rival only"
        )
    bounds = None if bounds is None else validation.as_pair(bounds)
    batch_size = None if batch_size is None else int(batch_size)
    if validate:
        validation.check_inputs(inputs, bounds)
        if labels is not None:
            validation.check_labels(labels, inputs)
        warned = has_batch_statistics(model)
        if warned:
            warnings.warn(
                "the model has BatchNorm layers without running statistics: an example's logits depend on its batch, "
                "and the search divides batches. A point that is across the boundary in one may not be in another",
                stacklevel=2,
            )
        if has_training_batch_norm(model):
            warnings.warn(
                "the model has BatchNorm layers in training mode; the search uses their running statistics (eval "
                "mode) and leaves the mode as it is. Call model.eval() to silence this",
                stacklevel=2,
            )
        warned |= validation.warn_of_training(model, "Call .eval() first", stacklevel=3)
    validation.check_start(start, inputs, bounds, validate)
    if index is not None:
        validation.check_index(index, inputs, validate)
    with ieee_float32(inputs.device), evaluation_mode(model), unchanged(model, inputs.device):
        # A copy, so that the result stays right whatever the caller does to the batch later.
        inputs, given = inputs.detach().clone(), labels
        pieces = Pieces("closest boundary points")
        logits = _all_logits(model, inputs, batch_size, validate, pieces)
        if given is not None and validate and len(inputs):
            validation.check_label_range(given, logits.shape[1])
        if validate and not warned and len(inputs) and not hasattr(model, "_orig_mod"):  # torch.compile's
            first = slice(0, batch_size)
            warn_of_changes(partial(validation.first_logits, model), inputs[first], logits[first], stacklevel=2)
        labels = logits.argmax(dim=1) if given is None else given.detach().long().clone()
        whole = Problem(model, inputs, labels, norm, boundary, beta, *as_bounds(bounds, inputs))
        input_value = boundary_value(logits, labels, boundary, beta).to(whole.origin.dtype)
        inside = input_value > 0
        best, lost = whole.nothing(), torch.zeros_like(inside)
        given_start = whole.into_box(flat(start.detach()).to(whole.origin)) if isinstance(start, Tensor) else None
        kinds = [(inside.nonzero()[:, 0], False), ((~inside & signed).nonzero()[:, 0], True)]
        names = torch.arange(len(inputs), device=inside.device) if index is None else index.to(inside.device)
        chunks = [(part, out) for rows, out in kinds if len(rows) for part in rows.split(batch_size or len(rows))]
        effort = Effort(solver, steps, restarts, rivals, seed)
        counter = Counter(progress, len(chunks) * restarts * steps)
        cost = Passes(forward=min(len(inputs), 1), backward=0)

        def searched(chunk: Tensor, outside: bool) -> tuple[Best, Tensor, Passes]:
            part = whole.part(chunk, outside)
            begin = start if given_start is None else given_start[chunk]
            solved = solve(part, logits[chunk], names[chunk], effort, begin, counter.tick)
            if tol is not None:
                solved = polish(part, solved, part.orient(input_value[chunk]), tol)
            gone = torch.zeros_like(solved.found) if part.lost is None else part.lost & ~solved.found
            return part.unorient(solved), gone, Passes(1 + part.forward, part.backward)

        def fitted(chunk: Tensor, outside: bool) -> tuple[Best, Tensor, Passes]:
            found, gone, spent = zip(*pieces(partial(searched, outside=outside), chunk), strict=True)
            joined = Best(*map(torch.cat, zip(*found, strict=True)))
            return joined, torch.cat(gone), most_passes(spent)

        works = [partial(fitted, *chunk) for chunk in chunks]
        results = (work() for work in works) if divide is None else divide(works)
        for (chunk, _), (solved, gone, spent) in zip(chunks, results, strict=True):
            best = best.insert(chunk, Best(*(tensor.to(inputs.device) for tensor in solved)))
            lost[chunk] = gone.to(inputs.device)
            cost = most_passes([cost, spent])
        correct = logits.argmax(dim=1) == labels
        if validate and not isinstance(solver, str):
            warn_of_lost(solver, lost, stacklevel=2)
        return replace(assemble(whole, bounds, best, input_value, correct, cost, name_of(solver), signed), lost=lost)


def static_boundary_points(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    norm: Norm,
    boundary: Boundary,
    beta: float,
    bounds: Bounds,
    steps: int,
    start: Tensor | None = None,
    rounds: int | None = None,
) -> BoundaryPoints:
    """Search as ``closest_boundary_points`` does, with static shapes: a piece of work that can be captured.

    Every example takes part, and those without a margin are left out in the end. The model runs as it is, in the mode
    and precision that the caller sets. No host synchronisation if ``rounds``, the projections' Newton rounds, is a
    number. Nothing is checked.
    """
    with torch.no_grad():
        logits = logits_of(model(inputs))
    box = as_bounds(bounds, inputs, check=False)
    problem = Problem(model, inputs, labels, norm, boundary, beta, *box, rounds=rounds)
    input_value = boundary_value(logits, labels, boundary, beta).to(problem.origin.dtype)
    correct = logits.argmax(dim=1) == labels
    begin = None if start is None else problem.into_box(flat(start.detach()).to(problem.origin))
    best = solve(problem, logits, torch.arange(0), Effort("fast", steps, restarts=1, rivals=9, seed=0), begin, no_tick)
    best = best.where(input_value > 0, problem.nothing())
    cost = Passes(1 + problem.forward, problem.backward)
    return assemble(problem, bounds, best, input_value, correct, cost, "fast")


def assemble(
    problem: Problem,
    bounds: Bounds,
    best: Best,
    input_value: Tensor,
    correct: Tensor,
    cost: Passes,
    solver: str,
    signed: bool = False,
) -> BoundaryPoints:
    """Turn a solver's flat result into BoundaryPoints, with signed margins and alignments. No model pass, no sync."""
    shape = problem.inputs.shape
    inside, margin, value, alignment = (compiled(_signed) if problem.compiled else _signed)(problem, best, input_value)
    return BoundaryPoints(
        inputs=problem.inputs,
        labels=problem.labels,
        norm=problem.norm,
        boundary=problem.boundary,
        beta=problem.beta,
        bounds=bounds,
        points=best.points.to(problem.inputs.dtype).reshape(shape),
        margin=margin,
        value=value,
        gradient=best.gradient.reshape(shape),
        correct=correct,
        inside=inside,
        found=best.found,
        alignment=alignment,
        rival=best.rival,
        input_value=input_value,
        cost=cost,
        solver=solver,
        signed=signed,
    )


def _signed(problem: Problem, best: Best, input_value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return who is inside, and signed margin, value and alignment of every point."""
    inside = input_value > 0
    orientation = torch.where(inside, 1.0, -1.0).to(input_value)
    way = best.points - problem.origin
    free = optimality.free_coordinates(way, best.points, best.gradient, orientation, problem.low, problem.high)
    alignment = optimality.alignment(way, best.gradient, orientation, free, problem.norm)
    found = best.distance.isfinite()  # torch 2.6 cannot compile best.found, a property
    return (
        inside,
        torch.where(found, best.distance * orientation, torch.nan),
        torch.where(found, best.value, input_value),
        torch.where(found, alignment, torch.nan),
    )


def _all_logits(model: Model, inputs: Tensor, batch_size: int | None, validate: bool, pieces: Pieces) -> Tensor:
    """Return the logits of all inputs, checked: one forward pass."""
    if len(inputs) == 0:
        return inputs.new_zeros((0, 2), dtype=torch.float32)
    logits_of_part = partial(validation.first_logits, model)
    parts = [pieces(logits_of_part, part) for part in inputs.split(batch_size or len(inputs))]
    logits = torch.cat([logits for piece in parts for logits in piece])
    if validate:
        validation.check_logits(logits, len(inputs))
    return logits


def _check_options(
    norm: str,
    boundary: str,
    beta: float,
    steps: int,
    restarts: int,
    solver: str | Solver,
    tol: float | None,
    batch_size: int | None,
    rivals: int,
    seed: int,
) -> None:
    validation.check_choice("norm", norm, NORMS)
    validation.check_choice("boundary", boundary, BOUNDARIES)
    check_solver(solver)
    if solver == "apgd":
        apgd.check_norm(norm)
    validation.check_positive("beta", beta)
    validation.check_count("steps", steps, 2)
    validation.check_count("restarts", restarts, 1)
    validation.check_count("rivals", rivals, 1)
    validation.check_count("seed", seed, 0)
    if tol is not None:
        validation.check_positive("tol", tol)
    if batch_size is not None:
        validation.check_count("batch_size", batch_size, 1)
