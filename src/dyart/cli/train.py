"""``dyart train``."""

import argparse
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

from dyart.attacks.radius import Radius
from dyart.recipes import Config, dump, flat, resolve


def train_command(options: argparse.Namespace) -> None:
    """Train from a recipe, or show its configuration or its keys."""
    if options.help:
        _help(options)
        return
    if options.recipe is None and options.resume:
        raise ValueError("name the RUN to go on with, its folder: dyart train RUN --resume")
    if options.recipe is None:
        raise ValueError("name a RECIPE, e.g. fashion-mini-cnn-dyart: dyart recipes lists all, --help says more")
    overrides = list(options.rest)
    for name in ("device", "devices", "num_nodes"):
        if (value := getattr(options, name)) is not None:
            overrides += [f"--train.{name}", str(value)]
    config = _resumed(Path(options.recipe), overrides) if options.resume else resolve(options.recipe, overrides)
    if options.print_config:
        print(dump(config), end="")
        return
    from dyart.dynamics.watch import Watch
    from dyart.engine.display import Display
    from dyart.engine.loggers import LoggersCallback
    from dyart.engine.run import default_folder, train
    from dyart.evaluation.quick import measure_run
    from dyart.evaluation.records import FILE as EVALUATION

    callbacks = [] if options.quiet else [Display()]
    training = train(config, resume=options.resume, callbacks=[*callbacks, LoggersCallback(), Watch()])
    folder = default_folder(training.config)
    if training.taken == 0 and (folder / EVALUATION).is_file():
        # Perhaps of a stronger attack, which took hours.
        training.fabric.print(f"nothing is left to train; {folder / EVALUATION} stays as it is")
        return
    try:
        measured = measure_run(training)
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(_unmeasured(folder)) from stopped
    if measured is None:
        training.fabric.print(f"the best epoch is the one that {folder / EVALUATION} is of, which stays as it is")
    elif training.fabric.is_global_zero and not options.quiet:
        print(measured)


def _unmeasured(folder: Path) -> str:
    """Return what to do about a training that is done and was not measured."""
    from dyart.evaluation.records import FILE as EVALUATION

    run = shlex.quote(str(folder))
    if (folder / EVALUATION).is_file():  # which a resume would leave as it is
        return f"the training is done, {folder / EVALUATION} is older than it, and `dyart evaluate {run}` measures it"
    return f"the training is done, and `dyart train {run} --resume` measures it"


def _resumed(place: Path, overrides: list[str]) -> Config:
    """Return the configuration of the run to resume: its folder, or the recipe that made it with --out."""
    from dyart.engine.run import default_folder
    from dyart.engine.stored import CONFIG, config_path

    if (place / CONFIG).is_file():
        return replace(resolve(config_path(place), overrides), out=str(place))
    if place.parent != Path() and not place.exists():
        raise ValueError(f"nothing to resume: there is no folder {place}")
    config = resolve(str(place), overrides)
    folder = default_folder(config)
    return replace(resolve(config_path(folder), overrides) if (folder / CONFIG).is_file() else config, out=str(folder))


def _help(options: argparse.Namespace) -> None:
    options.parser.print_help()
    recipe = options.recipe
    if recipe is None:
        print("\nA RECIPE after --help shows its keys: dyart train fashion-mini-cnn-dyart --help")
        return
    from dyart.recipes.parser import build_parser

    config = resolve(recipe, options.rest)
    parser = build_parser(config.method["name"])
    parser.set_defaults({key: value for key, value in flat(asdict(config)).items() if key != "method.name"})
    print(f"\nkeys of {recipe}, with its values as defaults\n")
    # The type of every number in a recipe: by a name that says so, and its values as they are written.
    text = re.sub(rf"(type:\s+[\w\[\],. ]*?){Radius.__name__}\b", r"\1number", parser.format_help())
    print(re.sub(rf"{Radius.__name__}\('(.*?)'\)", r"\1", text), end="")
