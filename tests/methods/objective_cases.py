"""Batches, networks and comparisons for the tests of the DyART objective."""

import copy

import torch
from networks import small_resnet, uniform
from torch import Tensor, nn

EXAMPLES = 12


def images(dtype: torch.dtype = torch.float64, examples: int = EXAMPLES) -> Tensor:
    # A share of the pixels at 0 and 1, so that the box pins some.
    return (1.6 * uniform(examples, 3, 8, 8, seed=7, dtype=dtype) - 0.3).clamp(0, 1)


def labels_of(model: nn.Module, x: Tensor) -> Tensor:
    """The predictions in eval mode, every fourth of them wrong."""
    labels = copy.deepcopy(model).eval()(x).argmax(dim=1)
    labels[::4] = (labels[::4] + 1) % 4
    return labels


def network(normalization: str) -> nn.Module:
    return small_resnet(normalization).double()


def gradients_of(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_all_close(got: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    scale = max(float(other.abs().max()) for other in wanted)
    assert scale > 0
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)
