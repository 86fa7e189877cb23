"""The arguments of the commands about dynamics; apart from the commands, whose imports take a second."""

import argparse
from pathlib import Path

from dyart.attacks.radius import Radius
from dyart.cli.network_options import add_model_options, parse_count
from dyart.cli.parsers import Commands, file_path, names

HELP = """\
examples:
  dyart dynamics runs/demo/natural                        AT and DyART on the network of a run
  dyart dynamics runs/demo/natural runs/demo/at           two networks, and the paper's figures of both
  dyart dynamics RUN --methods at,trades,dyart --against trades
  dyart dynamics RUN --at.radius 0.05 --dyart.lam 100     settings of a method (default: the run's own, else those of
                                                          the recipe for this data set, else the method's defaults,
                                                          with lengths for --radius, else for the run's radius)
  dyart dynamics RUN/checkpoints/epoch-0004 --update optimizer
  dyart dynamics --model my.package:factory --weights w.pt --data folder_of_images --radius 4/255
                                                          a network that was not trained here

Every batch is as large as one of the training. On each, the closest points of the exact boundary are found once; then
every method crafts its points, and its update theta' = -grad L (or the optimizer's step) gives the speed of the
boundary at each example of that batch. Only correctly classified examples with a locally optimal point count.

writes dynamics.csv (one line per example with a boundary point), dynamics.json, dynamics.npz, dynamics-scatter and
dynamics-bars (.pdf, .svg, .png) into the run's folder (into one in it, if there are results of more examples) or OUT.
With several runs: into a folder per run below OUT, and figures of all into OUT. Of a network that is of no run: into
dynamics- and the name of its weights or the model; dyart report shows that folder.
"""

CURVES_HELP = """\
example, the paper's figure of whole trainings on the embedded set:
  dyart train fashion-mini-cnn-natural --out runs/natural
  dyart train fashion-mini-cnn-at --monitor.every 10 --monitor.probe batch --out runs/at
  dyart train fashion-mini-cnn-dyart --train.burn_in 0 --train.burn_in_from runs/natural \\
      --monitor.every 10 --monitor.probe batch --out runs/dyart
  dyart curves runs/at runs/dyart --out curves

monitor.every has a training watched; then, or with eval.train_examples N, it is also measured on training images, at
every validation (eval.every). A run that was not shows the means over its batches instead, as far as its method logs
them.
"""


def add_dynamics(commands: Commands) -> None:
    """Add ``dyart dynamics``."""
    dynamics = commands.add_parser(
        "dynamics",
        help="how one step of a method moves the decision boundary",
        description="Measure margins, and the speed of the boundary under one step of several methods, on one network: "
        "a run's,\nor any other that --model names.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    dynamics.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN_OR_CHECKPOINT",
        help="runs' folders, checkpoints or published models",
    )
    group = add_model_options(
        dynamics,
        "the raw weights of its best epoch",
        "its examples, for a network that is of no run (default: what its file says)",
    )
    add = group.add_argument
    add("--split", choices=["train", "test"],
        help="images of (default: train, as in the paper; test where the data have no training part)")  # fmt: skip
    add("--count", type=int, default=2000, metavar="N",
        help="at least so many examples, in whole batches (default: 2000)")  # fmt: skip
    add("--averaged", action="store_true",
        help="a run's averaged weights (default: the raw ones, which a step starts from)")  # fmt: skip
    add("--device", default="auto", help="auto (default), cpu, cuda or cuda:1")
    add("--seed", type=int, default=0, help="of the choice of examples and of random starts (default: 0)")
    add = dynamics.add_argument_group("methods and margins").add_argument
    add("--methods", type=names, help="e.g. at,dyart (default: at, dyart, and the run's own unless it is natural)")
    add("--against", help="the method that others are compared with (default: at, or the first)")
    add("--update", choices=["gradient", "optimizer"], default="gradient",
        help="theta' = -grad (default, the paper's), or the true step of the run's optimizer: momentum, decay, "
        "clipping, BatchNorm's statistics")  # fmt: skip
    add("--radius", type=_radius,
        help="below it an example counts as vulnerable (default: the run's eval.radius; without a run that of the "
        "recipes for the data set, else 8/255)")  # fmt: skip
    add("--norm", choices=["linf", "l2", "l1"],
        help="of margins and methods, for a network that is of no run (default: linf)")  # fmt: skip
    add("--batch-size", type=parse_count, metavar="N",
        help="examples that one step is taken on, for such a network (default: 128)")  # fmt: skip
    add("--steps", type=int, default=100, help="of the boundary search (default: 100)")
    add("--out", type=Path,
        help="folder (default: the run's own, or dynamics- and the name of the weights or the model; figures of "
        "several: runs/dynamics)")  # fmt: skip
    dynamics.set_defaults(run=_dynamics)


def add_plane(commands: Commands) -> None:
    """Add ``dyart plane``."""
    plane = commands.add_parser(
        "plane",
        help="watch the boundary move: pictures and an animation in two dimensions",
        description="Train a small network on points of the plane and draw what the paper's figures 1, 2 and 4 show: "
        "the moving boundary with its speeds, the curve of a closest point, the soft boundary beside the exact one; "
        "and an animation. About half a minute on one CPU core.",
    )
    add = plane.add_argument
    add("--method", default="dyart", help="of training, after a natural beginning (default: dyart)")
    add("--frames", type=int, default=60, help="of the animation (default: 60)")
    add("--out", type=Path, default=Path("runs/plane"), help="folder (default: runs/plane)")
    add("--device", default="cpu", help="cpu (default), cuda or auto")
    add("--seed", type=int, default=0)
    plane.set_defaults(run=_plane)


def add_curves(commands: Commands) -> None:
    """Add ``dyart curves``."""
    curves = commands.add_parser(
        "curves",
        help="draw accuracies and the share of negative speed through whole trainings",
        description="Draw clean and robust accuracy, held out and on training images (metrics.jsonl), and the share of "
        "vulnerable examples that the boundary moved towards (monitor.jsonl); one panel per run, shares together.",
        epilog=CURVES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = curves.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, one that has them in it, or the "
        "monitor.jsonl of a loop of your own")  # fmt: skip
    add("--smoothing", type=int, default=9,
        help="observations averaged for a smooth line (default: 9, at most a fifth of all)")  # fmt: skip
    add("--paper", type=Path, nargs="+", metavar="CSV",
        help="tables of published curves, drawn below: METHOD_acc.csv (iteration, test_clean, test_robust, "
        "train_clean, train_robust), or negative shares (iteration, a column per method)")  # fmt: skip
    add("--out", type=file_path,
        help="file, with any suffix: .pdf, .svg and .png are written (default: curves in the RUN, or in the folder "
        "above several)")  # fmt: skip
    curves.set_defaults(run=_curves)


def _curves(options: argparse.Namespace) -> None:
    from dyart.cli.curves import curves_command

    curves_command(options)


def _dynamics(options: argparse.Namespace) -> None:
    from dyart.cli.dynamics import dynamics_command

    dynamics_command(options)


def _plane(options: argparse.Namespace) -> None:
    from dyart.cli.plane import plane_command

    plane_command(options)


def _radius(text: str) -> Radius:
    try:
        radius = Radius(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not radius > 0:
        raise argparse.ArgumentTypeError(f"the radius must be positive, got {text}")
    return radius
