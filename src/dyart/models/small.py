"""Two networks for a CPU: a convolutional one for small images and a perceptron for anything."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from dyart.models.layers import Activation, conv3x3

WIDTHS = (16, 32, 64)
POOLED = 4
HIDDEN = 128


class SmallCNN(nn.Module):
    """Three 3x3 convolutions of stride 2, each with norm and activation, and one linear layer.

    28x28 and 32x32 images leave the convolutions as 4x4; larger ones are averaged to that, so that the linear layer is
    small for every size.
    """

    def __init__(self, channels: int, classes: int, activation: Activation, normalize: nn.Module) -> None:
        """Build the network for images of ``channels`` channels."""
        super().__init__()
        self.normalize = normalize
        stages = [
            nn.Sequential(conv3x3(into, out, 2), nn.BatchNorm2d(out), activation())
            for into, out in pairwise((channels, *WIDTHS))
        ]
        self.layers = nn.Sequential(*stages)
        self.linear = nn.Linear(WIDTHS[-1] * POOLED**2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``[N, classes]``."""
        features = self.layers(self.normalize(x))
        if features.shape[2:] != (POOLED, POOLED):
            features = F.adaptive_avg_pool2d(features, POOLED)
        logits: Tensor = self.linear(features.flatten(1))
        return logits


class MLP(nn.Module):
    """Two hidden layers of 128 units, without normalisation layers, for inputs of any shape."""

    def __init__(self, features: int, classes: int, activation: Activation, normalize: nn.Module) -> None:
        """Build the network for examples of ``features`` numbers."""
        super().__init__()
        self.normalize = normalize
        self.layers = nn.Sequential(nn.Linear(features, HIDDEN), activation(), nn.Linear(HIDDEN, HIDDEN), activation())
        self.linear = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``[N, classes]``."""
        logits: Tensor = self.linear(self.layers(self.normalize(x).flatten(1)))
        return logits
