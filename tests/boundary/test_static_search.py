"""The search with static shapes finds what the search for users finds, and synchronises nothing."""

import pytest
import torch
from networks import small_resnet

from dyart import closest_boundary_points
from dyart.boundary.search import static_boundary_points


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model = small_resnet().eval()
    x = torch.rand(7, 3, 8, 8)
    labels = model(x).argmax(dim=1)
    labels[2] = (labels[2] + 1) % 3  # misclassified: it has no margin
    return model, x, labels


@pytest.mark.parametrize("steps", [12, 40])  # alone, and in a race
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("boundary", ["exact", "soft"])
def test_it_finds_the_same_points(case, norm, boundary, steps):
    model, x, labels = case
    wanted = closest_boundary_points(model, x, labels, norm=norm, boundary=boundary, steps=steps)
    found = static_boundary_points(model, x, labels, norm, boundary, 5.0, (0.0, 1.0), steps)
    assert torch.equal(found.found, wanted.found)
    assert not found.found[2]
    assert found.found.any()
    for name in ("points", "margin", "value", "alignment", "rival", "inside", "correct"):
        # Batches of other sizes round differently.
        ours, theirs = getattr(found, name).double(), getattr(wanted, name).double()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4, equal_nan=True)


def test_it_follows_given_points(case):
    model, x, labels = case
    first = closest_boundary_points(model, x, labels, steps=12)
    wanted = closest_boundary_points(model, x, labels, steps=4, start=first.points)
    found = static_boundary_points(model, x, labels, "linf", "exact", 5.0, (0.0, 1.0), 4, first.points)
    torch.testing.assert_close(found.margin, wanted.margin, rtol=0, atol=1e-5, equal_nan=True)


def test_a_network_that_computes_in_double_takes_inputs_in_float(case):
    model, x, labels = case
    double = small_resnet().double().eval()
    double.load_state_dict(model.state_dict())
    found = closest_boundary_points(lambda images: double(images.double()), x, labels, steps=12)
    wanted = closest_boundary_points(model, x, labels, steps=12)
    assert torch.equal(found.found, wanted.found)
    torch.testing.assert_close(found.margin, wanted.margin, rtol=0, atol=1e-4, equal_nan=True)
