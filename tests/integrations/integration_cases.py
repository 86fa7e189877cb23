"""Classifiers whose margins are known, and small data."""

import torch
from torch import nn

FEATURES, CLASSES = 6, 3


def linear(seed=0, classes=CLASSES, features=FEATURES):
    """A linear classifier with a distance to every boundary that can be written down."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(features, classes)
    with torch.no_grad():
        model.weight.copy_(torch.randn(classes, features, generator=generator))
        model.bias.copy_(-model.weight.sum(dim=1) / 2)  # the middle of the box is between the classes
    return model.eval()


def distances(model, inputs, norm):
    """The distance to the region of each other class against the predicted one, ``[N, K]``, without a box; inf: own."""
    dual = {"linf": 1, "l2": 2, "l1": float("inf")}[norm]
    with torch.no_grad():
        logits = model(inputs)
        own = logits.argmax(dim=1)
        gap = logits.gather(1, own[:, None]) - logits
        weights = model.weight[own][:, None] - model.weight[None]
        lengths = torch.linalg.vector_norm(weights, dual, dim=2)
    return torch.where(torch.arange(logits.shape[1]) == own[:, None], torch.inf, gap / lengths)


def examples(count=40, seed=1, features=FEATURES):
    """Inputs near the middle of the box, so that no margin meets its sides."""
    return 0.5 + 0.1 * torch.randn(count, features, generator=torch.Generator().manual_seed(seed)).clamp(-3, 3)


def predictions(model, inputs):
    with torch.no_grad():
        return model(inputs).argmax(dim=1)
