"""A run's network as a folder that others can use: weights, a definition without this package, a record, a card."""

import hashlib
import json
import types
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dyart.boundary.model import logits_of
from dyart.data import DataSet, load
from dyart.data.loader import as_tensors
from dyart.engine.files import read_object, write_json, write_whole
from dyart.engine.run import make_model
from dyart.engine.stored import RunError, averaged_weights, checkpoint_of, load_weights, read_config, run_folder
from dyart.evaluation.card import card
from dyart.evaluation.examples import model_digest
from dyart.evaluation.records import FILE
from dyart.evaluation.submission import submission
from dyart.models import described
from dyart.models.factory import is_factory
from dyart.models.standalone import definition
from dyart.recipes import Config

SAFETENSORS, STATE, NETWORK, RECORD, CARD = (
    "model.safetensors",
    "model.pt",
    "network.py",
    "robustbench.json",
    "README.md",
)
# Examples on which the written network must give the run's own logits, bit for bit.
CHECKED = 8
# What a record asks for, and the names of all that its export could not know.
PARTS, OPEN = ("model_info", "issue"), "left_open"
# Which run it is of: its name and, since others read this, no more than a sum of its place.
RUN, PLACE = "run", "run_place"


def export(place: Path, out: Path | None = None) -> Path:
    """Write the averaged weights of a run's best epoch (or of a checkpoint) and all that using them takes.

    The network that the folder defines is built and compared with the run's own before the folder counts as written.
    An earlier export of the run is replaced, but for what somebody has filled in in its record since.

    Args:
        place: a run's folder or one of its checkpoints.
        out: the folder; None: ``export`` in the run's folder.

    Raises:
        RunError: the place is no run, or the folder holds something else, another run's export, or a card that was
            edited.
    """
    folder, checkpoint = run_folder(place), checkpoint_of(place)
    config = read_config(folder, method=False)
    data = load(config.data.name, Path(config.data.root) if config.data.root else None)
    out = folder / "export" if out is None else out
    earlier = _earlier_record(out)
    _refuse_other(out, earlier, folder)
    _make_room(out)
    model = make_model(config, data).eval()
    weights = averaged_weights(checkpoint)
    load_weights(model, weights, str(checkpoint))
    evaluation = _evaluation(folder, checkpoint, data, model)
    record = _filled_in(submission(config, data, evaluation), earlier) | _whose(folder)
    write_json(out / RECORD, record)  # the first: an export that is interrupted is known as one
    _write_weights(model, out, config, data)
    write_whole(out / NETWORK, _source(config, data))
    _check(model, out, data, config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    write_whole(out / CARD, _sealed(card(config, data, evaluation, record, checkpoint, parameters)))
    return out


def _whose(folder: Path) -> dict[str, str]:
    place = folder.resolve()
    return {RUN: place.name, PLACE: hashlib.sha256(str(place).encode()).hexdigest()[:16]}


def _refuse_other(out: Path, earlier: dict[str, Any], folder: Path) -> None:
    """Raise where a folder holds the export of another run. One inside of the run's own may have moved with it."""
    before, inside = earlier.get(PLACE), out.resolve().is_relative_to(folder.resolve())
    if before not in (None, _whose(folder)[PLACE]) and not inside:
        raise RunError(
            f"{out} holds the export of another run, {earlier.get(RUN)}: choose another folder with --out, or move "
            "that one away"
        )


def _make_room(out: Path) -> None:
    """Make the folder; files of an earlier export are replaced, others are a reason to stop."""
    known = {SAFETENSORS, STATE, NETWORK, RECORD, CARD, "__pycache__"}
    strange = {path.name for path in out.iterdir()} - known if out.is_dir() else set()
    if strange:
        raise RunError(f"{out} holds other files ({', '.join(sorted(strange)[:3])}): choose another folder with --out")
    if (out / CARD).exists() and not _is_sealed(out / CARD):
        raise RunError(
            f"{out / CARD} was edited, or no export wrote it: choose another folder with --out, or move the file away"
        )
    taken = [name for name in (SAFETENSORS, STATE, NETWORK) if (out / name).exists()]
    if taken and not (out / RECORD).exists():
        raise RunError(
            f"{out / taken[0]} is of no export, which has its {RECORD}: choose another folder with --out, or move the "
            "file away"
        )
    out.mkdir(parents=True, exist_ok=True)


def _sealed(text: str) -> str:
    """Return a card with a last line that tells a later export whether somebody has edited it."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text}\n<!-- Written by dyart export; sha256 of all above this line: {digest} -->\n"


def _is_sealed(path: Path) -> bool:
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return text == _sealed(text.rpartition("\n<!-- ")[0])


def _earlier_record(out: Path) -> dict[str, Any]:
    """Return the record of an earlier export, empty if there is none.

    One that cannot be read is a reason to stop: somebody's entries may be in it.
    """
    path = out / RECORD
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}): mend it, or move it away") from error
    if not isinstance(stored, dict) or not all(isinstance(stored.get(part), dict) for part in PARTS):
        raise RunError(f"no export wrote {path}: choose another folder with --out, or move the file away")
    return stored


def _filled_in(record: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return a record with what somebody has filled in in an earlier one, where it is unknown still.

    What the earlier export itself knew, such as an accuracy, may be of other weights, and does not stay.
    """
    before, kept = earlier.get(OPEN), []
    record[OPEN] = [key for part in PARTS for key, value in record[part].items() if value is None]
    for part in PARTS:
        own = [key for key in record[part] if isinstance(before, list) and key not in before]
        for key, value in earlier.get(part, {}).items():
            if value is not None and record[part].get(key) is None and key not in own:
                record[part][key] = value
                kept.append(key)
    empty = {key for part in PARTS for key, value in record[part].items() if value is None}
    record["unknown"] = [key for key in record["unknown"] if key in empty]
    if kept:
        record["notes"].append(f"filled in by hand, and kept: {', '.join(kept)}; see that it is true of these weights")
    return record


def _write_weights(model: nn.Module, out: Path, config: Config, data: DataSet) -> None:
    """Write both files; the first says which network it is of, so that commands of this package take it by itself."""
    import io

    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    if is_factory(config.model.name):
        write_whole(out / SAFETENSORS, save(state))
    else:
        write_whole(out / SAFETENSORS, described.packed(state, _description(config, data)))
    packed = io.BytesIO()
    torch.save(state, packed)
    write_whole(out / STATE, packed.getvalue())


def _description(config: Config, data: DataSet) -> described.Description:
    settings = {key: _plain(value) for key, value in asdict(config.model).items() if value is not None}
    known = data.name if described.is_name(data.name) else ""  # a path here is nothing to others
    return described.Description(str(settings.pop("name")), len(data.classes), data.shape, known, settings)


def _source(config: Config, data: DataSet) -> str:
    settings = asdict(config.model)
    name = settings.pop("name")
    if not is_factory(name):
        words = (
            f"{name}: a network for {len(data.classes)} classes, trained with {config.method['name']} on {data.name}."
        )
        version = metadata.version("dyart")
        return definition(name, len(data.classes), data.shape, **settings, words=words, version=version, weights=STATE)
    # A network of the user's own is the user's to hand on.
    kept = {key: _plain(value) for key, value in settings.items() if value is not None}
    return (
        f'"""{name}: a network of its own module, which must be importable, and so must dyart."""\n\n'
        "from pathlib import Path\n\nimport torch\n\nfrom dyart.models import build as build_network\n\n\n"
        "def build():\n"
        f"    return build_network({name!r}, {len(data.classes)}, {tuple(data.shape)!r}, **{kept!r})\n\n\n"
        f'def load(weights=Path(__file__).with_name("{STATE}")):\n'
        "    model = build()\n"
        '    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))\n'
        "    return model.eval()\n"
    )


def _plain(value: object) -> object:
    """Return a setting as Python writes it: numbers of a recipe print as they were written, 125/255."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return float(value) if isinstance(value, float) else value


def _check(model: nn.Module, out: Path, data: DataSet, config: Config) -> None:
    """Build the network from what was written, and compare."""
    path = out / NETWORK
    module = types.ModuleType("network")
    module.__file__ = str(path)
    # What was written a moment ago, by this module.
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)  # nosec B102
    inputs, _ = as_tensors(data.test, slice(0, CHECKED), torch.device("cpu"))
    with torch.no_grad():
        own, written = logits_of(model(inputs)), logits_of(module.load()(inputs))
    if not torch.equal(own, written):
        raise RunError(
            f"the network that {path} defines differs from the run's by {float((own - written).abs().max()):.3g} in "
            f"the logits: do not use it, and report model.name {config.model.name}"
        )


def _evaluation(folder: Path, checkpoint: Path, data: DataSet, model: nn.Module) -> dict[str, Any]:
    """Return the run's record of an evaluation, if it is of the exported weights and on their data; else nothing."""
    if checkpoint != checkpoint_of(folder):
        return {}
    recorded = read_object(folder / FILE) or {}
    if (recorded.get("data"), recorded.get("checkpoint")) != (data.name, "best"):
        return {}
    # A training that went on after it was measured may have other weights by now.
    network = recorded.get("asked", recorded).get("network")
    return recorded if network in (None, model_digest(model)) else {}
