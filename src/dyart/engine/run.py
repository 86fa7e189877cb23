"""A run: how it is prepared, begun and resumed."""

import logging
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dyart.attacks.radii import check_radii
from dyart.data import load
from dyart.data.augment import Augment
from dyart.data.auxiliary import Auxiliary, auxiliary_of, open_auxiliary, pseudo_label
from dyart.data.loader import Loader
from dyart.data.sets import DataSet
from dyart.engine import checkpoint as store
from dyart.engine.advice import Advice
from dyart.engine.callbacks import Callback
from dyart.engine.deterministic import deterministic
from dyart.engine.environment import changed_sources, environment
from dyart.engine.fabric import Fabric, make_fabric, team_of
from dyart.engine.files import read_object, write_json, write_whole
from dyart.engine.fingerprint import FINGERPRINT, check_auxiliary, check_data, fingerprint
from dyart.engine.fit import Training
from dyart.engine.lock import LockedError, locked
from dyart.engine.mention import mention
from dyart.engine.resuming import Changes, begun, changes_of, check_epochs, compare_anew, in_words, keep_settings
from dyart.engine.stored import (
    CONFIG,
    ENVIRONMENT,
    RunError,
    averaged_weights,
    checkpoint_of,
    copied_config,
    load_weights,
    read_config,
    run_folder,
)
from dyart.engine.tryout import try_out
from dyart.engine.views import wants_compile
from dyart.engine.weights import fit_weights, read_weights
from dyart.models import Description, build
from dyart.models.described import SUFFIX, description_of
from dyart.models.factory import is_factory
from dyart.models.scale import in_unit_scale, listed
from dyart.recipes import Config, dump, make_method
from dyart.recipes.config import Model

log = logging.getLogger("dyart")


def train(
    config: Config, *, resume: bool = False, callbacks: Sequence[Callback] = (), data: DataSet | None = None
) -> Training:
    """Train as configured, in the folder ``config.out``, and return the finished training.

    With ``train.devices`` or ``train.num_nodes`` above 1, Fabric runs the script that called this once more for every
    further process: all of them come here and return. The folder must be one for all machines; the first process alone
    writes to it and has callbacks. A run may be resumed with another number of processes.

    Args:
        config: everything resolved (``dyart.recipes.resolve``).
        resume: go on from the folder's last checkpoint. Seed, data, network, method and batch must be the run's own;
            other settings may change, e.g. the learning rate after a loss that was not finite: ``config.yaml`` has the
            newest, ``environment.json`` says what changed at which step. With nothing left to train, none is taken.
        callbacks: listeners, such as a display.
        data: the set, if it is loaded already, or one of the caller's own, whose name the run then has.

    Raises:
        RunError: the folder holds another run, or one on other data, or none to resume, or cannot be written to, or is
            in use.
        TrainingError: the training stopped early.
    """
    folder = default_folder(config)
    config = replace(config, out=str(folder))
    _check_folder(folder, resume)
    if data is not None:
        # So that nobody measures the network on what the recipe names; a resumed run is checked by its content.
        own = begun(folder).data.name if resume else data.name
        config = replace(config, data=replace(config.data, name=own))
    with ExitStack() as stack:
        stack.enter_context(deterministic(config.train.deterministic))
        fabric = _fabric(config)
        fabric.barrier()  # all have looked at the folder before one writes there
        if resume and fabric.is_global_zero:
            _lock(folder, stack, resume)
        if not resume:
            _check_scale(config, fabric)
        changes = changes_of(folder, config, fabric) if resume else {}
        data = _loaded(config, fabric) if data is None else data
        if resume:
            check_data(folder, data)
        training = prepare(config, folder, [*callbacks, Advice()], data, fabric)
        if resume:
            check_auxiliary(folder, training.loader.auxiliary)
        # A run that ended before its first checkpoint is resumed from the beginning.
        resumed = resume and training.resume()
        if resumed:
            check_epochs(folder, training)
            compare_anew(training, changes)
            if training.finished:
                keep_settings(folder, training)
        elif config.train.burn_in_from is not None:
            _begin_from(training, Path(config.train.burn_in_from))
        if not fabric.is_global_zero:
            training.folder, training.callbacks = None, []
            return training.run()
        if not resume:
            _lock(folder, stack, resume)
            _check_folder(folder, resume)  # another process may have been quicker
        if resumed and training.finished:
            return training.run()
        _claim(folder, training, changes, resume)
        mention(training, changes)
        if not len(training.data.holdout):
            fabric.print("no class has a second image to hold out: no epoch is validated, and the last one counts")
        method = training.method
        if method.needs_burn_in and not (resumed or config.train.burn_in or config.train.burn_in_from):
            fabric.print(
                f"{method.name} begins with an untrained network (unless its own code loads weights), which has hardly "
                "any margins: set train.burn_in, or train.burn_in_from"
            )
        return training.run()


def _begin_from(training: Training, place: Path) -> None:
    """Begin with the weights of a run or a checkpoint, or with those in a file from anywhere."""
    if place.is_file():
        weights = read_weights(place)
        _check_description(place, training.config.model)
    else:
        weights = averaged_weights(place)
    fit_weights(training.model, weights, str(place), len(training.data.classes))
    training.average.restart()


def _check_description(place: Path, model: Model) -> None:
    """Raise if a file says that it is of another network; an activation no weight shows."""
    try:
        about = description_of(place) if place.suffix == SUFFIX else None
    except ValueError as error:
        raise RunError(str(error)) from error
    if about is None or is_factory(model.name):
        return
    own = Description(model.name, 2, (), settings={"activation": model.activation})
    if (about.name, about.activation) != (own.name, own.activation):
        raise RunError(
            f"{place} is of {about.name} with {about.activation}, the recipe has {own.name} with {own.activation}: set "
            f"model.name {about.name} and model.activation {about.activation}"
        )


def default_folder(config: Config) -> Path:
    """Return the folder of a run: ``out``, or one named after recipe and seed."""
    return Path(config.out or f"runs/{config.recipe or 'run'}-seed{config.seed}")


def prepare(
    config: Config,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    data: DataSet | None = None,
    fabric: Fabric | None = None,
) -> Training:
    """Return a training that is ready to run: data on the device, network, method and loader made."""
    fabric = _fabric(config) if fabric is None else fabric
    data = _loaded(config, fabric) if data is None else data
    if len(data.train) == 0:
        raise RunError(f"{data.name} has a test part alone: training needs train_images and train_labels (or train/)")
    _check_radii(config, data)
    model = _built(config, data).to(fabric.device)
    try_out(model, config, data, fabric)
    if config.train.sync_batchnorm and fabric.world_size > 1:
        model = _synchronized(model, config, fabric)
    if fabric.device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    switch = "off" if config.train.deterministic else config.train.compile
    compile_, reason = wants_compile(switch, fabric.device)
    if reason:
        fabric.print(f"training {reason}")
    method = make_method(config)
    return Training(config, data, model, method, fabric, _loader(config, data, fabric), folder, callbacks, compile_)


def _loaded(config: Config, fabric: Fabric) -> DataSet:
    with fabric.rank_zero_first(local=True):
        return load(config.data.name, Path(config.data.root) if config.data.root else None)


def _check_radii(config: Config, data: DataSet) -> None:
    """Refuse radii as large as the box of all inputs, such as 8 for 8/255."""
    method, judged = config.method, config.eval.norm
    own = method.get("norm", "linf")
    named = [(f"method.{key}", method.get(key), own) for key in ("radius", "r0", "kl_radius", "hinge")]
    named += [("eval.radius", config.eval.radius, judged)]
    named += [("eval.radii", radius, judged) for radius in config.eval.radii]
    for key, radius, norm in named:
        if radius is not None:
            try:
                check_radii([radius], norm, math.prod(data.shape))
            except ValueError as error:
                raise RunError(f"{key}: {error}") from error


def _check_scale(config: Config, fabric: Fabric) -> None:
    """Refuse a normalisation of pixels from 0 to 255: the network gets them in [0, 1]. A factory may want it so."""
    model = config.model
    meant = None if model.mean is None or model.std is None else in_unit_scale(model.mean, model.std)
    if meant is None:
        return
    words = (
        "model.mean and model.std cannot be meant for inputs from 0 to 1, as the network gets them; if these are of "
        f"pixels from 0 to 255, write --model.mean [{listed(meant[0])}] --model.std [{listed(meant[1])}]"
    )
    if not is_factory(model.name):
        raise RunError(words)
    fabric.print(f"{words} (unless {model.name} takes them itself, and scales its inputs)", file=sys.stderr)


def _fabric(config: Config) -> Fabric:
    train = config.train
    return make_fabric(train.device, train.precision, train.devices, train.num_nodes, train.strategy)


def _synchronized(model: nn.Module, config: Config, fabric: Fabric) -> nn.Module:
    if fabric.device.type != "cuda":
        raise RunError("train.sync_batchnorm works on GPUs alone: torch's SyncBatchNorm has no form for a CPU")
    if (size := config.train.batch_size // config.train.accumulate) % fabric.world_size:
        # Its backward pass adds up the processes' losses as they are, before they are weighted.
        raise RunError(f"train.sync_batchnorm needs equal shares: {fabric.world_size} processes do not divide {size}")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


def make_model(config: Config, data: DataSet) -> nn.Module:
    """Return the configured network with its first weights, a function of the seed.

    Where ``config.out`` holds a run that was trained with another source of the network, a line on stderr says so: its
    weights may fit, and mean something else.

    Raises:
        RunError: it cannot be made, e.g. a factory of the user's own is not what it should be.
    """
    model = _built(config, data)
    changed = {} if config.out is None else changed_sources(Path(config.out) / ENVIRONMENT, config, method=False)
    if changed:
        print(f"{config.out} was trained with another source of its network: {in_words(changed)}", file=sys.stderr)
    return model


def _built(config: Config, data: DataSet) -> nn.Module:
    settings = asdict(config.model)
    name = settings.pop("name")
    try:
        return build(name, len(data.classes), data.shape, **settings, seed=config.seed)
    except (TypeError, AttributeError) as error:
        raise RunError(f"model.name {name}: {error}") from error


def _check_folder(folder: Path, resume: bool) -> None:
    """See that the folder is free, or holds the run to resume. Writes nothing."""
    try:
        exists, checkpoint = (folder / CONFIG).is_file(), (folder / store.MANIFEST).is_file()
    except OSError as error:
        remedy = "make it readable" if resume else "choose another folder with --out"
        raise RunError(f"cannot read {folder}: {error.strerror}; {remedy}") from error
    if checkpoint:
        raise RunError(f"{folder} is a checkpoint; a training goes on in the folder of its run, {folder.parent.parent}")
    if resume and not exists:
        copy = copied_config(folder)
        remedy = f"; its checkpoints have a copy: cp {copy} {folder / CONFIG}" if copy else ""
        raise RunError(f"nothing to resume in {folder}: it has no {CONFIG}{remedy}")
    if exists and not resume:
        if not (folder / "checkpoints").is_dir():
            raise RunError(
                f"{folder} holds a run without a checkpoint, begun by now or ended before its first one: if nothing is "
                "running there, --resume begins it anew; --out chooses another"
            )
        raise RunError(
            f"{folder} holds a run already: --resume goes on with it (in Python: resume=True), --out chooses another "
            "folder"
        )


def _lock(folder: Path, stack: ExitStack, resume: bool) -> None:
    """Keep other processes out of the run's folder, which is made if need be, until the stack is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder))
    except LockedError as error:
        raise RunError(str(error)) from error
    except OSError as error:
        raise RunError(_not_writable(folder, error, resume)) from error


def _not_writable(folder: Path, error: OSError, resume: bool) -> str:
    remedy = "make it writable, or copy the run and resume the copy" if resume else "choose another folder with --out"
    return f"cannot write to {folder}: {error.strerror}; {remedy}"


def _claim(folder: Path, training: Training, changes: Changes, resume: bool) -> None:
    """Write down what the training is, now that it can begin: what failed before leaves nothing behind."""
    path, known_by = folder / ENVIRONMENT, fingerprint(training.data, training.loader.auxiliary)
    try:
        earlier = _earlier_changes(path)
        if changes:
            earlier.append({"step": training.steps_done} | {k: [str(a), str(b)] for k, (a, b) in changes.items()})
        write_whole(folder / CONFIG, dump(training.config))
        facts = environment(training.config, training.fabric) | {FINGERPRINT: known_by}
        write_json(path, facts | {"changes": earlier})
    except OSError as error:
        raise RunError(_not_writable(folder, error, resume)) from error


def _earlier_changes(path: Path) -> list[Any]:
    changes = (read_object(path) or {}).get("changes")  # a damaged record is no reason not to go on
    return changes if isinstance(changes, list) else []


def _loader(config: Config, data: DataSet, fabric: Fabric) -> Loader:
    settings = config.data
    indices = data.fit if settings.limit is None else data.fit[: settings.limit]
    return Loader(
        data.train,
        indices,
        config.train.batch_size,
        config.seed,
        fabric.device,
        Augment(settings.crop, settings.flip, settings.cutout, settings.cutmix),
        len(data.classes),
        _auxiliary(config, data, fabric),
        settings.residency,
        settings.label_smoothing,
        team_of(fabric),
        config.train.accumulate,
    )


def _auxiliary(config: Config, data: DataSet, fabric: Fabric) -> Auxiliary | None:
    settings = config.data
    if settings.auxiliary is None:
        return None
    if settings.auxiliary_labels is None:
        pool = load(settings.auxiliary, Path(settings.root) if settings.root else None)
        return auxiliary_of(pool, settings.auxiliary_fraction, data)
    images, labels = Path(settings.auxiliary), Path(settings.auxiliary_labels)
    if labels.is_dir():
        labels = _labelled_by(labels, images, data, fabric)
    return open_auxiliary(images, labels, settings.auxiliary_fraction, data.shape, len(data.classes))


def _labelled_by(teacher: Path, images: Path, data: DataSet, fabric: Fabric) -> Path:
    """Return the labels that a run's network gives to auxiliary images, made once per network and file of images."""
    checkpoint = checkpoint_of(teacher)
    digest = store.read_facts(checkpoint)["files"]["averaged.safetensors"]["sha256"][:12]
    labels = images.with_name(f"{images.stem}-labels-{digest}.npy")
    with fabric.rank_zero_first():
        if labels.is_file() and not _newer(images, labels):
            return labels
        fabric.print(f"labelling {images} by {checkpoint}, into {labels}")
        model = make_model(read_config(run_folder(checkpoint), method=False), data).to(fabric.device).eval()
        load_weights(model, averaged_weights(checkpoint), str(checkpoint))
        pseudo_label(lambda x: model(x.to(fabric.device)), images, labels, data.shape)
    return labels


def _newer(first: Path, second: Path) -> bool:
    return first.is_file() and first.stat().st_mtime > second.stat().st_mtime
