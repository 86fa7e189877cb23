"""Small networks, examples and training loops to watch."""

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, CLASSES = 6, 3


def network(seed=0, classes=CLASSES, dropout=0.0, dtype=torch.float32):
    """A smooth network with BatchNorm whose statistics are not the first ones."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(FEATURES, 16),
            nn.BatchNorm1d(16),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(16, 16),
            nn.Tanh(),
            nn.Linear(16, classes),
        )
        with torch.no_grad():
            model[1].running_mean.normal_(std=0.2)
            model[1].running_var.uniform_(0.5, 1.5)
    return model.to(dtype)


def examples(count=24, seed=1, dtype=torch.float32):
    return torch.rand(count, FEATURES, generator=torch.Generator().manual_seed(seed)).to(dtype)


def labels_of(inputs, classes=CLASSES):
    """A simple rule that a network can learn."""
    return (inputs[:, :classes] + 0.3 * inputs[:, -classes:]).argmax(dim=1)


def predictions(model, inputs):
    model.eval()
    with torch.no_grad():
        found = model(inputs).argmax(dim=1)
    model.train()
    return found


def batches(count, seed=7, size=32):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        inputs = torch.rand(size, FEATURES, generator=generator)
        yield inputs, labels_of(inputs)


def train_step(model, optimizer, inputs, labels):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3, nesterov=True)


def trained(steps=100, dtype=torch.float32, **options):
    model = network(**options)
    optimizer = sgd(model)
    for inputs, labels in batches(steps, seed=2):
        train_step(model, optimizer, inputs, labels)
    return model.to(dtype)
