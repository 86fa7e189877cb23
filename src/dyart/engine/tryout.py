"""A network of anybody's is called once before a training of it begins."""

import sys

import torch
from torch import nn

from dyart.boundary.model import evaluation_mode, logits_of, training_mode, unchanged
from dyart.data.loader import as_tensors
from dyart.data.sets import DataSet
from dyart.engine.fabric import Fabric
from dyart.engine.stored import RunError
from dyart.recipes import Config

# Outputs whose rows sum to 1 by this are probabilities.
SUMS_TO_ONE = 1e-3


def try_out(model: nn.Module, config: Config, data: DataSet, fabric: Fabric) -> None:
    """Call the network once in each mode before anything is written: inputs and outputs must be those of the data.

    Raises:
        RunError: they are not, or there is nothing to train.
    """
    inputs, _ = as_tensors(data.train, slice(0, 2), fabric.device)
    name, shape = config.model.name, "x".join(map(str, data.shape))
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise RunError(
            f"model.name {name} has TorchScript in it, which can be measured, not trained: leave it unscripted"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RunError(f"model.name {name} has no parameter to train: let some require gradients")
    with torch.no_grad(), evaluation_mode(model), unchanged(model, fabric.device):
        try:
            logits = logits_of(model(inputs))
        except Exception as error:
            for note in data.notes:  # one may say why
                fabric.print(f"{data.name}: {note}", file=sys.stderr)
            raise RunError(f"model.name {name} fails on inputs of shape {shape}: {error}") from error
    with torch.no_grad(), training_mode(model), unchanged(model, fabric.device):
        try:
            output = model(inputs)
        except (RuntimeError, ValueError):  # two examples may be too few for it
            output = logits
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise RunError(f"model.name {name} fails in training mode, on inputs of shape {shape}: {said}") from error
    try:
        trained = logits_of(output)
    except (TypeError, ValueError) as error:
        raise RunError(f"model.name {name}, in training mode: {error}") from error
    for number, mode in ((logits.shape[1], ""), (trained.shape[1], " in training mode")):
        if number != len(data.classes):
            raise RunError(
                f"model.name {name} gives {number} logits{mode}, {data.name} has {len(data.classes)} classes"
            )
    if bool((logits >= 0).all()) and bool(((logits.sum(dim=1) - 1).abs() < SUMS_TO_ONE).all()):
        fabric.print(
            f"the outputs of model.name {name} are probabilities: the loss takes their softmax once more, and "
            "gradients vanish where the network is sure; return the logits, without the softmax"
        )
