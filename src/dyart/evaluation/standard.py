"""The four attacks of AutoAttack (Croce and Hein, 2020) in their standard settings, with their authors' results.

    apgd-ce   Auto-PGD on the cross-entropy: 100 steps; for l1, 5 restarts from larger balls
    apgd-t    Auto-PGD on the targeted DLR loss: 100 steps towards each of 9 classes (l1: 5)
    fab-t     FAB, 100 steps towards each of 9 classes
    square    Square, 5,000 queries, without gradients

With fewer classes there are fewer targets. The targeted DLR loss divides by a difference that needs four classes: for
two and three it is replaced by the logit margin against the target. Square changes squares of pixels: it is left out
for inputs that are no images.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from dyart.boundary.model import Model
from dyart.boundary.norms import Norm
from dyart.evaluation.authors import DLR_CLASSES, LOGGER, TARGETS, Batch

NAMES = ("apgd-ce", "apgd-t", "fab-t", "square")
STEPS, QUERIES = 100, 5000
SMALLEST = 5  # image that Square's pattern of squares fits into, for l2 and l1


def run(
    name: str,
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    radius: Tensor,
    *,
    norm: Norm,
    classes: int,
    seed: int,
    box: tuple[float, float] = (0.0, 1.0),
    room: int = 0,
) -> Tensor:
    """Return what an attack makes of the inputs: points within the radius, the inputs themselves where it fails.

    With one radius for all, and no ``room``, the points are those of the authors' ``perturb`` with the same seed. The
    random state is the same afterwards. (``View`` keeps the gradients away from the model.)

    Args:
        name: one of ``NAMES``.
        model: a differentiable callable to logits in float32, e.g. a ``View``.
        inputs: ``[N, ...]``, float32, in the box, classified as labelled.
        labels: ``[N]``.
        radius: of every example's ball, ``[N]``.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        classes: number of logits.
        seed: of the attack's draws.
        box: the same for all features; the authors' code knows [0, 1], so others are mapped onto it.
        room: APGD-T aims at several classes at once, as long as that makes a batch of at most so many.

    Raises:
        ImportError: pyautoattack is needed (see ``needs_pyautoattack``) and not installed.
    """
    low, high = box
    span = high - low
    unit = box == (0.0, 1.0)
    x = inputs if unit else (inputs - low) / span
    called = model if unit else lambda z: model(low + span * z)
    problem = Batch(called, x, labels, (radius / span).to(x), norm, classes, seed, STEPS, QUERIES, room)
    with _alone(x.device):
        points = problem.attacked(name).detach()
    if unit:
        return points
    return torch.where(points == x, inputs, (low + span * points).clamp(low, high))


def needs_pyautoattack(names: Sequence[str], norm: Norm) -> bool:
    """Return whether some of the attacks need the authors' package: all but Auto-PGD for L-inf and L2."""
    return any(name in NAMES and (norm == "l1" or "apgd" not in name) for name in names)


def left_out(name: str, shape: tuple[int, ...], norm: Norm) -> str | None:
    """Return why an attack cannot be run on inputs of a shape; None if it can."""
    small = norm != "linf" and len(shape) == 3 and min(shape[1:]) < SMALLEST
    if name != "square" or (len(shape) == 3 and not small):
        return None
    need = f"images of at least {SMALLEST}x{SMALLEST} pixels" if small else "images [C, H, W]"
    return f"Square is left out: it needs {need}, the inputs are {'x'.join(map(str, shape))}"


def replaced(names: Sequence[str], classes: int, norm: Norm) -> list[str]:
    """Return how some of the attacks differ from their standard settings with so few classes, in words."""
    notes = []
    if "apgd-t" in names and classes < DLR_CLASSES:
        notes.append(
            f"APGD-T uses the logit margin against the target: the targeted DLR loss needs {DLR_CLASSES} classes, "
            f"there are {classes}"
        )
    for name, most in TARGETS.items():
        if name in names and classes - 1 < most[norm]:
            targets = f"{classes - 1} target class{'es' if classes > 2 else ''}"
            notes.append(f"{name.upper()} has {targets} instead of {most[norm]}: there are {classes} classes")
    return notes


@contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    """Keep the attacks' seeds and words to themselves: what they would warn of, the preflight says beforehand."""
    there = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    silent = LOGGER.disabled
    LOGGER.disabled = True
    try:
        # They seed all GPUs, wherever they run.
        with there, torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            yield
    finally:
        LOGGER.disabled = silent
