"""Models whose robust accuracy is known, and short attacks: what several tests of the evaluation share."""

import numpy as np
import torch
from torch import Tensor, nn

DUAL = {"linf": 1, "l2": 2, "l1": float("inf")}


def linear(classes: int, features: int = 8, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        # Boundaries pass through the middle of the box, where the inputs are.
        layer.bias -= layer.weight @ torch.full((features,), 0.5) + layer.bias
    return layer


def examples(model: nn.Module, count: int = 30, features: int = 8, wrong: int = 2) -> tuple[Tensor, Tensor]:
    """Inputs far from the sides of the box, classified as labelled but for the first ``wrong``."""
    inputs = 0.3 + 0.4 * torch.rand(count, features, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(inputs)
    labels = logits.argmax(dim=1)
    labels[:wrong] = (labels[:wrong] + 1) % logits.shape[1]
    return inputs, labels


def true_margins(layer: nn.Linear, inputs: Tensor, labels: Tensor, norm: str) -> np.ndarray:
    """Distance of every example to the nearest other class of a linear model; 0 where it is misclassified."""
    weight, inputs = layer.weight.detach().double(), inputs.double()
    logits = inputs @ weight.T + layer.bias.detach().double()
    own = logits.gather(1, labels[:, None])
    slopes = torch.linalg.vector_norm(weight[labels][:, None] - weight[None], ord=DUAL[norm], dim=2)
    distances = ((own - logits) / slopes.clamp(min=1e-30)).scatter(1, labels[:, None], torch.inf)
    return distances.amin(dim=1).clamp(min=0).numpy()


def radii_between(margins: np.ndarray, count: int = 4) -> list[float]:
    """Radii that lie clearly between the margins of some examples, so that rounding and search decide nothing."""
    ordered = np.sort(margins[margins > 0])
    places = np.linspace(2, len(ordered) - 3, count).astype(int)
    gaps = [max(range(max(p - 2, 0), p + 2), key=lambda i: ordered[i + 1] / ordered[i]) for p in places]
    return sorted({float((ordered[i] + ordered[i + 1]) / 2) for i in gaps})


class Mlp(nn.Module):
    """A small network with a curved boundary; ``calls`` counts examples passed forwards and backwards."""

    def __init__(self, features: int = 8, classes: int = 4, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(features, 24), nn.Tanh(), nn.Linear(24, classes))
        with torch.no_grad():
            self.layers[0].weight *= 4
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits = self.layers(x - 0.5)
        if logits.requires_grad and x.requires_grad:
            logits.register_hook(lambda gradient: self._back(len(gradient)))
        return logits

    def _back(self, count: int) -> None:
        self.backwards += count


def short(monkeypatch, steps: int = 8, queries: int = 30) -> None:
    """Let AutoAttack's attacks take few steps: on these models they need no more."""
    from dyart.evaluation import standard

    monkeypatch.setattr(standard, "STEPS", steps)
    monkeypatch.setattr(standard, "QUERIES", queries)
