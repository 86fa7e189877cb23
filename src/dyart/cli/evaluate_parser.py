"""The arguments of ``dyart evaluate``; apart from what runs it, so that the command line starts quickly."""

import argparse
from pathlib import Path

from dyart.cli.network_options import add_devices_option, add_network_options
from dyart.cli.parsers import Commands, radii

HELP = """\
attacks, from quick to thorough:
  clean        the accuracy alone
  pgd          20 steps of PGD on the margin loss at every radius
  margins      one boundary search; robust accuracy at every radius follows from it
  apgd         search, PGD, then APGD-CE and APGD-T with nine targets
  autoattack   the same, FAB-T and Square: the standard AutoAttack
Each example is attacked in full at the largest radius below its closest known boundary point; if it resists there, it
is taken to resist at smaller ones ("inferred"). Whatever an attack finds is verified on the network in plain float32.

examples:
  dyart evaluate runs/mine --attack apgd
  dyart evaluate runs/mine --radii 4/255,8/255 --count 1000 --strict
  dyart evaluate --model my.package:factory --weights w.safetensors --data cifar10
"""


def add_evaluate(commands: Commands) -> None:
    """Add the command."""
    evaluate = commands.add_parser(
        "evaluate",
        help="how many test examples resist attacks, at many radii in one pass",
        description="Attack a network and count the test examples that resist. Writes evaluation.json (accuracies\n"
        "with intervals, settings, cost), evaluation.npz and per_example.csv. Killed at any time, the same command\n"
        "goes on where it was.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_network_options(evaluate)
    add_devices_option(evaluate)
    add = evaluate.add_argument_group("attacks").add_argument
    add(
        "--attack",
        choices=["clean", "pgd", "margins", "apgd", "autoattack"],
        default="autoattack",
        help="how hard to try, see below (default: autoattack)",
    )
    add(
        "--radii",
        type=radii,
        help="e.g. 2/255,8/255 (default: the run's; without a run 2/255,4/255,8/255,12/255,16/255)",
    )
    add("--norm", choices=["linf", "l2", "l1"], help="of the radii (default: the run's, else linf)")
    add("--strict", action="store_true", help="attack what is left at every radius; infer nothing")
    add("--steps", type=int, help="of the boundary search (default: 40 for margins, 50 before attacks)")
    add("--restarts", type=int, help="of the boundary search (default: 7 for margins, 2 before attacks)")
    add("--batch-size", type=int, help="examples at a time (default: 1000 on a GPU, else 256)")
    add(
        "--precision",
        choices=["auto", "ieee", "tf32", "bf16"],
        default="auto",
        help="of the attacks (auto: on a GPU bf16 for linf radii from 2/255 on, else tf32; on a CPU ieee)",
    )
    add("--compile", choices=["auto", "on", "off"], default="auto", help="auto: on a GPU, from 2,000 examples on")
    add("--no-preflight", action="store_true", help="skip the checks of network and data")
    add(
        "--out",
        type=Path,
        help="folder of the records (default: the run's, or one in it for a part of the test set; without a run "
        "evaluation- and the name of the weights or the model). Another evaluation that is there is replaced by a more "
        "thorough attack alone: any other goes beside it without --out, and is refused with --out",
    )
    add("--fresh", action="store_true", help="forget what was begun or finished in that folder, and start anew")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(options: argparse.Namespace) -> None:
    from dyart.cli.evaluate import evaluate_command

    evaluate_command(options)
