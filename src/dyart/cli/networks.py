"""From what a user names on the command line to a network and the examples to measure it on."""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from dyart.data import DataSet, load
from dyart.data.loader import as_tensors
from dyart.engine.fabric import make_fabric
from dyart.engine.run import (
    RunError,
    averaged_weights,
    checkpoint_of,
    load_weights,
    make_model,
    read_config,
    run_folder,
)
from dyart.models import build


def named_network(options: argparse.Namespace) -> tuple[nn.Module, DataSet, torch.device, Path | None]:
    """Return network (eval mode), data set, device, and the run's folder if there is one.

    Either a run or a checkpoint is named (the averaged weights of its best epoch count), or ``--model`` with
    ``--data`` and, for anything but random weights, ``--weights``.
    """
    device = make_fabric(options.device).device
    if options.run_or_checkpoint is not None and options.model is None:
        folder = run_folder(options.run_or_checkpoint)
        config = read_config(folder)
        root = Path(config.data.root) if config.data.root else None
        data = load(options.data or config.data.name, root)
        model = make_model(config, data)
        checkpoint = checkpoint_of(options.run_or_checkpoint)
        print(f"network: {config.model.name}, averaged weights of {checkpoint}")
        load_weights(model, averaged_weights(checkpoint), str(checkpoint))
        return model.to(device).eval(), data, device, folder
    if options.model is None or options.data is None:
        raise RunError("name a run or checkpoint, or a network with --model package.module:factory and --data NAME")
    data = load(options.data)
    try:
        model = build(options.model, len(data.classes), data.shape)
    except (TypeError, AttributeError) as error:
        raise RunError(f"--model {options.model}: {error}") from error
    if options.weights is None:
        print("no --weights: the network is measured with the weights it is made with", file=sys.stderr)
    else:
        load_weights(model, read_weights(options.weights), str(options.weights))
    return model.to(device).eval(), data, device, None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return a state dict from a .safetensors file, or from a .pt file that holds tensors and nothing else."""
    if not path.is_file():
        raise RunError(f"no weights {path}")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RunError(
            f"cannot read {path} as a state dict of tensors (it is read without executing code): {error}"
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise RunError(f"{path} holds no state dict: save it with torch.save(model.state_dict(), ...)")
    return state


def test_examples(data: DataSet, count: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` test examples, in [0, 1], and their labels, on the device."""
    return as_tensors(data.test, slice(None, count), device)
