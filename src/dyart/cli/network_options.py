"""The arguments that name a network and its examples, the same for every command; apart from what loads them."""

import argparse
import ast
from pathlib import Path

from dyart.attacks.radius import Radius

DESCRIPTION = """\
RUN_OR_CHECKPOINT is a run's folder ({weights} count), one of its checkpoints, or a
.safetensors file that says which network it is of: a published model, or what dyart export wrote. Any other network is
named by --model and --data, its weights by --weights:
  --model resnet18 --weights w.safetensors --data cifar10
  --model my.package:factory --weights w.pt --data folder_of_images
  --model timm:create_model --model-args model_name=resnet18,num_classes=10
  --model transformers:AutoModelForImageClassification.from_pretrained
      --model-args pretrained_model_name_or_path=./folder --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5
  --model robustbench:load_model --model-args model_name=Wang2023Better_WRN-28-10,dataset=cifar10,threat_model=Linf
Weights are read without executing code: .safetensors, or .pt with tensors alone."""

_WORDS = {"true": True, "false": False, "none": None, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``dyart.cli.networks.named_network`` and ``named_examples`` read."""
    parser.add_argument(
        "run_or_checkpoint",
        nargs="?",
        type=Path,
        metavar="RUN_OR_CHECKPOINT",
        help="a run's folder, a checkpoint or a published model",
    )
    group = add_model_options(
        parser, "the averaged weights of its best epoch", "its test images (default: the run's own)"
    )
    add = group.add_argument
    add(
        "--count",
        type=int,
        metavar="N",
        help="so many test examples, drawn by --seed from the whole test set: the same for every network, and part of "
        "those of a larger count (default: all)",
    )
    add("--device", default="auto", help="auto (default), cpu, cuda or cuda:1")
    add("--seed", type=int, default=0, help="of the choice of examples and of everything random (default: 0)")


def add_model_options(parser: argparse.ArgumentParser, weights: str, examples: str) -> "argparse._ArgumentGroup":
    """Add the arguments that name a network outside of a run, and its data; return their group.

    Args:
        parser: of the command.
        weights: which of a run's weights count, in words.
        examples: which of a data set's examples are measured, in words.
    """
    group = parser.add_argument_group("network and data", DESCRIPTION.format(weights=weights))
    add = group.add_argument
    add("--model", metavar="NAME", help="a network of this package, or package.module:factory for any other")
    add(
        "--model-args",
        metavar="KEY=VALUE,...",
        type=parse_arguments,
        help="arguments of the factory; numbers, lists, True, False and None are read as such, all else as text. It is "
        "given classes, num_classes and shape of the data where its signature names them",
    )
    add("--weights", type=Path, metavar="FILE", help="state dict: .safetensors, or .pt with tensors alone")
    add(
        "--mean",
        type=parse_numbers,
        metavar="M,...",
        help="for a network that expects normalised inputs: per channel, of images in [0, 1] (those of 0 to 255, "
        "divided by 255)",
    )
    add(
        "--std",
        type=parse_numbers,
        metavar="S,...",
        help="with --mean; margins and radii are still those of [0, 1]",
    )
    add(
        "--data",
        metavar="NAME_OR_PATH",
        help=f"a data set, a folder of images or an .npz (uint8, 0 to 255): {examples}",
    )
    return group


def add_devices_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--devices``, for commands whose work several processes divide."""
    parser.add_argument(
        "--devices",
        type=parse_count,
        default=1,
        metavar="N",
        help="so many processes, one for each GPU, divide the batches; the result is that of one (default: 1)",
    )


def parse_arguments(text: str) -> dict[str, object]:
    """Read ``name=resnet18,num_classes=10,layers=[2,2]`` into arguments of a call.

    Raises:
        argparse.ArgumentTypeError: a part has no ``=`` or no name before it.
    """
    found: dict[str, object] = {}
    for part in _split(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip().isidentifier():
            raise argparse.ArgumentTypeError(
                f"{part!r} is no KEY=VALUE; write e.g. model_name=resnet18,num_classes=10, and quote text with commas"
            )
        found[key.strip()] = _value(value.strip())
    return found


def parse_count(text: str) -> int:
    """Read a whole number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, got {text!r}")
    return number


def parse_numbers(text: str) -> list[float]:
    """Read ``0.49,0.48,0.45``; fractions such as 125/255 are numbers, too."""
    try:
        return [float(Radius(part)) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _split(text: str) -> list[str]:
    """Split at the commas that are outside of brackets and quotes."""
    parts, open_, quote = [""], [], ""  # type: tuple[list[str], list[str], str]
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSING:
            open_.append(_CLOSING[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif letter == "," and not open_:
            parts.append("")
            continue
        parts[-1] += letter
    return [part for part in parts if part.strip()]


def _value(text: str) -> object:
    if text.lower() in _WORDS:  # also as YAML and JSON write them: the text "false" would count as true
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
