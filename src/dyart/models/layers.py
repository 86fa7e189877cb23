"""The parts that the networks share: normalisation of inputs and features, padding, activation."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Normalization = Literal["batch", "group"]
ActivationName = Literal["silu", "relu"]
Activation = Callable[[], nn.Module]

# Never in place: forward-mode derivatives and the residual blocks read a tensor after its activation.
ACTIVATIONS: dict[ActivationName, Activation] = {"silu": nn.SiLU, "relu": nn.ReLU}

GROUPS = 32


class InputNormalization(nn.Module):
    """Subtracts a mean from every channel and divides by a standard deviation, inside the model.

    Margins and radii are measured where the model's inputs live: with this first in the model, that is pixels in
    [0, 1]. Both are buffers: saved with the weights, never trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], spatial: int = 2) -> None:
        """Keep one mean and one standard deviation per channel.

        Args:
            mean: one number per channel.
            std: one positive number per channel.
            spatial: dimensions after the channels: 2 for images, 0 for vectors.
        """
        super().__init__()
        if len(mean) != len(std):
            raise ValueError(f"mean has {len(mean)} numbers and std has {len(std)}; give one of each per channel")
        if not all(map(math.isfinite, [*mean, *std])) or min(std, default=0.0) <= 0:
            raise ValueError(
                f"mean must be finite and std positive, got mean={tuple(map(float, mean))} and "
                f"std={tuple(map(float, std))}"
            )
        shape = (len(mean),) + (1,) * spatial
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(shape))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised inputs."""
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """Show the numbers, unless they are only shapes (meta device)."""
        if self.mean.is_meta:
            return f"channels={len(self.mean)}"
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after ``size`` positions that give ceil(size / stride) outputs, the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "SAME" padding.

    Under stride 2 an even image is padded on the right and at the bottom alone, where ``padding=1`` pads all sides and
    shifts the grid by a pixel: another network, though of the same shapes.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int) -> None:
        """Make a convolution without bias."""
        super().__init__(in_channels, out_channels, kernel, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of the padded ``x``."""
        height, width = x.shape[-2:]
        rows = same_padding(height, self.kernel_size[0], self.stride[0])
        columns = same_padding(width, self.kernel_size[1], self.stride[1])
        return super().forward(F.pad(x, [*columns, *rows]))


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution without bias, padded by one pixel all round."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def same_conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution without bias, with "SAME" padding."""
    if stride == 1:
        return conv3x3(in_channels, out_channels)  # the same padding, without a padded copy
    return SameConv2d(in_channels, out_channels, 3, stride)


def pooled(x: Tensor) -> Tensor:
    """Return the mean of every channel over the image, ``[N, C]``, for any image size and memory format."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return ``F.group_norm`` by way of every channel's mean and variance: ``[N, C, ...]``, images or the like.

    Computed in float32 or better and returned in the dtype of ``x``, under autocast as well, where ``F.group_norm``
    returns float32: half precision stays half, as with BatchNorm.

    With channels last in memory, compiled for a GPU, neighbouring threads then read neighbouring numbers. A group alone
    has only a few neighbouring channels.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    variance, mean = torch.var_mean(wide.flatten(2), dim=2, correction=0)
    variance, mean = variance.unflatten(1, (groups, -1)), mean.unflatten(1, (groups, -1))
    centre = mean.mean(dim=2, keepdim=True)
    spread = (variance + (mean - centre).square()).mean(dim=2, keepdim=True)
    scale = torch.rsqrt(spread + eps).expand_as(mean).flatten(1)
    if weight is not None:
        scale = scale * weight
    shift = -centre.expand_as(mean).flatten(1) * scale
    if bias is not None:
        shift = shift + bias
    normalized: Tensor = wide.flatten(2) * scale.unsqueeze(2) + shift.unsqueeze(2)
    return normalized.to(x.dtype).reshape(x.shape)


def by_channels(x: Tensor) -> bool:
    """Return whether a layer goes by the channels: where it is compiled for a GPU."""
    return x.is_cuda and x.ndim > 2 and torch.compiler.is_compiling()


class GroupNorm(nn.GroupNorm):
    """GroupNorm by way of the channels (``group_norm``) where it is compiled for a GPU; elsewhere torch's own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised in groups of channels."""
        if by_channels(x):
            return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def replace_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm inside ``module`` by GroupNorm with gcd(32, channels) groups, names kept.

    The new layers start at weight 1 and bias 0. Nothing is drawn: the other parameters are those of the BatchNorm
    network of the same seed. Returns the module, or its replacement if it is a BatchNorm itself.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _group_norm_for(module)
    made: dict[nn.Module, nn.Module] = {}
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # with those that are there twice
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                if child not in made:
                    made[child] = _group_norm_for(child)
                setattr(parent, name, made[child])
    return module


def _group_norm_for(module: nn.modules.batchnorm._BatchNorm) -> GroupNorm:
    if isinstance(module, nn.BatchNorm1d):
        raise ValueError(
            f"cannot replace {module} by GroupNorm: on vectors a group can be one number, which GroupNorm makes "
            "constant. Let the factory take a `normalization` argument and choose there"
        )
    channels, like = module.num_features, module.weight
    group = GroupNorm(math.gcd(GROUPS, channels), channels, eps=1e-5, affine=module.affine)
    return group if like is None else group.to(device=like.device, dtype=like.dtype)


def set_batch_norm_momentum(module: nn.Module, momentum: float) -> None:
    """Set the momentum of the running statistics of every BatchNorm inside ``module``."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = momentum
