"""PGD for one example at a time, and short trainings, for the tests of the methods that look at PGD's way."""

import torch
from objective_cases import images, labels_of
from objective_cases import network as resnet
from torch import Tensor, nn

from dyart.data.loader import Batch
from dyart.recipes import Config
from dyart.recipes.load import check

X = images()
RADIUS, STEPS, STEP = 0.02, 10, 0.004  # some examples are fooled at once, some on the way, one never
STEPS_PER_EPOCH = 3


def setting(normalization: str = "group") -> tuple[nn.Module, Batch]:
    """A network in training mode, and a batch with labels of which a quarter is wrong."""
    model = resnet(normalization).train()
    return model, Batch(X, labels_of(model, X), torch.arange(len(X)) * 7 + 3, torch.tensor(5))


def without_values() -> tuple[nn.Module, Batch]:
    """The same without numbers: whoever looks at a value, which on a GPU is to wait for it, gets an error."""
    model, batch = setting("batch")
    return model.to("meta"), Batch(*(t.to("meta") for t in (batch.inputs, batch.labels, batch.index, batch.key)))


def alone(model: nn.Module, objective, x: Tensor, y: int, start: Tensor, tau: int, noise=None):
    """One example's way in eval mode: its last point, and which of the points before steps are right.

    Args:
        objective: from logits ``[1, K]`` to a number that is raised.
        start: the first point.
        tau: errors after which the next one ends the way.
        noise: what is added to each step, or None.
    """
    model.eval()
    point, seen = start, []
    for step in range(STEPS):
        point = point.detach().clone().requires_grad_()
        logits = model(point[None])
        seen.append(int(logits.argmax()) == y)
        if seen.count(False) > tau:
            break
        (gradient,) = torch.autograd.grad(objective(logits), point)
        moved = point.detach() + STEP * gradient.sign() + (0 if noise is None else noise[step])
        point = (x + (moved - x).clamp(-RADIUS, RADIUS)).clamp(0, 1)
    model.train()
    return point.detach(), seen


def naive_cross_entropy(logits: Tensor, y: int) -> Tensor:
    return -(logits[0, y].exp() / logits[0].exp().sum()).log()


def naive_divergence(clean: Tensor, logits: Tensor) -> Tensor:
    p, q = clean[0].softmax(dim=0), logits[0].softmax(dim=0)
    return sum(a * (a / b).log() for a, b in zip(p, q, strict=True))


def config(out, method: dict, epochs: int = 4) -> Config:
    train = {"epochs": epochs, "batch_size": 32, "log_every": 1, "device": "cpu", "compile": "off", "loggers": []}
    tree = {
        "seed": 3,
        "out": str(out),
        "data": {"name": "three-blobs", "limit": 96},
        "model": {"name": "mlp"},
        "method": {"radius": 0.1, "step_size": 0.03, "steps": 5} | method,
        "optim": {"lr": 0.2, "weight_decay": 0.001},
        "train": train,
        "eval": {"radius": 0.05, "steps": 2},
    }
    return check(tree)
