"""What the tests of margin_loss share: a linear classifier, its margins in closed form, comparisons of gradients."""

import torch
from networks import uniform
from torch import Tensor, nn

import dyart

NORMS = ("linf", "l2")
BOUNDARIES = ("exact", "soft")


def linear(features: int = 6, classes: int = 2, seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(features, classes, dtype=torch.float64)
        with torch.no_grad():
            model.weight.mul_(3)
            model.bias.copy_(-model.weight.sum(dim=1) / 2)  # the boundaries meet in the middle of the unit cube
    return model


def gradients_of(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_all_close(got: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()) + 1e-12)


def boxed_margin(phi: Tensor, normal: Tensor, x: Tensor, point: Tensor, norm: str) -> Tensor:
    """Distance to {phi = 0} for a linear phi in the unit box, as a differentiable function of phi and its normal.

    Which coordinates the box stops is read off the solution; between two changes of that set the distance is this.
    """
    room = torch.where(normal > 0, x, 1 - x)
    stopped = ((point == 0) & (normal > 0)) | ((point == 1) & (normal < 0))
    slope = normal.abs()
    left = phi - (slope * room)[stopped].sum()
    if norm == "linf":
        return left / slope[~stopped].sum()
    level = left / slope[~stopped].square().sum()
    return ((level * slope[~stopped]).square().sum() + room[stopped].square().sum()).sqrt()


def closed_form_margins(model: nn.Linear, found: dyart.BoundaryPoints) -> Tensor:
    """The margins of a linear classifier of two classes, differentiable in its parameters; found rows only."""
    margins = []
    for x, y, point, use in zip(found.inputs, found.labels, found.points, found.found, strict=True):
        if not use:
            continue
        normal = model.weight[y] - model.weight[1 - y]
        phi = normal @ x + model.bias[y] - model.bias[1 - y]
        if found.bounds is None:
            margins.append(phi / torch.linalg.vector_norm(normal, ord=1 if found.norm == "linf" else 2))
        else:
            margins.append(boxed_margin(phi, normal, x, point, found.norm))
    return torch.stack(margins)


def search(model: nn.Module, x: Tensor, labels: Tensor | None = None, **options: object) -> dyart.BoundaryPoints:
    return dyart.closest_boundary_points(model, x, labels, **{"tol": 1e-12, "bounds": None, "steps": 30, **options})


def with_unfound_rows(norm: str = "linf") -> tuple[nn.Linear, dyart.BoundaryPoints]:
    """Ten examples, of which the odd ones carry the wrong label: they have no margin.

    The points are left where the search found them, a little across the boundary: phi is not zero there, and must not
    show in the value of the loss.
    """
    model, x = linear(), uniform(10, 6, seed=3, dtype=torch.float64)
    right = model(x).argmax(dim=1)
    found = search(model, x, torch.where(torch.arange(10) % 2 == 1, 1 - right, right), norm=norm, tol=None)
    assert (found.value[::2] < -1e-6).all()
    assert found.found.tolist() == [True, False] * 5
    assert found.margin[1::2].isnan().all()
    return model, found
