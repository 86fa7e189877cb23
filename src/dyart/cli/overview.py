"""What ``dyart`` alone says: where to begin, and what there is."""

import argparse
import textwrap

import dyart
from dyart.cli.parsers import helps

EXAMPLES = """\
examples:
  dyart demo                                        burn-in, AT and DyART on embedded images, and a page about them
  dyart train fashion-mini-cnn-dyart                train a small robust network on the CPU
  dyart margins --model my.package:factory --weights w.pt --data folder_of_images
                                                    which examples of a network of your own are vulnerable
"""


def overview(parser: argparse.ArgumentParser) -> str:
    """Return the text."""
    lines = [f"dyart {dyart.__version__}: {parser.description}", "", EXAMPLES, "commands:"]
    for name, meaning in helps(parser).items():
        lines += textwrap.wrap(meaning, 88, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14)
    lines += ["", "`dyart COMMAND --help` says more about each; `dyart doctor` checks the installation."]
    return "\n".join(lines) + "\n"
