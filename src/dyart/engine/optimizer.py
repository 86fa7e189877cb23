"""SGD with the parameters that are decayed apart from those that are not."""

import torch
from torch import nn

from dyart.recipes.config import Optim

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def decay_groups(model: nn.Module, weight_decay: float, decay_all: bool = False) -> list[dict[str, object]]:
    """Return the optimizer's groups: weights with decay, norm parameters and biases without."""
    plain: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()  # two layers may share one
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            bias = name.endswith("bias") or name.startswith("bias_")  # those of an LSTM are bias_ih_l0 and so on
            spared = not decay_all and (isinstance(module, _NORMS) or bias)
            (plain if spared else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": float(weight_decay)}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.SGD:
    """Return SGD for a network. Rate and momentum are set before every step (``schedules``)."""
    groups = decay_groups(model, optim.weight_decay, optim.decay_all)
    nesterov = optim.nesterov and optim.momentum > 0
    fused = next(model.parameters()).is_cuda
    return torch.optim.SGD(groups, lr=float(optim.lr), momentum=float(optim.momentum), nesterov=nesterov, fused=fused)
