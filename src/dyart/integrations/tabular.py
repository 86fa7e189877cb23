"""A network for tables and its training, with torch alone."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dyart.methods.base import Method
from dyart.methods.natural import Natural


def mlp(features: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Return a multilayer perceptron. SiLU, because a boundary made of smooth pieces is searched more exactly."""
    widths = (features, *hidden)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def train(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    method: Method[Any],
    *,
    epochs: int,
    burn_in: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
) -> list[float]:
    """Train a network in place by AdamW, and return the mean loss of every epoch.

    The learning rate decays along a cosine; gradients are clipped to norm 1. Draws from torch's global generator.

    Args:
        model: from inputs to logits.
        inputs: ``[N, D]``.
        labels: ``[N]``.
        method: of training.
        epochs: over all examples.
        burn_in: so many epochs of natural training first.
        batch_size: examples per step; the last one of an epoch may have fewer.
        lr: the largest learning rate.
        weight_decay: of AdamW.
    """
    natural, losses = Natural(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    total, done = epochs * math.ceil(len(inputs) / batch_size), 0
    model.train()
    for epoch in range(epochs):
        objective = natural if epoch < burn_in else method
        weighted = 0.0
        for rows in torch.randperm(len(inputs)).split(batch_size):
            for group in optimizer.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * done / total))
            loss, _ = objective(model, inputs[rows], labels[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            weighted, done = weighted + loss.item() * len(rows), done + 1
        losses.append(weighted / len(inputs))
    return losses
