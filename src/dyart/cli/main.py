"""Reads the command line and calls the layer that does the work."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dyart.cli.bench import add_bench
from dyart.cli.completion import add_completion
from dyart.cli.doctor import add_doctor
from dyart.cli.dynamics_parser import add_curves, add_dynamics, add_plane
from dyart.cli.errors import EXIT_STATUS, guarded
from dyart.cli.evaluate_parser import add_evaluate
from dyart.cli.export import add_export
from dyart.cli.network_options import add_devices_option, add_network_options
from dyart.cli.overview import EXAMPLES, overview
from dyart.cli.parsers import (
    Commands,
    Parser,
    add_debug,
    file_path,
    picture_size,
    radii,
    refuse,
    refuse_near_flags,
    with_values,
)
from dyart.cli.report import add_report

WITHOUT_TORCH = ("data",)
TOP_KEYS = ("seed", "out", "recipe", "note")  # of a recipe, outside of its groups
TRAIN_HELP = """\
examples:
  dyart train fashion-mini-cnn-dyart                     train from a recipe (dyart recipes lists them)
  dyart train cifar10-resnet18-dyart --optim.lr 0.05     override any key
  dyart train my.yaml --out runs/mine                    a recipe of your own; `base: NAME` builds on another
  dyart train runs/mine --resume                         go on after a stop
  dyart train cifar10-resnet18-at --devices 8            eight GPUs share every batch
  dyart train cifar10-resnet18-at --print_config         show what would run, and run nothing
  dyart train cifar10-resnet18-at --help                 this text and every key of that recipe
"""
COMPARE_HELP = """\
examples:
  dyart compare fashion-mini-cnn-at fashion-mini-cnn-dyart --seeds 0,1,2
  dyart compare fashion-mini-cnn-at mine.yaml --out runs/mine --train.epochs 20
  dyart report runs/compare                              a page about all of them
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. An error of the user's is one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    early = arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if early:  # nothing is to be saved yet, and torch, while it is imported, would catch Ctrl-C or show its own lines
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = _parser()
    if next((word for word in words if not word.startswith("-")), None) == "dynamics":
        words = with_values(words)
    options, rest = parser.parse_known_args(words)
    if rest and options.command not in ("train", "compare", "dynamics"):
        refuse(parser, options.command, rest)
    if rest and options.command in ("train", "compare"):
        refuse_near_flags(parser, options.command, rest, TOP_KEYS)
    options.rest = rest

    def work() -> int:
        if options.version:
            from dyart.cli.environment import version_text

            print(version_text())
            return 0
        if options.command is None:
            print(overview(parser), end="")
            return 0
        from dyart.engine.allocation import keep_freed_memory

        together: Callable[[], AbstractContextManager[None]] = nullcontext
        if options.command not in WITHOUT_TORCH:
            from dyart.engine.process_end import ending

            together = ending
        if early:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        keep_freed_memory()
        with together():
            return int(options.run(options) or 0)

    command = " ".join(filter(None, (options.command, getattr(options, "verb", None))))
    return guarded(work, _user_errors, command, options.debug)


def _user_errors() -> tuple[type[Exception], ...]:
    """Return the errors whose message is all that a user needs; any other is a bug and shows its traceback."""
    from dyart.data import DataError
    from dyart.engine.checkpoint import CheckpointError
    from dyart.engine.fit import TrainingError
    from dyart.engine.process_end import ProcessError
    from dyart.engine.stored import RunError

    return (DataError, CheckpointError, TrainingError, RunError, ProcessError, ValueError, OSError, ImportError)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="dyart",
        description="Decision-boundary margins, the speed of the boundary under training, and robust training.",
        epilog=f"{EXAMPLES}\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="show versions: dyart, python, torch, GPU, packages")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_train(commands)
    _add_compare(commands)
    add_evaluate(commands)
    _add_margins(commands)
    add_export(commands)
    add_dynamics(commands)
    add_curves(commands)
    add_plane(commands)
    add_report(commands)
    add_bench(commands)
    _add_data(commands)
    _add_recipes(commands)
    add_doctor(commands)
    add_completion(commands, _parser)
    add_debug(parser)
    return parser


def _add_demo(commands: Commands) -> None:
    words = "the whole story on the embedded data, about three minutes on two CPU cores"
    demo = commands.add_parser("demo", help=words, description=words)
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder (default: runs/demo)")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--device", default="cpu", help="cpu (default), cuda or auto")
    demo.add_argument("--quick", action="store_true", help="few images and epochs, in seconds; no meaningful numbers")
    demo.set_defaults(run=_demo)


def _add_train(commands: Commands) -> None:
    train = commands.add_parser(
        "train",
        help="train from a recipe",
        description="Train a network from a recipe; every key can be overridden with --key value.",
        epilog=TRAIN_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    train.add_argument("recipe", nargs="?", metavar="RECIPE", help="name, .yaml file, or a run's folder with --resume")
    train.add_argument("-h", "--help", action="store_true", help="show this, and the keys of RECIPE")
    train.add_argument("--resume", action="store_true", help="go on from the run's last checkpoint")
    train.add_argument("--print_config", "--print-config", action="store_true", help="print the resolved configuration")
    train.add_argument("--device", help="short for --train.device: auto, cpu, cuda, cuda:1")
    train.add_argument("--devices", type=int, metavar="N", help="short for --train.devices: GPUs of a machine")
    train.add_argument(
        "--num_nodes", "--num-nodes", type=int, metavar="N", help="short for --train.num_nodes: machines"
    )
    train.add_argument("--quiet", action="store_true", help="no table and no progress bar")
    train.set_defaults(run=_train, parser=train)


def _add_compare(commands: Commands) -> None:
    words = "train and measure several recipes with several seeds, and print one table"
    compare = commands.add_parser(
        "compare",
        help=words,
        description=f"{words.capitalize()}. Finished runs are not repeated, unfinished ones resumed. Keys of all "
        "recipes can be overridden with --key value. The table goes to standard output, the trainings' lines to "
        "standard error.",
        epilog=COMPARE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("recipes", nargs="+", metavar="RECIPE", help="the first one is what the others differ from")
    compare.add_argument("--seeds", type=_seeds, default=[0], help="e.g. 0,1,2 (default: 0)")
    compare.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder (default: runs/compare)")
    compare.set_defaults(run=_compare)


def _add_margins(commands: Commands) -> None:
    margins = commands.add_parser(
        "margins",
        help="how far every example is from the decision boundary",
        description="Find closest boundary points of test examples. Writes margins.csv, one line per example,\n"
        "margins.json: settings, versions, summary; and, of images, margins.pictures.npz: the closest, for\n"
        "dyart report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_network_options(margins)
    add_devices_option(margins)
    add = margins.add_argument_group("search").add_argument
    add("--norm", choices=["linf", "l2", "l1"], help="of the distance (default: the run's, else linf)")
    add(
        "--boundary",
        choices=["exact", "soft"],
        default="exact",
        help="where the class changes (default), or the smoothed one that DyART trains on",
    )
    add("--steps", type=int, default=50, help="of the search (default: 50)")
    add("--restarts", type=int, default=1, help="searches per example, the closest point counts (default: 1)")
    add("--solver", default="fast", help="fast, fab, apgd, or your own as package.module:function (default: fast)")
    add(
        "--cross-check",
        metavar="SOLVER",
        nargs="?",
        const="auto",
        help="also run another solver and report where the two disagree (default: apgd; for l1, fab; beside your own "
        "and apgd, fast)",
    )
    add("--radii", type=radii, help="also print robust accuracy at these, e.g. 2/255,8/255")
    add("--batch-size", type=int, default=256, help="examples at a time (default: 256)")
    add(
        "--out",
        type=file_path,
        help="CSV file; a JSON goes beside it (default: margins.csv in the run's folder, or "
        "beside it margins-NORM-N.csv where one of more examples or of something else is there)",
    )
    margins.set_defaults(run=_margins)


def _add_data(commands: Commands) -> None:
    data = commands.add_parser("data", help="list and get data sets", description="List and get data sets.")
    verbs = data.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="what there is, and what is here", description="List the data sets.")
    get = verbs.add_parser("get", help="download a set, or take it from files", description="Get a data set.")
    get.add_argument("name", metavar="NAME", help="as `dyart data list` shows it")
    get.add_argument("--from", dest="source", type=Path, metavar="FILE_OR_FOLDER", help="files that are here already")
    get.add_argument(
        "--size",
        type=picture_size,
        metavar="N",
        help="of pictures of your own: cut each to a square around its centre and resize it (bilinear) to N x N; "
        "WIDTHxHEIGHT likewise (default: they must have one size)",
    )
    get.add_argument("--replace", action="store_true", help="a set of your own that was made from other files")
    for command in (listing, get):
        command.add_argument("--root", type=Path, help="folder of all data sets (default: $DYART_DATA or the cache)")
    data.set_defaults(run=_data)


def _add_recipes(commands: Commands) -> None:
    recipes = commands.add_parser("recipes", help="list the recipes", description="List recipes and what they are for.")
    recipes.add_argument("pattern", nargs="?", help="part of a name, e.g. resnet18")
    recipes.set_defaults(run=_recipes)


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"seeds are whole numbers, e.g. 0,1,2; got {text!r}") from error
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"a seed that comes twice says nothing new: name each once; got {text!r}")
    return seeds


def _compare(options: argparse.Namespace) -> None:
    from dyart.cli.compare import compare_command

    compare_command(options)


def _demo(options: argparse.Namespace) -> None:
    from dyart.cli.demo import demo

    demo(options.out, options.seed, options.device, options.quick)


def _train(options: argparse.Namespace) -> None:
    from dyart.cli.train import train_command

    train_command(options)


def _margins(options: argparse.Namespace) -> None:
    from dyart.cli.margins import margins_command

    margins_command(options)


def _data(options: argparse.Namespace) -> None:
    from dyart.data.commands import get_command, list_command

    if options.verb == "list":
        list_command(options.root)
    else:
        get_command(options.name, options.root, options.source, options.size, options.replace)


def _recipes(options: argparse.Namespace) -> None:
    from dyart.recipes.listing import table

    for name, note in table(options.pattern):
        print(f"{name}\n    {note}")
