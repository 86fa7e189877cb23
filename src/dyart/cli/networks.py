"""From what a user names on the command line to a network and the examples to measure it on.

A command takes its arguments from ``network_options``, and calls ``named_network`` and ``named_examples`` for what they
name.
"""

import argparse
import os
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dyart.boundary.model import evaluation_mode, logits_of, unchanged
from dyart.cli.class_order import advice_on_classes, labels_from_one, tell_order
from dyart.data import DataSet, load
from dyart.data.loader import as_tensors
from dyart.data.ranks import align
from dyart.data.sets import Indices
from dyart.engine.checkpoint import MANIFEST
from dyart.engine.fabric import make_fabric
from dyart.engine.files import read_object
from dyart.engine.fingerprint import check_names
from dyart.engine.run import make_model
from dyart.engine.stored import CONFIG, RunError, averaged_weights, checkpoint_of, read_config, run_folder
from dyart.engine.weights import WEIGHTS, check_weights_file, fit_weights, read_weights
from dyart.evaluation.records import FILE as EVALUATION
from dyart.models import NAMES, InputNormalization, build, described
from dyart.models.factory import call_factory, is_factory, load_factory, unused_normalisation
from dyart.models.scale import in_unit_scale, listed


def named_network(
    options: argparse.Namespace, test_alone: bool = True
) -> tuple[nn.Module, DataSet, torch.device, Path | None]:
    """Return network (eval mode), data set, device, and the run's folder if there is one.

    Either a run or a checkpoint is named (the averaged weights of its best epoch count), a file of weights that says
    which network it belongs to, or ``--model`` with ``--data`` and, for anything but the weights it is made with,
    ``--weights``. With ``--devices`` above 1 the other processes are started here, and come here; they are silent from
    here on.

    Args:
        options: of the command line.
        test_alone: the command measures test examples, and no others.

    Raises:
        RunError: what is named is missing, or network, weights and data do not fit each other.
    """
    fabric = make_fabric(options.device, devices=getattr(options, "devices", None) or 1, backend="gloo")
    device = fabric.device
    if not fabric.is_global_zero:  # the others work, and leave the talking to it
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    place = options.run_or_checkpoint
    if options.model is None:
        refuse_without_model(options)
        of_file = is_file_of_weights(place)
        model, data, folder = _of_file(place, options.data) if of_file else _of_run(place, options.data)
        words = f"the network of {folder or place}"
    else:
        if place is not None and (options.weights is not None or place.is_dir()):
            raise RunError(
                f"{place} and --model both name a network: leave one of them out (if {place} is the value of an "
                "option, that option is misspelt, or takes its values in one word with commas)"
            )
        if options.data is None:
            raise RunError("--model needs --data NAME: a data set, or the path of your own (dyart data list)")
        file = options.weights or place
        # What is quick to see comes first: nobody downloads a set to be told of a misspelt name.
        weights = None if file is None else read_weights(file)
        if is_factory(options.model):
            _found(options.model)
        data, folder = load(options.data), None
        model = _of_factory(options, data, weights, str(file))
        if file is None:
            print("no --weights: the network is measured with the weights it is made with", file=sys.stderr)
        words = f"--model {options.model}"
    model = model.to(device).eval()
    if fabric.world_size > 1:
        align(model)  # a factory may draw its weights
    # First: one may say why the network fails.
    for note in _notes(data, own=folder is None) if test_alone else data.notes:
        print(f"{data.name}: {note}", file=sys.stderr)
    _try_out(model, data, device, words)
    return model, data, device, folder


def is_file_of_weights(place: Path) -> bool:
    """Say whether what is named is a file, or is written as one; runs and checkpoints are folders."""
    return place.is_file() or place.suffix == described.SUFFIX


def refuse_without_model(options: argparse.Namespace) -> None:
    """Raise where there is no ``--model``, and either nothing else is named, or options of such a network are given.

    Raises:
        RunError: the message says what to name, or which options belong to ``--model``.
    """
    if options.run_or_checkpoint is None:
        raise RunError(
            "name a run, a checkpoint or a published model, or a network with --model package.module:factory and "
            "--data NAME"
        )
    own = {
        "--model-args": options.model_args,
        "--weights": options.weights,
        "--mean": options.mean,
        "--std": options.std,
    }
    lost = [name for name, value in own.items() if value is not None]
    if lost:
        raise RunError(
            f"{', '.join(lost)} belong to --model, which is missing: a run or a published model brings its own network "
            "and weights"
        )


def _of_file(place: Path, data_name: str | None) -> tuple[nn.Module, DataSet, None]:
    """Return the network of a file of weights that says which it is."""
    check_weights_file(place)
    about = _described(place)
    if about is None:
        raise RunError(_undescribed(place))
    if not (data_name or about.data):
        raise RunError(f"{place} names no data set: add --data NAME, for inputs of shape {_written(about.shape)}")
    data = load(data_name or about.data)
    if data.shape != about.shape:
        raise RunError(
            f"{place} is of a network for inputs of shape {_written(about.shape)}"
            f"{f' ({about.data})' if about.data else ''}, {data.name} has {_written(data.shape)}: choose another --data"
        )
    print(f"network: {about.name}, weights of {place}")
    return described.load(place), data, None


def named_model(options: argparse.Namespace) -> str | None:
    """Return the name of a network outside of a run: ``--model``, or what its file of weights says."""
    if options.model is not None or options.run_or_checkpoint is None:
        return str(options.model)
    about = _described(options.run_or_checkpoint)
    return None if about is None else about.name


def _described(place: Path) -> described.Description | None:
    """Return what a file of weights says of its network; None where it says nothing."""
    if place.suffix != described.SUFFIX:
        return None
    try:
        return described.description_of(place)
    except ValueError as error:
        raise RunError(str(error)) from error


def _undescribed(place: Path) -> str:
    """Return what to do about a file that says nothing of its network."""
    if place.suffix not in WEIGHTS:
        return f"{place} is no file of weights ({', '.join(WEIGHTS)})"
    if place.parent.parent.name == "checkpoints":
        return f"{place} is part of a checkpoint: name its folder, {place.parent}"
    beside = place.with_suffix(described.SUFFIX)
    if beside != place and beside.is_file():
        return f"{place} does not say which network it belongs to; {beside} may: name that"
    return (
        f"{place} does not say which network it belongs to: name that with --model NAME or "
        "--model package.module:factory, and its data with --data"
    )


def _written(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _of_run(place: Path, data_name: str | None) -> tuple[nn.Module, DataSet, Path]:
    """Return the network of a run or of its checkpoint."""
    if not any((place / mark).is_file() for mark in (CONFIG, MANIFEST)):
        near = [Path(f"{place}{described.SUFFIX}"), *sorted(place.glob(f"*{described.SUFFIX}"))]
        if meant := next((file for file in near if file.is_file()), None):
            raise RunError(f"{place} is no run; did you mean {meant}?")
    checkpoint = checkpoint_of(place)
    folder = run_folder(checkpoint)
    config = read_config(folder, method=False)
    data = load(data_name or config.data.name, Path(config.data.root) if config.data.root else None)
    check_names(folder, data)
    model = make_model(config, data)
    print(f"network: {config.model.name}, averaged weights of {checkpoint}")
    fit_weights(model, averaged_weights(checkpoint), str(checkpoint), len(data.classes), advice_on_classes(data))
    return model, data, folder


def _notes(data: DataSet, own: bool) -> list[str]:
    """Return what to know about the examples: a run trained on the others, a network of the user's own did not."""
    if data.test_rows is None:
        return list(data.notes)
    *others, drawn = data.notes
    todo = "; to measure all, call the arrays test_images and test_labels (a folder of pictures: test/)" if own else ""
    return [*others, f"{drawn}: only these are measured, and named by their rows{todo}"]


def _found(name: str) -> None:
    """Import a factory, which is called later: by then the data is known."""
    try:
        load_factory(name)
    except (TypeError, AttributeError) as error:
        raise RunError(_failed(name, error)) from error


def _failed(name: str, error: Exception) -> str:
    """Return what is wrong with a factory, which an error of ``dyart.models.factory`` mostly names itself."""
    words = str(error)
    return f"--model {words}" if words.startswith((name, repr(name))) else f"--model {name}: {words}"


def _of_factory(options: argparse.Namespace, data: DataSet, weights: dict[str, Tensor] | None, file: str) -> nn.Module:
    if (options.mean is None) != (options.std is None):
        raise RunError("--mean and --std go together: give both, one number per channel each, or one for all")
    if options.mean is not None and len(options.mean) == len(options.std) == 1:
        options.mean, options.std = (values * data.shape[0] for values in (options.mean, options.std))
    if options.mean is not None and len(options.mean) != data.shape[0]:
        raise RunError(f"--mean has {len(options.mean)} numbers, images of {data.name} have {data.shape[0]} channels")
    if not is_factory(options.model):
        _check_scale(options)
        return _of_name(options, data, weights, file)
    network, taken = _made(options, data)
    _check_scale(options, itself="mean" in taken)
    if weights is not None:
        given = options.model_args or {}
        advice = advice_on_classes(data, {*taken, *given}, given)
        fit_weights(network, weights, file, len(data.classes), advice)
    if options.mean is None or "mean" in taken:
        return network
    normalize = InputNormalization(options.mean, options.std, spatial=len(data.shape) - 1)
    return nn.Sequential(OrderedDict(normalize=normalize, network=network))


def _check_scale(options: argparse.Namespace, itself: bool = False) -> None:
    """Refuse a normalisation of pixels from 0 to 255; of a factory that takes it ``itself``, only say so.

    Raises:
        RunError: it is one; the message has that of inputs in [0, 1].
    """
    meant = None if options.mean is None else in_unit_scale(options.mean, options.std)
    if meant is None:
        return
    given, right = (f"--mean {listed(mean)} --std {listed(std)}" for mean, std in ((options.mean, options.std), meant))
    if itself:
        words = f"{options.model} takes mean and std itself, and gets inputs from 0 to 1"
        print(f"{given}: {words}; if it expects these of the same scale, write {right}", file=sys.stderr)
        return
    raise RunError(
        f"{given} cannot be meant for inputs from 0 to 1, as the network gets them. If these are of pixels from 0 to "
        f"255, write {right}; of another scale, divide them by its white"
    )


def _of_name(options: argparse.Namespace, data: DataSet, weights: dict[str, Tensor] | None, file: str) -> nn.Module:
    """Return a network of this package; its normalisation is a layer of it, saved with its weights."""
    if options.model_args:
        raise RunError(f"--model-args are arguments of a factory; {options.model!r} is one of {', '.join(NAMES)}")
    about = None if weights is None else _described(Path(file))
    if about is not None and about.name != options.model:
        raise RunError(f"{file} is of the network {about.name}, not of {options.model}: leave --model out")
    # What the file says of its network, no weight may show: an activation.
    settings = {} if about is None else dict(about.settings)
    settings |= {} if options.mean is None else {"mean": options.mean, "std": options.std}
    model = build(options.model, len(data.classes), data.shape, **settings)
    if weights is not None:
        layer = {key: value for key, value in model.state_dict().items() if key in ("normalize.mean", "normalize.std")}
        differs = [key for key, value in layer.items() if key in weights and not torch.equal(value, weights[key])]
        if differs and options.mean is not None:
            raise RunError(f"{file} brings its own normalisation: leave --mean and --std out")
        fit_weights(model, {**layer, **weights}, file, len(data.classes), advice_on_classes(data))
    return model


def _made(options: argparse.Namespace, data: DataSet) -> tuple[nn.Module, set[str]]:
    """Call the factory; return its network and the names of what it took, beside the user's arguments.

    With arguments of the user's, what its signature does not name is not passed: ``**kwargs`` often go on to somebody
    who knows neither classes nor shape.
    """
    name, arguments = options.model, dict(options.model_args or {})
    facts: dict[str, object] = {"classes": len(data.classes), "shape": data.shape}
    more: dict[str, object] = {"num_classes": len(data.classes), "normalization": "batch"}
    if options.mean is not None:
        more |= {"mean": options.mean, "std": options.std}
    if arguments:
        facts, more = {}, {key: value for key, value in {**facts, **more}.items() if key not in arguments}
    try:
        factory = partial(load_factory(name), **arguments)
        made, given = call_factory(name, factory, facts, more, data.shape)
    except (TypeError, AttributeError) as error:
        lacking = isinstance(error, TypeError) and isinstance(error.__cause__, TypeError | None)
        hint = "; pass arguments of its own with --model-args KEY=VALUE,..." if lacking and not arguments else ""
        raise RunError(f"{_failed(name, error)}{hint}") from error
    if len({"mean", "std"} & given) == 1:
        raise RunError(f"--model {name} takes only one of mean and std: let it take both, or neither")
    if options.mean is None and unused_normalisation(factory):
        words = "if its weights are of normalised images, give it these by --mean and --std (of images in [0, 1])"
        print(f"--model {name} takes mean and std, and gets none: {words}", file=sys.stderr)
    return made, given


def _try_out(model: nn.Module, data: DataSet, device: torch.device, words: str) -> None:
    """Call the network once: its inputs and its outputs must be those of the data."""
    inputs, _ = as_tensors(data.test, slice(0, 1), device)
    shape = _written(data.shape)
    with torch.no_grad(), evaluation_mode(model), unchanged(model, device):
        try:
            logits = logits_of(model(inputs))
        except Exception as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise RunError(f"{words} fails on inputs of shape {shape} ({data.name}): {first}") from error
    known, outputs = len(data.classes), logits.shape[1]
    # A test part alone need not show every class.
    if outputs != known and not (len(data.train) == 0 and outputs > known):
        todo = labels_from_one(data) if outputs == known - 1 else ""
        raise RunError(
            f"{words} gives {outputs} logits, {data.name} has {known} classes: "
            f"{todo or 'choose the network or the data that belongs to the other'}"
        )
    tell_order(data, outputs, words)


def named_examples(data: DataSet, count: int | None, seed: int, device: torch.device) -> tuple[Tensor, Tensor, Indices]:
    """Return ``count`` test examples, in [0, 1], their labels, both on the device, and their places in the test set."""
    rows = sample(len(data.test), count, seed)
    inputs, labels = as_tensors(data.test, rows, device)
    return inputs, labels, rows


def sample(examples: int, count: int | None, seed: int) -> Indices:
    """Return the places of ``count`` of so many examples, ascending: all for None, else drawn by the seed alone.

    The first examples of a set that is stored class by class are of one class. A larger count contains a smaller one's.

    Raises:
        ValueError: the count is not positive.
    """
    if count is not None and count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    if seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}")
    if count is None or count >= examples:
        return np.arange(examples, dtype=np.int64)
    # RandomState, because its stream is the one that numpy promises never to change.
    order = np.random.RandomState(seed).permutation(examples)
    return np.sort(order[:count]).astype(np.int64)


def recorded_accuracy(place: Path | None, data: DataSet) -> float | None:
    """Return the clean accuracy on the test set that a run recorded for what is named; None if there is none.

    It is that of the averaged weights of the best checkpoint: of the run, or of this checkpoint if it is named itself.
    """
    if place is None:
        return None
    folder = run_folder(place)
    path = folder / EVALUATION
    if checkpoint_of(place) != checkpoint_of(folder):
        return None
    recorded = read_object(path) or {}
    clean = recorded.get("clean")
    same = recorded.get("data") == data.name and recorded.get("checkpoint") == "best"
    return float(clean) if same and isinstance(clean, int | float) else None


def test_examples(data: DataSet, count: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` test examples of a set stored in random order, and their labels, on the device."""
    return as_tensors(data.test, slice(None, count), device)
