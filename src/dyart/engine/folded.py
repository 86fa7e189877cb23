"""A network in eval mode made cheap to call many times between two updates of its weights.

What does not change between the updates is worked out once: BatchNorm becomes one factor and one summand per channel,
and the weights that autocast would cast at every call are kept cast. Compiled as they are, both would be done for every
element, in every call: on an H200 half of the time that a search spends outside convolutions.
"""

from typing import TypeGuard, cast

import torch
from torch import Tensor, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# What autocast casts the weights of.
CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class FoldedNorm(nn.Module):
    """BatchNorm with its running statistics, as a factor and a summand per channel.

    Args:
        channels: how many there are.
        like: a tensor on the device, of the dtype to compute in.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int, like: Tensor) -> None:
        """Make room for both."""
        super().__init__()
        self.register_buffer("scale", like.new_ones(channels))
        self.register_buffer("shift", like.new_zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalized, in its own dtype."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (x * self.scale.view(shape) + self.shift.view(shape)).to(x.dtype)


class FoldedView:
    """A frozen view of a network with its BatchNorm layers folded; ``refresh`` follows the network.

    Layers with hooks or of derived classes stay as they are, and so does everything else: they share the network's
    tensors.

    Args:
        model: the network.
        frozen: a view of it, in eval mode (``frozen_view``), whose layers are replaced.
        half: keep weights of linear and convolutional layers in this dtype, as autocast does within one call; None: as
            they are.
    """

    def __init__(self, model: nn.Module, frozen: nn.Module, half: torch.dtype | None) -> None:
        """Replace the layers."""
        self.module = frozen
        self._norms: list[tuple[nn.modules.batchnorm._BatchNorm, FoldedNorm]] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        made: dict[int, nn.Module] = {}
        for own, source in zip(list(self.module.modules()), list(model.modules()), strict=True):
            for name, child in source._modules.items():  # with those that are there twice
                if _foldable(child):
                    if id(child) not in made:
                        made[id(child)] = self._folded(child)
                    setattr(own, name, made[id(child)])
            if half is not None and type(source) in CAST and not _hooked(source):
                self._cast(own, source, half)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the network's weights and statistics as they are now. No host synchronisation."""
        if self._norms:
            sources, own = zip(*self._norms, strict=True)
            means = [cast(Tensor, norm.running_mean) for norm in sources]
            variances = [cast(Tensor, norm.running_var) for norm in sources]
            deviations = torch._foreach_add(variances, [norm.eps for norm in sources])
            torch._foreach_sqrt_(deviations)
            pairs = list(zip(sources, means, strict=True))
            factors = [torch.ones_like(mean) if norm.weight is None else norm.weight for norm, mean in pairs]
            summands = [torch.zeros_like(mean) if norm.bias is None else norm.bias for norm, mean in pairs]
            scales = torch._foreach_div(factors, deviations)
            torch._foreach_copy_([norm.scale for norm in own], list(scales))
            shifts = torch._foreach_sub(summands, torch._foreach_mul(means, scales))
            torch._foreach_copy_([norm.shift for norm in own], list(shifts))
        if self._copies:
            torch._foreach_copy_([own for own, _ in self._copies], [source for _, source in self._copies])

    def _folded(self, norm: nn.modules.batchnorm._BatchNorm) -> FoldedNorm:
        folded = FoldedNorm(norm.num_features, cast(Tensor, norm.running_mean)).eval()
        self._norms.append((norm, folded))
        return folded

    def _cast(self, own: nn.Module, source: nn.Module, half: torch.dtype) -> None:
        for name, parameter in source.named_parameters(recurse=False):
            copy = nn.Parameter(parameter.detach().to(half), requires_grad=False)
            setattr(own, name, copy)
            self._copies.append((copy, parameter.detach()))


def _foldable(module: nn.Module | None) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    return isinstance(module, NORMS) and type(module) in NORMS and not _hooked(module) and module.track_running_stats


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_pre_hooks or module._forward_hooks)
