"""A search does not depend on the unit of the inputs, nor on how generous a box around them is."""

import pytest
import torch
from torch import Tensor, nn

import dyart

UNITS = (2.0**-20, 2.0**-10, 2.0**10)


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


class Rescaled(nn.Module):
    """The same classifier of inputs in other units, one for all features or one for each."""

    def __init__(self, units: float | Tensor) -> None:
        super().__init__()
        self.network, self.units = network(), units

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x / self.units)


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    return torch.randn(64, 12, generator=torch.Generator().manual_seed(1))


def margins(model: nn.Module, x: Tensor, norm: str, **options: object) -> Tensor:
    found = dyart.closest_boundary_points(model, x, norm=norm, **{"bounds": None, "steps": 40, **options})
    assert found.found.all()
    return found.margin


@pytest.mark.parametrize("restarts", [1, 6])  # more than there are rivals: random starts, too
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_margins_have_the_unit_of_the_inputs(inputs, norm, restarts):
    wanted = margins(network(), inputs, norm, restarts=restarts)
    for unit in UNITS:
        found = margins(Rescaled(unit), inputs * unit, norm, restarts=restarts) / unit
        assert torch.allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("width", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_box_far_around_the_inputs_changes_nothing(inputs, norm, width):
    wanted = margins(network(), inputs, norm)
    found = margins(network(), inputs, norm, bounds=(-width, width))
    assert (found / wanted).mean() < 1.01


@pytest.mark.parametrize(("decades", "limit"), [(1, 1.03), (2, 1.1)])
def test_features_in_units_of_their_own_do_not_spoil_the_start_for_l1(inputs, decades, limit):
    units = torch.logspace(-decades, decades, 12)
    model, x = Rescaled(units), inputs * units
    best = margins(model, x, "l1", restarts=8, steps=80)
    assert (margins(model, x, "l1") / best).mean() < limit


def test_equal_values_and_zeros_have_a_start(inputs):
    for x in (torch.zeros(4, 12), torch.ones(4, 12)):
        for norm in ("linf", "l2", "l1"):
            assert margins(network(), x, norm, restarts=6).isfinite().all()


@pytest.mark.parametrize("solver", ["fast", "fab"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_margins_do_not_depend_on_the_scale_of_the_logits(inputs, norm, solver):
    model = network()
    wanted = margins(model, inputs, norm, solver=solver)
    found = margins(lambda x: model(x) * 2.0**-60, inputs, norm, solver=solver)
    assert torch.allclose(found, wanted, rtol=1e-5)
