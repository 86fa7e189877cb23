"""What the tests of the networks share."""

import torch
from torch import Tensor, nn

BATCH_NORM = nn.modules.batchnorm._BatchNorm

IMAGES = ("wrn28-10", "wrn34-10", "preactresnet18", "resnet18", "cnn")
"""The networks with convolutions and norms."""

SMALLER = ("preactresnet18", "resnet18", "cnn", "mlp")
"""Those that run in a moment on one core."""


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def of_type(model: nn.Module, kind: type) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def lively(model: nn.Module, seed: int = 0) -> nn.Module:
    """Move the norms away from weight 1, bias 0, mean 0 and variance 1, where mistakes cannot be seen."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, BATCH_NORM | nn.GroupNorm):
            for tensor in module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.copy_(0.75 + 0.5 * torch.rand(tensor.shape, generator=generator))
    return model
