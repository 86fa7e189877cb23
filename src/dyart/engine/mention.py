"""What is easily overlooked at the start of a training, in a line each."""

import sys
from typing import Any

from dyart.engine.fit import Training
from dyart.engine.resuming import Changes, in_words

# A training radius so many times the one that it is judged by, or less than its inverse, may not be meant.
FAR = 1.5
# Steps that lead less than this share of the radius away end short of it; usual is this many radii over all steps.
SHORT, USUAL_STEPS = 0.999, 2.5


def mention(training: Training, changes: Changes) -> None:
    """Print what is easily overlooked: settings that change on the way, a training far from where it is judged, and an
    attack that ends short of its radius.
    """
    config, lines = training.config, []
    if changes:
        lines.append(f"from step {training.steps_done} on: {in_words(changes)}")
    radius, judged = config.method.get("radius"), config.eval.radius
    if radius is not None and not 1 / FAR < radius / judged < FAR:
        lines.append(f"method.radius is {radius} and eval.radius {judged}: is that meant?")
    if (short := _short(config.method)) is not None:
        lines.append(short)
    for line in lines:
        training.fabric.print(line, file=sys.stderr)


def _short(method: dict[str, Any]) -> str | None:
    """Return the words for a method whose steps do not lead to its radius: a radius that was set alone."""
    radius, steps, size = (method.get(name) for name in ("radius", "steps", "step_size"))
    if radius is None or steps is None or size is None or steps * size >= SHORT * radius:
        return None
    usual = f"--method.step_size {USUAL_STEPS * radius / steps:.3g}"
    return (
        f"method.steps {steps} of method.step_size {size} lead {steps * size:.3g} far, and method.radius is {radius}: "
        f"the attack is weaker than usual, is that meant? Usual is {usual}"
    )
