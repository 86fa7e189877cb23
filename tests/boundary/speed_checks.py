"""What the tests of boundary_speed share: names of the derivatives, a search, comparisons."""

import copy

import torch
from networks import smooth_network
from torch import Tensor, nn

import dyart

FORWARD, MATH, DOUBLE, CENTRAL = (
    "forward mode",
    "forward mode, math attention",
    "double backward",
    "central difference",
)


def search(model: nn.Module, x: Tensor, labels: Tensor | None = None, **options: object) -> dyart.BoundaryPoints:
    found = dyart.closest_boundary_points(model, x, labels, **{"steps": 20, "bounds": None, **options})
    assert found.found.sum() >= 4
    return found


def assert_close_to_scale(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Equal up to a share of the largest entry; a row's own speed may happen to be near zero."""
    assert wanted.abs().max() > 0
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def slope_of(found: dyart.BoundaryPoints) -> Tensor:
    """The dual norm of the gradient, written out; right where no coordinate is pinned."""
    gradient = found.gradient.flatten(1)
    return gradient.abs().sum(dim=1) if found.norm == "linf" else gradient.square().sum(dim=1).sqrt()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_state(model: nn.Module, before: dict[str, Tensor]) -> None:
    after = model.state_dict()
    assert list(after) == list(before)
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name


def speed_by_differences(model: nn.Module, found: dyart.BoundaryPoints, update: dict[str, Tensor]) -> Tensor:
    """The speed from the margin function at the points, with the model's tensors really moved (use float64)."""
    values = []
    for step in (1e-7, -1e-7):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for name, tensor in {**dict(moved.named_parameters()), **dict(moved.named_buffers())}.items():
                if name in update:
                    tensor.add_(step * update[name])
            values.append(dyart.logit_margin(moved(found.points), found.labels))
    return (values[0] - values[1]) / 2e-7 / slope_of(found)


class Fussy(nn.Module):
    """Fails on demand, with an error of a given type."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.error = smooth_network(), None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return self.body(x)
