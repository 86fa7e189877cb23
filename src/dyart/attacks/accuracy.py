"""Which examples a classifier gets right, as they are and under PGD: the quick measure for selection."""

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from dyart.attacks.pgd import BallSettings, negative_margin, pgd
from dyart.boundary.memory import Pieces
from dyart.boundary.model import Model, evaluation_mode, logits_of, ordinary, unchanged
from dyart.boundary.norms import Norm
from dyart.boundary.validation import Bounds

PGD_STEPS = 20


def correct(model: Model, inputs: Tensor, labels: Tensor, batch_size: int = 512) -> Tensor:
    """Return which examples are classified as labelled, ``[N]``: one forward pass, eval mode."""
    return _in_batches(lambda x, y, _: _predicted(model, x) == y, model, inputs, labels, batch_size)


def resists_pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float,
    *,
    steps: int = PGD_STEPS,
    norm: Norm = "linf",
    key: int = 0,
    bounds: Bounds = (0.0, 1.0),
    batch_size: int = 512,
) -> Tensor:
    """Return which examples stay classified as labelled under PGD on the margin loss, ``[N]``.

    An example counts as broken if any point of the way fools the model: PGD on the margin stops where it does.
    Cost: ``steps + 2`` forward and ``steps`` backward passes; BatchNorm in eval mode.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        radius: of the ball.
        steps: of PGD, from a uniform start, a quarter of the radius each.
        norm: ``"linf"`` or ``"l2"``.
        key: of the start's draws, with the examples' places.
        bounds: the box.
        batch_size: examples at a time.
    """

    def resists(x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return judged(model, x, y, radius, steps, norm=norm, key=key, index=rows, bounds=bounds)[1]

    return _in_batches(resists, model, inputs, labels, batch_size)


def judged(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float,
    steps: int = PGD_STEPS,
    **settings: Unpack[BallSettings],
) -> tuple[Tensor, Tensor]:
    """Return which examples of one batch are classified as labelled: as they are, and also at ``margin_pgd``'s points.

    The model runs as it is, in the mode that the caller sets. Static shapes and no host synchronisation: it can be
    captured. Cost: ``steps + 2`` forward and ``steps`` backward passes.

    Args:
        model: from inputs to logits.
        inputs: ``[N, ...]``.
        labels: ``[N]``.
        radius: of the ball.
        steps: of PGD.
        settings: of ``pgd``.
    """
    clean = _predicted(model, inputs) == labels
    points = margin_pgd(model, inputs, labels, radius, steps, **settings)
    return clean, clean & (_predicted(model, points) == labels)


def margin_pgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: float | Tensor,
    steps: int = PGD_STEPS,
    **settings: Unpack[BallSettings],
) -> Tensor:
    """Return the points of ``pgd`` on the margin loss from a uniform start, with steps of a quarter of the radius."""
    return pgd(model, inputs, labels, radius, steps, radius / 4, objective=negative_margin, **settings)


def _predicted(model: Model, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return logits_of(model(inputs)).argmax(dim=1)


def _in_batches(
    judge: Callable[[Tensor, Tensor, Tensor], Tensor], model: Model, inputs: Tensor, labels: Tensor, batch_size: int
) -> Tensor:
    with torch.inference_mode(False), evaluation_mode(model), unchanged(model, inputs.device):
        if len(inputs) == 0:  # of many processes with few examples, some have none
            return torch.zeros(0, dtype=torch.bool, device=inputs.device)
        rows = torch.arange(len(inputs), device=inputs.device)
        x, y = ordinary(inputs), ordinary(labels)
        pieces = Pieces("accuracy")
        parts = [pieces(lambda some: judge(x[some], y[some], some), part) for part in rows.split(batch_size)]
        return torch.cat([flags for part in parts for flags in part])
