"""Small networks for the tests, each with a fixed initialisation that leaves the global random state alone."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def smooth_network(
    features: int = 12, classes: int = 4, width: int = 24, gain: float = 1.6, seed: int = 0
) -> nn.Module:
    """A tanh network in float64; ``gain`` above 1 bends its boundaries, so that curvature matters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, classes))
        network = nn.Sequential(*layers).double()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(gain)
            _spread(network, network[-1], torch.rand(256, features).double())
    return network


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int, normalization: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = _normalization(normalization, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = _normalization(normalization, channels)
        same = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class ResNet(nn.Module):
    """Two blocks, about five thousand parameters, images of 3 channels and any size."""

    def __init__(self, normalization: str, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.norm = _normalization(normalization, 8)
        self.block1 = Block(8, 8, 1, normalization)
        self.block2 = Block(8, 16, 2, normalization)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        return self.head(self.block2(self.block1(x)).mean(dim=(2, 3)))


def small_resnet(normalization: str = "group", classes: int = 4, seed: int = 0) -> ResNet:
    """A ResNet in eval mode with ``"group"`` or ``"batch"`` normalisation, nothing in it at a neutral value.

    BatchNorm comes with running statistics that are far from those of any batch.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = ResNet(normalization, classes)
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, nn.GroupNorm | nn.BatchNorm2d):
                    module.weight.uniform_(0.6, 1.4)
                    module.bias.normal_(0, 0.2)
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean.normal_(0, 0.2)
                    module.running_var.uniform_(0.2, 0.6)
            _spread(network.eval(), network.head, torch.rand(64, 3, 8, 8))
    return network


class Recurrent(nn.Module):
    """An LSTM over series ``[N, time, features]`` and a linear head on its last state."""

    def __init__(self, features: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, 12, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    """One transformer encoder layer over series ``[N, time, features]``; smooth, so that differences are accurate."""

    def __init__(self, features: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(features, 2, 16, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(dim=1))


def small_lstm(seed: int = 0) -> Recurrent:
    """A Recurrent network in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Recurrent().eval()


def small_transformer(seed: int = 0) -> Attention:
    """An Attention network in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Attention().eval()


def random_like(network: nn.Module, seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    """One random direction for all parameters, by name."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        for name, parameter in network.named_parameters()
    }


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in [0, 1) from a generator of their own."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute without oneDNN, whose bfloat16 kernels crash on virtual machines that announce AMX and do not have it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _spread(network: nn.Module, head: nn.Linear, inputs: Tensor, size: float = 2.0) -> None:
    """Centre and scale the logits of the inputs, so that all classes are predicted and few margins are tiny."""
    logits = network(inputs)
    scale = size / logits.std(dim=0).mean()
    head.weight.mul_(scale)
    head.bias.sub_(logits.mean(dim=0)).mul_(scale)


def _normalization(kind: str, channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels) if kind == "group" else nn.BatchNorm2d(channels)
