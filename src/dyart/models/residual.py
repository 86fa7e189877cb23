"""Residual networks: Wide-ResNets, PreAct-ResNet-18 and ResNet-18, for images of any size.

All are built with BatchNorm; ``replace_batch_norm`` makes the GroupNorm variant of the same names. Layer names of the
ResNets are the usual ones for CIFAR (``conv1``, ``layer1.0.bn1``, ``linear``), so that public weights load.
"""

from collections.abc import Callable

from torch import Tensor, nn

from dyart.models.layers import Activation, conv3x3, pooled, same_conv3x3

Conv3x3 = Callable[[int, int, int], nn.Conv2d]
Block = Callable[[int, int, int], nn.Module]

STRIDES = (1, 2, 2, 2)
WIDTHS = (64, 128, 256, 512)
BLOCKS = 2


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)


def _stage(block: Block, in_channels: int, out_channels: int, stride: int, blocks: int) -> nn.Sequential:
    first = block(in_channels, out_channels, stride)
    return nn.Sequential(first, *(block(out_channels, out_channels, 1) for _ in range(blocks - 1)))


class PreActBlock(nn.Module):
    """Norm, activation, convolution, twice; a shortcut by 1x1 convolution starts from the activated tensor."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        activation: Activation,
        conv: Conv3x3 = conv3x3,
        momentum: float = 0.1,
    ) -> None:
        """Make a block; the shortcut is a convolution where stride or width change, else the input itself."""
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels, momentum=momentum)
        self.act1 = activation()
        self.conv1 = conv(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels, momentum=momentum)
        self.act2 = activation()
        self.conv2 = conv(out_channels, out_channels, 1)
        self.projects = stride != 1 or in_channels != out_channels
        if self.projects:
            self.shortcut = nn.Sequential(_shortcut(in_channels, out_channels, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        active = self.act1(self.bn1(x))
        carried: Tensor = self.shortcut(active) if self.projects else x
        change: Tensor = self.conv2(self.act2(self.bn2(self.conv1(active))))
        return carried + change


class BasicBlock(nn.Module):
    """Convolution, norm, activation, twice, the last activation after the sum; a norm in the shortcut as well."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, activation: Activation) -> None:
        """Make a block; the shortcut is a convolution and a norm where stride or width change."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.act1 = activation()
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.act2 = activation()
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(_shortcut(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        carried: Tensor = self.shortcut(x)
        out: Tensor = self.act2(carried + self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        return out


class WideResNet(nn.Module):
    """A pre-activation Wide-ResNet of (depth - 4) / 6 blocks in each of three stages, without dropout."""

    def __init__(
        self,
        depth: int,
        width: int,
        channels: int,
        classes: int,
        activation: Activation,
        normalize: nn.Module,
        *,
        same: bool,
        momentum: float,
    ) -> None:
        """Build the network.

        Args:
            depth: 28 or 34 here; 6 k + 4 for k blocks per stage.
            width: the factor on 16, 32 and 64 channels.
            channels: of the input images.
            classes: number of logits.
            activation: makes the activation layers.
            normalize: the first layer.
            same: pad the strided convolutions as TensorFlow does, instead of one pixel all round.
            momentum: of BatchNorm's running statistics.
        """
        super().__init__()
        conv = same_conv3x3 if same else conv3x3

        def block(into: int, out: int, stride: int) -> PreActBlock:
            return PreActBlock(into, out, stride, activation, conv, momentum)

        blocks, widths = (depth - 4) // 6, (16 * width, 32 * width, 64 * width)
        self.normalize = normalize
        self.conv1 = conv3x3(channels, 16)
        self.layer1 = _stage(block, 16, widths[0], 1, blocks)
        self.layer2 = _stage(block, widths[0], widths[1], 2, blocks)
        self.layer3 = _stage(block, widths[1], widths[2], 2, blocks)
        self.bn = nn.BatchNorm2d(widths[2], momentum=momentum)
        self.act = activation()
        self.linear = nn.Linear(widths[2], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # N(0, 2 / (kernel area x output channels))
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``[N, classes]``."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(self.normalize(x)))))
        logits: Tensor = self.linear(pooled(self.act(self.bn(x))))
        return logits


class PreActResNet18(nn.Module):
    """PreAct-ResNet-18 for small images: a 3x3 stem of stride 1, no early pooling, PyTorch's initialisation."""

    def __init__(self, channels: int, classes: int, activation: Activation, normalize: nn.Module) -> None:
        """Build the network for images of ``channels`` channels."""
        super().__init__()

        def block(into: int, out: int, stride: int) -> PreActBlock:
            return PreActBlock(into, out, stride, activation)

        self.normalize = normalize
        self.conv1 = conv3x3(channels, WIDTHS[0])
        before = (WIDTHS[0], *WIDTHS)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(block, *sizes, BLOCKS) for sizes in zip(before, WIDTHS, STRIDES, strict=False)
        )
        self.bn = nn.BatchNorm2d(WIDTHS[-1])
        self.act = activation()
        self.linear = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``[N, classes]``."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(self.normalize(x))))))
        logits: Tensor = self.linear(pooled(self.act(self.bn(x))))
        return logits


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3x3 stem of stride 1, no early pooling, PyTorch's initialisation."""

    def __init__(self, channels: int, classes: int, activation: Activation, normalize: nn.Module) -> None:
        """Build the network for images of ``channels`` channels."""
        super().__init__()

        def block(into: int, out: int, stride: int) -> BasicBlock:
            return BasicBlock(into, out, stride, activation)

        self.normalize = normalize
        self.conv1 = conv3x3(channels, WIDTHS[0])
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.act1 = activation()
        before = (WIDTHS[0], *WIDTHS)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(block, *sizes, BLOCKS) for sizes in zip(before, WIDTHS, STRIDES, strict=False)
        )
        self.linear = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``[N, classes]``."""
        x = self.act1(self.bn1(self.conv1(self.normalize(x))))
        logits: Tensor = self.linear(pooled(self.layer4(self.layer3(self.layer2(self.layer1(x))))))
        return logits
