"""What was trained and how, in sentences for a person; and numbers as the page writes them."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from dyart.engine.resuming import in_words
from dyart.engine.weights import WEIGHTS
from dyart.recipes.config import BURN_INS
from dyart.report.page.files import Estimate
from dyart.report.page.run import Run
from dyart.report.style import method_name

DASH = "\u2013"  # between numbers; also: nothing
NORMS = {"linf": "L∞", "l2": "L2", "l1": "L1"}

# Continue "AT ...", with the method's settings put in. A method of the user's own has only its name.
METHODS = {
    "natural": "learns from the images as they are",
    "at": "learns from images moved by up to {radius} ({norm}, {steps} steps of PGD) so that the loss rises",
    "trades": "asks for the same answer at an image and at its worst neighbour within {radius} ({norm})",
    "mart": "learns from images moved by up to {radius} ({norm}) and gives more weight to those it gets wrong",
    "mma": "learns at points that just cross the boundary, as long as they are closer than {hinge} ({norm})",
    "gairat": "learns from images moved by up to {radius} ({norm}) and gives more weight to those that fall early",
    "mail-at": "learns from images moved by up to {radius} ({norm}), weighted by their probability margins",
    "mail-trades": "is TRADES within {radius} ({norm}), weighted by probability margins",
    "fat": "learns from moved images that are only just misclassified, within {radius} ({norm})",
    "fat-trades": "is TRADES with attacks that stop soon after an error, within {radius} ({norm})",
    "dyart": "finds the closest boundary point of every example and pushes the boundary away where the margin is "
    "below {r0} ({norm}), most where it is smallest",
}
AWP = "-awp"
# Of a commit, the beginning says enough.
COMMIT = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{33}\b")


def percent(value: float) -> str:
    """Return a share as a percentage, e.g. ``59.3 %``."""
    return DASH if math.isnan(value) else f"{100 * value:.1f}\u00a0%"


def interval(share: Estimate) -> str:
    """Return the 95 % interval of a share, e.g. ``57.1-61.4 %`` with a longer dash."""
    return "" if math.isnan(share.value) else f"{100 * share.low:.1f}\u2009{DASH}\u2009{100 * share.high:.1f}\u00a0%"


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def duration(seconds: float) -> str:
    """Return a time in the unit that a person would say."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s"


def class_name(run: Run, label: int) -> str:
    """Return the name of a class, or its number."""
    return run.classes[label] if 0 <= label < len(run.classes) else f"class {label}"


def method_of(run: Run) -> str:
    """Return the name of the method that a run trained with, as papers write it."""
    name = str(run.config.get("method.name", "unknown method"))
    return "Natural training" if name == "natural" else method_name(name)


def how(run: Run) -> list[str]:
    """Return a few sentences: the method, the training, what was kept; or what was measured."""
    if not run.trained:
        return [_elsewhere(run)]
    return [sentence for sentence in (_method(run), _training(run), *changes(run), _kept(run)) if sentence]


def changes(run: Run) -> list[str]:
    """Return what changed where the training went on after a stop, a sentence for each time."""
    recorded = run.environment.get("changes")
    said = []
    for change in recorded if isinstance(recorded, list) else []:
        parts = change.items() if isinstance(change, dict) else ()
        pairs = {str(key): (pair[0], pair[1]) for key, pair in parts if isinstance(pair, list) and len(pair) == 2}
        if pairs:
            said.append(COMMIT.sub(r"\1", f"From step {change.get('step')} on: {in_words(pairs)}."))
    return said


def _elsewhere(run: Run) -> str:
    get = run.config.get
    weights = f" with the weights {get('model.weights')}" if get("model.weights") else ""
    data = f" on {get('data.name')}" if get("data.name") else ""
    network = f"Network {get('model.name')}" if get("model.name") else "A network"
    return f"{network}{weights}{data}: measured here, not trained here."


def _method(run: Run) -> str:
    config = run.config
    name = str(config.get("method.name", ""))
    known = METHODS.get(name.removesuffix(AWP))
    if known is None:
        return ""
    values = {key.removeprefix("method."): value for key, value in config.items() if key.startswith("method.")}
    norm = str(values.get("norm", run.norm))
    words = known.format_map(_Known(values | {"norm": NORMS.get(norm, norm)}))
    awp = ", with weights moved against it at every step" if name.endswith(AWP) else ""
    return f"{method_of(run)} {words}{awp}."


class _Known(dict[str, object]):
    """Settings by name; one that an old run does not have is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _training(run: Run) -> str:
    get = run.config.get
    layers = "" if ":" in str(get("model.name")) else str(get("model.normalization"))  # the user's own has what it has
    normalization = {"batch": ", BatchNorm", "group": ", GroupNorm"}.get(layers, "")
    limit = f" (the first {get('data.limit')} images)" if get("data.limit") else ""
    burn_in = ""
    if get("train.burn_in"):
        first = BURN_INS["at" if get("train.burn_in_method") == "at" else "natural"]  # old runs do not say
        burn_in = f" after {get('train.burn_in')} of {first}"
    elif get("train.burn_in_from"):
        burn_in = f" from the weights {_origin(Path(str(get('train.burn_in_from'))))}"
    epochs = f"{get('train.epochs')} epoch{'' if get('train.epochs') == 1 else 's'}{burn_in}"
    return (
        f"Network {get('model.name')}{normalization} on {get('data.name')}{limit}: {epochs}, batches of "
        f"{get('train.batch_size')}, SGD with learning rate {get('optim.lr')} ({get('optim.schedule')}), "
        f"seed {get('seed')}.{_took(run)}"
    )


def _origin(place: Path) -> str:
    """Return whose weights a training began with: by the name alone, since they may be gone by now."""
    if place.suffix in WEIGHTS:
        return f"in the file {place.name}"
    if place.parent.name == "checkpoints":
        return f"of {place.name} of the run {place.parent.parent}"
    return f"of {place}"


def _took(run: Run) -> str:
    """Return how long the epochs took: the sum of what the table of the training showed for them."""
    parts = [sum(record.get(key) or 0.0 for record in run.epochs) for key in ("train_seconds", "validation_seconds")]
    device = f" on {run.environment['device']}" if run.environment.get("device") else ""
    validation = ", validation included" if parts[1] else ""
    return f" It took {duration(sum(parts))}{device}{validation}." if any(parts) else ""


def _kept(run: Run) -> str:
    best = [record for record in run.epochs if record.get("best")]
    if not best or best[-1].get("val_robust") is None or best[-1].get("val_clean") is None:
        return ""
    last = best[-1]
    return (
        f"Epoch {last['epoch']} was best by validation: {percent(last['val_clean'])} clean, "
        f"{percent(last['val_robust'])} robust at {run.radius}."
    )
